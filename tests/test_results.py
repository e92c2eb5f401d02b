"""The scripts under results/ start, and the page of the calibration is what its records give."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
RESULTS = ROOT / "results"
SCRIPTS = sorted(RESULTS.rglob("*.py"))
PROOF = RESULTS / "h200" / "diagnose-resnet50-2gpu.json"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.relative_to(RESULTS).as_posix())
def test_script_can_be_imported(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(script.parent), *sys.path])
    runpy.run_path(str(script))


def run(script: Path, *words: str) -> str:
    """The output of ``script``, which must succeed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, TESTS)))}
    command = [sys.executable, str(script), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=60).stdout


@pytest.mark.parametrize("words", [("simulation/speed.py", "OUT"), ("thin.py", str(PROOF), "OUT", "4")], ids=lambda words: words[0])
def test_script_writes_its_record(words: tuple[str, ...], tmp_path: Path) -> None:
    script, *rest = words
    run(RESULTS / script, *(word.replace("OUT", str(tmp_path / "record.json")) for word in rest))
    assert (tmp_path / "record.json").stat().st_size > 0


def test_calibration_page_and_pictures_follow_from_the_kept_records(tmp_path: Path) -> None:
    shutil.copytree(RESULTS / "calibration", tmp_path / "calibration")
    (tmp_path / "h200").mkdir()
    for record in (RESULTS / "h200").glob("diagnose-*.json"):
        shutil.copy(record, tmp_path / "h200")
    for name in ("calibration.md", "calibration.png", "calibration.svg"):
        (tmp_path / "calibration" / name).unlink()
    run(tmp_path / "calibration" / "calibration.py", "--page")
    assert (tmp_path / "calibration" / "calibration.md").read_text() == (RESULTS / "calibration" / "calibration.md").read_text()
    assert {path.suffix for path in (tmp_path / "calibration").iterdir()} >= {".png", ".svg"}


def test_proof_with_short_rounds_is_struck_out_with_the_reason() -> None:
    calibration: dict[str, Any] = runpy.run_path(str(RESULTS / "calibration" / "calibration.py"))
    dali, uint8 = calibration["proved"](PROOF)
    assert dali.struck_out == "baseline has 12 steps per round, needs 32"
    assert uint8.struck_out == "baseline has 12 steps per round, needs 32; trial has 21 steps per round, needs 32"
    assert calibration["row"](dali).startswith("| ~~resnet50 ")
    assert calibration["row"](dali).endswith(f" ~~outside~~ {dali.struck_out} |")
