"""Whether settings that a diagnosis screens gain what they gain in fresh processes, on two CPU cores.

python results/computing/truths.py OUT.json [NAME ...]

Diagnoses ``small_models.py`` with each of its models. Then every setting that was tried is switched on from the start, on top of those it
was tried on, in fresh processes that take turns with others without it: A B, B A.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import small_models

from ddpbench.analysis.screening import is_kept, noise_floor, screened_gain
from ddpbench.analysis.stats import PairedRatio, ratio_of
from ddpbench.record.io import load
from ddpbench.record.screening import NULL, ScreenedCure

SCRIPT = str(Path(small_models.__file__))
LIMIT_S, FRESH_S, PAIRS = 170, 5, 2


def screened(name: str) -> Sequence[ScreenedCure]:
    """The trials of a diagnosis."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--time-limit", str(LIMIT_S), "-q", "-o", folder, SCRIPT, name]
        subprocess.run([sys.executable, "-m", "ddpbench", "diagnose", *words], check=True, capture_output=True)
        diagnosis = load(next(Path(folder).glob("*-diagnose.json"))).diagnosis
    assert diagnosis is not None
    assert diagnosis.screening is not None
    return diagnosis.screening.cures


def steps_per_s(name: str, cures: Sequence[str]) -> float:
    """Of a fresh process."""
    words = [SCRIPT, name, "--seconds", str(FRESH_S), "--cures", ",".join(cures)]
    return float(subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True).stdout)


def fresh_gain(name: str, cure: ScreenedCure) -> PairedRatio:
    without: list[float] = []
    with_it: list[float] = []
    for turn in range(PAIRS):
        for is_on in (False, True) if turn % 2 == 0 else (True, False):
            (with_it if is_on else without).append(steps_per_s(name, [*cure.on_top_of, *([cure.code] if is_on else [])]))
    return ratio_of(without, with_it)


def row(name: str, cure: ScreenedCure, floor: float) -> dict[str, Any]:
    gain, fresh = screened_gain(cure), fresh_gain(name, cure)
    assert gain is not None
    return {
        "model": name,
        "setting": cure.code,
        "on_top_of": cure.on_top_of,
        "screened": [round(each, 3) for each in (gain.center, gain.low, gain.high)],
        "noise_floor": round(floor, 3),
        "kept": is_kept(cure, floor),
        "fresh": [round(each, 3) for each in (fresh.center, fresh.low, fresh.high)],
    }


def main() -> None:
    out, *names = sys.argv[1:]
    rows: list[dict[str, Any]] = []
    for name in names or small_models.MODELS:
        cures = screened(name)
        floor = noise_floor(cures)
        for cure in cures:
            if cure.code != NULL and cure.with_s and not (cure.obstacle or cure.failure):
                rows.append(row(name, cure, floor))
                print(json.dumps(rows[-1]), flush=True)
        Path(out).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
