"""The full run after a diagnosis, for real: of that very diagnosis, and not in the way of what was asked of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import BRIEF_DIAGNOSIS, HERE, PLAIN, errors

from ddpbench.record.io import load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

SHORTEST = [*(word for word in BRIEF_DIAGNOSIS if word != "--no-verify"), "--rounds", "1", "--time-limit", "0.5"]


@pytest.mark.parametrize("target", ["-", "asked-for.json"])
def test_what_won_is_run_after_its_own_diagnosis_whose_json_stays_as_it_is(
    target: str, start: Callable[..., Any], results: Path, tmp_path: Path
) -> None:
    words = [*PLAIN, *SHORTEST, "--gpus", "1", "--apply", "--json", target, "-o", str(results)]
    running = start(words, env=HERE, cwd=tmp_path)
    running.until(lambda: any(results.glob("*.json")))
    (others := results / "others.json").write_text("{}")  # a diagnosis beside this one, which ends last
    os.utime(others, times=(time.time() + 3600,) * 2)
    done = running.wait(120)
    assert (done.returncode, errors(done.stderr)) == (0, [])
    told = json.loads(done.stdout if target == "-" else (tmp_path / target).read_text())
    assert told["kind"] == "diagnose"
    diagnosed, full = (load(path) for path in sorted(results.glob("2*.json")))
    assert (diagnosed.kind, full.kind, full.records[0].status) == ("diagnose", "run", "ok")
    pages = done.stderr if target == "-" else done.stdout
    assert "step time by phase" in pages.partition("the full run: " if target == "-" else "use    ")[2]
