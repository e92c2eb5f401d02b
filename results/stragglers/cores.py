"""Whether the processor's own cores are equally fast: two processes, each on a core, do the same work and know nothing of each other.

    python results/stragglers/cores.py [WINDOWS]

No rank, no training and no exchange: what differs is the machine. Windows of five rounds are judged by the rule that names a slow
rank, on the two processes' times for the same work: by their means alone, and so a core is called slow a little too seldom. Writes
cores.json and cores.md beside this file.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from time import perf_counter

import torch

from ddpbench.analysis.straggler import LEAST_EXCESS, stands_out
from ddpbench.machine.host import cpu_name

HERE = Path(__file__).resolve().parent
ROUNDS, PRODUCTS, SIDE = 5, 1500, 256
"""A round of them takes about as long as one of 20 steps in stragglers.py."""

PATIENCE_S = 60.0


def work(core: int, windows: int, meet: Barrier, told: Sequence[float], place: int) -> None:
    """Seconds of every round, into ``told``; both processes begin each round together, and neither waits for the other in it."""
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    matrix, out = torch.randn(SIDE, SIDE), torch.empty(SIDE, SIDE)
    for number in range(windows * ROUNDS):
        meet.wait(PATIENCE_S)
        begin = perf_counter()
        for _ in range(PRODUCTS):
            torch.mm(matrix, matrix, out=out)
        told[place * windows * ROUNDS + number] = perf_counter() - begin  # type: ignore[index]


def slow_of(first_s: Sequence[float], second_s: Sequence[float]) -> int | None:
    """Which of the two the rule calls slow in these rounds."""
    for place, (own, other) in enumerate(((first_s, second_s), (second_s, first_s))):
        excesses = [a / b - 1 if a > b else None for a, b in zip(own, other, strict=True)]
        if stands_out(excesses, LEAST_EXCESS["cpu"]):
            return place
    return None


def main(windows: int) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit("two cores are compared, and one is usable")
    spawn = get_context("spawn")
    meet, told = spawn.Barrier(2), spawn.Array("d", 2 * windows * ROUNDS, lock=False)
    both = [spawn.Process(target=work, args=(core, windows, meet, told, place)) for place, core in enumerate(cores)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    first, second = list(told[: windows * ROUNDS]), list(told[windows * ROUNDS :])
    cut = [slice(at * ROUNDS, (at + 1) * ROUNDS) for at in range(windows)]
    slow = [slow_of(first[window], second[window]) for window in cut]
    ratios = sorted(sum(second[window]) / sum(first[window]) for window in cut)
    found = {
        "command": f"python results/stragglers/cores.py {windows}",
        "processor": cpu_name(),
        "first_s": [round(span, 4) for span in first],
        "second_s": [round(span, 4) for span in second],
        "slow": slow,
    }
    (HERE / "cores.json").write_text(json.dumps(found) + "\n")
    middle = [ratios[round(share * (windows - 1))] for share in (0.05, 0.5, 0.95)]
    called = sum(each is not None for each in slow)
    text = (
        f"Two processes that do the same work, each on a core of {cpu_name()}, {windows} windows of {ROUNDS} rounds: in {called} "
        f"({called / windows:.0%}) the rule calls one core slow ({slow.count(0)} times the first, {slow.count(1)} the second). "
        f"The second takes {middle[1]:.2f} times as long as the first in the median window, {middle[0]:.2f} and {middle[2]:.2f} at the 5th "
        "and 95th percentile.\n"
    )
    (HERE / "cores.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
