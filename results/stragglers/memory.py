"""Effect of malloc on CPU ranks: own time and page faults per step, with glibc's defaults and with freed memory kept.

    python results/stragglers/memory.py [LAUNCHES]

Trains the workload of stragglers.py without a delay on two ranks with one core each; launches alternate between the two settings.
Writes memory.json and memory.md next to this file.
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
    reports: dict[str, list[list[RankReport]]] = {"glibc default": [], "memory kept": []}
    for _ in range(launches):
        reports["glibc default"] += launched(options, WINDOWS, {}).reports
        reports["memory kept"] += launched(options, WINDOWS, KEEPS_MEMORY).reports
    command = f"python results/stragglers/memory.py {launches}"
    head = [
        f"Two ranks, each on one core of {cpu_name()}; {launches} launches of {WINDOW * WINDOWS} rounds per setting, alternating. "
        "Ranges are the 5th to the 95th percentile.",
        "",
        f"Record: `memory.json`. Command: `{command}`.",
        "",
        "| malloc | own time per step, ms | own time of rank 0 over rank 1 | minor page faults per step |",
        "|---|---|---|---|",
    ]
    page = "\n".join([*head, *(line(name, each) for name, each in reports.items())]) + "\n"
    kept = {"command": command, **reports}
    (HERE / "memory.json").write_bytes(msgspec.json.encode(kept) + b"\n")
    (HERE / "memory.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
