"""The line that ``--every`` prints while the script runs."""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum
from statistics import median

from ddpbench.report.format import format_percent, format_rounded
from ddpbench.report.pages.watch import OUTSIDE_NAMES
from ddpbench.script.ranks.progress import RankProgress, Totals

MAX_COLUMNS = 80


def state_line(progress: Mapping[int, RankProgress], earlier: Mapping[int, Totals]) -> str:
    """Steps so far, and throughput, data wait and slowest rank since the sums ``earlier``, in at most 80 columns.

    ``progress`` has the ranks that have sent their own, rank 0 among them.
    """
    new = {rank: each.totals.since(earlier.get(rank, Totals())) for rank, each in progress.items()}
    moved = {rank: totals for rank, totals in new.items() if totals.steps and totals.step_ms > 0}
    parts = ["ddpbench:", f"step {progress[0].steps:,}"]
    if not moved:
        outside = progress[0].outside
        return "  ".join([*parts, "no step", *([OUTSIDE_NAMES[outside]] if outside else [])])
    samples_per_s = fsum(1000 * totals.samples / totals.step_ms for totals in moved.values())
    wait = fsum(totals.data_ms / totals.step_ms for totals in moved.values()) / len(moved)
    parts += [f"{format_rounded(samples_per_s)} samples/s", f"data wait {format_percent(wait, 2)}"]
    if len(moved) > 1:
        parts += [f"slowest rank {_slowest(moved)}"]
    return _fitted(parts)


def _slowest(moved: Mapping[int, Totals]) -> str:
    """The rank with the longest own time per step, and how much longer that is than the median of the others."""
    own_ms = {rank: totals.own_ms / totals.steps for rank, totals in moved.items()}
    rank = max(own_ms, key=lambda each: own_ms[each])
    others_ms = median(value for each, value in own_ms.items() if each != rank)
    return f"{rank}" + (f" (+{format_percent(own_ms[rank] / others_ms - 1, 2)})" if others_ms > 0 else "")


def _fitted(parts: list[str]) -> str:
    """``parts`` in one line; if it is too long, with smaller gaps, then without the excess of the slowest rank, then without that rank."""
    lines = ["  ".join(parts), " ".join(parts), " ".join(parts).partition(" (+")[0], " ".join(parts[:-1])]
    return next((line for line in lines if len(line) <= MAX_COLUMNS), lines[-1])
