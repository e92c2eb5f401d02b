"""Accuracy of the verdicts: the situations of tests/situations, measured with the real commands.

    python results/diagnosis/situations.py [NAME...]

Measures the named situations, or all of them. Each takes about a minute and a half: ``ddpbench run`` and ``ddpbench diagnose`` on two
CPU ranks with two cores, or on the available GPUs. Writes situations.json next to this file, in which the other situations keep their
results, and generates README.md from it. Several may run at once, each with ``taskset`` on cores of its own.
"""

from __future__ import annotations

import fcntl
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
"""Folder that keeps the records of the runs."""


def main(names: list[str]) -> None:
    known = {situation.name: situation for situation in SITUATIONS}
    if unknown := set(names) - known.keys():
        sys.exit(f"unknown situation: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    os.environ.setdefault("XDG_CACHE_HOME", tempfile.mkdtemp())
    cores = sorted(os.sched_getaffinity(0))
    for name in names or known:
        os.sched_setaffinity(0, cores if known[name].cuda else cores[:CORES])
        with tempfile.TemporaryDirectory() as scratch:
            trial = try_out(known[name], Path(KEPT or scratch) / name)
        for command, answer in trial.said.items():
            print(f"{name}: {command}: {answer.score}: {answer.verdict}: {answer.says or answer.problem}; {answer.why}", flush=True)
        keep(trial, list(known))


def keep(trial: Trial, order: list[str]) -> None:
    """``trial`` replaces an earlier one of the same situation, unless it was skipped here."""
    with HERE.joinpath("situations.py").open() as itself:
        fcntl.flock(itself, fcntl.LOCK_EX)
        trials_by_name = msgspec.json.decode(RECORD.read_bytes(), type=dict[str, Trial]) if RECORD.exists() else {}
        if not (trial.skipped and trial.name in trials_by_name):
            trials_by_name[trial.name] = trial
        trials = {name: trials_by_name[name] for name in order if name in trials_by_name}
        RECORD.write_bytes(msgspec.json.format(msgspec.json.encode(trials), indent=1) + b"\n")
        PAGE.write_text(page(list(trials.values())))


if __name__ == "__main__":
    main(sys.argv[1:])
