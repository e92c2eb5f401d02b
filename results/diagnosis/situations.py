"""Whether the verdict is right: the situations of tests/situations, tried with the real commands.

    python results/diagnosis/situations.py [NAME...]

Without names all of them. Each takes about a minute and a half: ``ddpbench run`` and ``ddpbench diagnose``, two ranks on two
cores, or on the GPUs that there are.
Writes situations.json beside this file, in which those not named stay as they are, and README.md from it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "support")]

import msgspec  # noqa: E402
from situations.page import page  # noqa: E402
from situations.places import CORES  # noqa: E402
from situations.table import SITUATIONS  # noqa: E402
from situations.trial import Trial, try_out  # noqa: E402

RECORD, PAGE = HERE / "situations.json", HERE / "README.md"
KEPT = os.environ.get("SITUATIONS_KEPT")
"""A folder in which the records of the runs stay, to be read."""


def main(names: list[str]) -> None:
    known = {situation.name: situation for situation in SITUATIONS}
    if unknown := set(names) - known.keys():
        sys.exit(f"no such situation: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    os.environ.setdefault("XDG_CACHE_HOME", tempfile.mkdtemp())
    granted = sorted(os.sched_getaffinity(0))
    for name in names or known:
        os.sched_setaffinity(0, granted if known[name].cuda else granted[:CORES])
        with tempfile.TemporaryDirectory() as scratch:
            trial = try_out(known[name], Path(KEPT or scratch) / name)
        for command, said in trial.said.items():
            print(f"{name}: {command}: {said.score}: {said.told}: {said.says or said.problem}; {said.why}", flush=True)
        keep(trial, list(known))


def keep(trial: Trial, order: list[str]) -> None:
    """``trial`` takes the place of an earlier one of the same situation; one that could not be tried here takes nobody's."""
    there = msgspec.json.decode(RECORD.read_bytes(), type=dict[str, Trial]) if RECORD.exists() else {}
    if not (trial.skipped and trial.name in there):
        there[trial.name] = trial
    trials = {name: there[name] for name in order if name in there}
    RECORD.write_bytes(msgspec.json.format(msgspec.json.encode(trials), indent=1) + b"\n")
    PAGE.write_text(page(list(trials.values())))


if __name__ == "__main__":
    main(sys.argv[1:])
