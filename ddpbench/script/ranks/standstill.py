"""Decides whether a rank stands still, and words it. A long validation is none, nor is the wait of the other ranks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddpbench.record.errors import Hung
from ddpbench.record.record import Fault
from ddpbench.report.pages.watch import OUTSIDE_NAMES
from ddpbench.script.ranks.progress import RankProgress

REPORT_AFTER_S, USUAL_STEPS = 300.0, 20
"""A rank is reported that has stood in a step for five minutes, and for 20 of its usual steps."""

FIRST_STEP_FACTOR = 2.5
"""Before the first step of a rank has ended, it may take this much longer: it may compile, or read the data for the first time."""

OUTSIDE_S = 1800.0
"""Outside of its steps, a rank may stand still for half an hour: torch's own default for a wait in gloo. Others may wait for it."""


@dataclass(frozen=True)
class Standstill:
    """Ranks that stand still, and the one that the others wait for, or else the one that is the furthest behind."""

    rank: int
    host: str
    progress: RankProgress
    collectives: Mapping[int, str]  # of the ranks that stand in one
    are_all_alike: bool  # several ranks, all ranks of the script, all in the same place
    ended: Mapping[int, int]  # steps of the ranks whose script has ended

    @property
    def note(self) -> str:
        """The report, in one line."""
        return f"{self._subject} has made no progress for {self.progress.idle_s:.0f} s {self._place}: {self._where}{self._others}"

    @property
    def error(self) -> Hung:
        """Why the ranks are ended."""
        return Hung(
            f"{self._subject} hung {self._place}: no progress for {self.progress.idle_s:.0f} s",
            f"rank {self.rank} was in {self._where}{self._others}",
        )

    @property
    def fault(self) -> Fault:
        error, phase = self.error, "data" if self.progress.waits_for_data else self.progress.outside or ""
        return Fault(message=error.message, hint=error.hint, rank=self.rank, step=self.progress.steps, phase=phase)

    @property
    def _subject(self) -> str:
        return "every rank" if self.are_all_alike else f"rank {self.rank}" + (f" ({self.host})" if self.host else "")

    @property
    def _place(self) -> str:
        outside = self.progress.outside
        phase = f", outside of it ({OUTSIDE_NAMES[outside]})" if outside else ", waiting for data" if self.progress.waits_for_data else ""
        return f"at step {self.progress.steps:,}{phase}"

    @property
    def _where(self) -> str:
        return self.progress.line or "code that runs no Python"

    @property
    def _others(self) -> str:
        ranks_in: dict[str, list[int]] = {}
        for rank, collective in self.collectives.items():
            ranks_in.setdefault(collective, []).append(rank)
        if len(ranks_in) > 1 or len(self.collectives) == 1:
            waits = [f"rank {ranks[0]} waits in {collective}" for collective, ranks in ranks_in.items()]
        else:
            waits = [f"all wait in {collective}" for collective in ranks_in]
        waits += [f"rank {rank} has ended after step {steps:,}" for rank, steps in self.ended.items()]
        return "".join(f"; {each}" for each in waits[:4])


def dead_rank(rank: int, host: str, progress: RankProgress | None) -> Fault:
    """The fault of a rank whose process has ended before its script."""
    after = f" after step {progress.steps:,}" if progress else ""
    return Fault(
        message=f"rank {rank} ({host}) ended unexpectedly{after}: it was killed, or called os._exit",
        hint="possibly the kernel's OOM killer: check dmesg",
        rank=rank,
        step=progress.steps if progress else None,
    )


def find_standstill(
    progress: Mapping[int, RankProgress], hosts: Mapping[int, str], ended: Mapping[int, int], hang_timeout_s: float | None = None
) -> Standstill | None:
    """The standstill of a script, or None. ``progress`` has the ranks that have not ended, ``ended`` the steps of those that have.

    With ``hang_timeout_s``, a step may last that long, instead of ``REPORT_AFTER_S``.
    """
    over_limit = {rank: each.idle_s / _limit_s(each, hang_timeout_s) for rank, each in progress.items()}
    if max(over_limit.values()) < 1 or any(each.outside and each.idle_s < OUTSIDE_S for each in progress.values()):
        return None
    standing = {rank: progress[rank] for rank, share in over_limit.items() if share >= 0.5}  # those that began to wait a little later, too
    rank = min(standing, key=lambda number: (not standing[number].is_silent, standing[number].position))
    alike = {(each.position, each.line) for each in progress.values()}
    return Standstill(
        rank=rank,
        host=hosts.get(rank, ""),
        progress=standing[rank],
        collectives={number: each.collective for number, each in standing.items() if each.collective},
        are_all_alike=len(alike) == 1 and len(progress) > 1 and not ended,
        ended=ended,
    )


def _limit_s(progress: RankProgress, hang_timeout_s: float | None) -> float:
    if progress.outside:
        return max(OUTSIDE_S, hang_timeout_s or 0.0)
    totals = progress.totals
    usual_s = totals.step_ms / 1000 / totals.steps if totals.steps else 0.0
    limit_s = hang_timeout_s or max(REPORT_AFTER_S, USUAL_STEPS * usual_s)
    return limit_s if progress.steps else FIRST_STEP_FACTOR * limit_s
