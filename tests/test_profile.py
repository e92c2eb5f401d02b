"""The profiler's window on a processor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from test_faults import PLAIN, SMALL, TESTS


def test_a_trace_on_a_processor_comes_without_a_word_of_gpus(launch: Callable[..., Any], results: Path) -> None:
    words = [*PLAIN, "misbehaving:fine", *SMALL, "--rounds", "1", "--profile", "-o", str(results)]
    done = launch(words, env={"PYTHONPATH": str(TESTS)})
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("ddpbench: ") for line in done.stderr.splitlines()), done.stderr
    (trace,) = results.glob("*.trace.json")
    assert json.loads(trace.read_text())["traceEvents"]
