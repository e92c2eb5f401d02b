"""Effect of malloc on CPU ranks: their own time and the pages touched per step, with glibc's defaults and with memory kept.

    python results/stragglers/memory.py [LAUNCHES]

The training of stragglers.py without a delay, on two ranks with a core each. Launches take turns. Writes memory.json and memory.md next
to this file.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, quantiles

import msgspec
from stragglers import KEEPS_MEMORY, WINDOW, RankReport, launched

from ddpbench.machine.host import cpu_name

HERE = Path(__file__).resolve().parent
WINDOWS = 20


def line(name: str, rounds: Sequence[list[RankReport]]) -> str:
    low, *_, high = quantiles([first.own_ms / second.own_ms for first, second in rounds], n=20)
    own_ms = fmean(rank.own_ms for ranks in rounds for rank in ranks)
    fewer, *_, more = quantiles([rank.pages for ranks in rounds for rank in ranks], n=20)
    return f"| {name} | {own_ms:.1f} | {low:.2f} to {high:.2f} | {fewer:,.0f} to {more:,.0f} |"


def main(launches: int) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    options = argparse.Namespace(device="cpu", ranks=2, steps=20)
    reports: dict[str, list[list[RankReport]]] = {"as glibc has it": [], "kept": []}
    for _ in range(launches):
        reports["as glibc has it"] += launched(options, WINDOWS, {}).reports
        reports["kept"] += launched(options, WINDOWS, KEEPS_MEMORY).reports
    head = [
        f"Two ranks, each on a core of {cpu_name()}, {launches} launches of {WINDOW * WINDOWS} rounds each way, in turn; "
        "ranges are the 5th to the 95th percentile.",
        "",
        "| malloc | own time of a step, ms | the first rank's over the second's | pages touched anew a step |",
        "|---|---|---|---|",
    ]
    page = "\n".join([*head, *(line(name, each) for name, each in reports.items())]) + "\n"
    kept = {"command": f"python results/stragglers/memory.py {launches}", **reports}
    (HERE / "memory.json").write_bytes(msgspec.json.encode(kept) + b"\n")
    (HERE / "memory.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
