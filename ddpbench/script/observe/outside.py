"""The time that a watched script spends outside of its steps: validation, checkpoints, the rest between two epochs."""

from __future__ import annotations

import os
from time import perf_counter, process_time
from typing import NamedTuple

from ddpbench.record.script import OutsideKind


class CpuTime(NamedTuple):
    """CPU seconds, user and system."""

    own_s: float = 0.0  # of this process
    ended_s: float = 0.0  # of its children that have ended

    @classmethod
    def now(cls) -> CpuTime:
        """What has been used so far."""
        times = os.times()
        return cls(process_time(), times.children_user + times.children_system)

    def since(self, earlier: CpuTime) -> CpuTime:
        """What was used between ``earlier`` and this."""
        return CpuTime(self.own_s - earlier.own_s, self.ended_s - earlier.ended_s)

    def plus(self, other: CpuTime) -> CpuTime:
        """The sum of both."""
        return CpuTime(self.own_s + other.own_s, self.ended_s + other.ended_s)


class Moment(NamedTuple):
    """A time on the clock of time.perf_counter, and the CPU time used until then."""

    time_s: float
    cpu: CpuTime

    @classmethod
    def now(cls) -> Moment:
        return cls(perf_counter(), CpuTime.now())


class OutsideTime:
    """Seconds outside of steps, by what the script does there. Times are those of ``time.perf_counter``."""

    def __init__(self) -> None:
        self.seconds: dict[OutsideKind, float] = {}
        self.cpu = CpuTime()  # of validation and checkpoints, which take CPU time as no step does
        self._present: tuple[OutsideKind, Moment] | None = None  # since when the script has been outside
        self.is_counted = False  # it has begun to train

    @property
    def kind(self) -> OutsideKind | None:
        """What the script does outside of its steps; None in a step. From any thread."""
        present = self._present
        return present[0] if present else None

    @property
    def present_s(self) -> float:
        """For how long the script has been outside of steps; 0 in a step."""
        return perf_counter() - self._present[1].time_s if self._present else 0.0

    def enter(self, kind: OutsideKind, since: Moment | None = None) -> None:
        """The script does ``kind`` from now on, or has done so ``since`` then."""
        begin = Moment.now() if since is None else since
        if self._present:
            begin = max(begin, self._present[1])  # of one kind directly after another
        self._leave(begin)
        self._present = kind, begin

    def leave(self, creation_s: float = 0.0) -> None:
        """The script has begun a step, ``creation_s`` ago."""
        now = Moment.now()
        self._leave(now._replace(time_s=now.time_s - creation_s))

    def _leave(self, end: Moment) -> None:
        if self._present:
            kind, begin = self._present
            self.add(kind, max(0.0, end.time_s - begin.time_s))
            if kind != "between-epochs":
                self.cpu = self.cpu.plus(end.cpu.since(begin.cpu))
        self._present = None

    def add(self, kind: OutsideKind, seconds: float) -> None:
        """Count ``seconds`` of ``kind``, once the script has begun to train."""
        if self.is_counted and seconds:
            self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds

    def forget(self) -> None:
        """What the script has been doing belongs to its step after all."""
        self._present = None

    def rename(self, kind: OutsideKind) -> None:
        """What the script has been doing has turned out to be ``kind``."""
        if self._present:
            self._present = kind, self._present[1]
