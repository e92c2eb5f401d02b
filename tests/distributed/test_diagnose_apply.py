"""``diagnose --apply``: the full run after a real diagnosis."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import PLAIN, SHORT_DIAGNOSIS, SUPPORT_ENV, errors

from ddpbench.record.io import load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

SHORTEST = [*(word for word in SHORT_DIAGNOSIS if word != "--no-verify"), "--rounds", "1", "--time-limit", "0.5"]


def test_apply_runs_the_best_remedy_of_its_diagnosis_and_keeps_its_json(start: Callable[..., Any], results: Path, tmp_path: Path) -> None:
    words = [*PLAIN, *SHORTEST, "--gpus", "1", "--apply", "--json", "-", "-o", str(results)]
    running = start(words, env=SUPPORT_ENV, cwd=tmp_path)
    running.until(lambda: any(results.glob("*.json")))
    (others := results / "others.json").write_text("{}")  # a concurrent diagnosis that ends last
    os.utime(others, times=(time.time() + 3600,) * 2)
    done = running.wait(120)
    assert (done.returncode, errors(done.stderr)) == (0, [])
    record = json.loads(done.stdout)
    assert record["kind"] == "diagnose"
    diagnosed, full = (load(path) for path in sorted(results.glob("2*.json")))
    assert (diagnosed.kind, full.kind, full.records[0].status) == ("diagnose", "run", "ok")
    assert done.stderr.count("step time by phase") == 2, "the diagnosis and the full run"
