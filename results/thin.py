"""Keeps one of every n steps of a record's rounds beside the sums over all of them, for records that are kept as examples.

    python results/thin.py FILE TARGET N

The page that ``ddpbench report`` prints of TARGET is that of FILE: means are of all steps.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ddpbench.analysis.collective_wait import subsample_round
from ddpbench.record.io import load, save


def main(source: str, target: str, every: str) -> None:
    job = load(Path(source))
    for record in job.records:
        record.rounds = [subsample_round(timed, int(every)) for timed in record.rounds]
    save(job, Path(target))


if __name__ == "__main__":
    main(*sys.argv[1:])
