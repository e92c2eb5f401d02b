"""Subsample the steps of a record's rounds, one in every N, and keep the totals of all steps; for stored example records.

    python results/thin.py FILE TARGET N

``ddpbench report`` prints the same page for TARGET as for FILE: means are over all steps.
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
