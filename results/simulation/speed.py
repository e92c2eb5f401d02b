"""Time of a simulated training on one core: 8 ranks and 10,000 steps, in plain Python.

python results/simulation/speed.py results/simulation/speed.json
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter

from ddpbench.analysis.simulation.simulator import SimParams, simulate

RANKS, STEPS, REPEATS = 8, 10_000, 15


def seconds(prefetch: int) -> float:
    rng = Random(0)
    batches = [[rng.lognormvariate(0.0, 0.47) for _ in range(1000)] for _ in range(RANKS)]
    params = SimParams(ranks=RANKS, workers=8, prefetch=prefetch, batch_times_s=batches, step_times_s=[1.1 / 8])
    begin = perf_counter()
    simulate(params, STEPS, rng)
    return perf_counter() - begin


def main(target: str) -> None:
    spent = {prefetch: sorted(seconds(prefetch) for _ in range(REPEATS)) for prefetch in (2, 4)}
    found = {
        "ranks": RANKS,
        "steps": STEPS,
        "python": platform.python_version(),
        "median_s": {prefetch: round(median(spans), 4) for prefetch, spans in spent.items()},
        "longest_s": {prefetch: round(spans[-1], 4) for prefetch, spans in spent.items()},
    }
    print(json.dumps(found))
    Path(target).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
