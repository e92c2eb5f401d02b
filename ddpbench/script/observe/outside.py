"""The time that a watched script spends outside of its steps: validation, checkpoints, the rest between two epochs."""

from __future__ import annotations

from time import perf_counter

from ddpbench.record.script import OutsideKind


class OutsideTime:
    """Seconds outside of steps, by what the script does there. Times are those of ``time.perf_counter``."""

    def __init__(self) -> None:
        self.seconds: dict[OutsideKind, float] = {}
        self._present: tuple[OutsideKind, float] | None = None  # since when the script has been outside
        self.is_counted = False  # it has begun to train

    @property
    def kind(self) -> OutsideKind | None:
        """What the script does outside of its steps; None in a step. From any thread."""
        present = self._present
        return present[0] if present else None

    @property
    def present_s(self) -> float:
        """For how long the script has been outside of steps; 0 in a step."""
        return perf_counter() - self._present[1] if self._present else 0.0

    def enter(self, kind: OutsideKind, since_s: float | None = None) -> None:
        """The script does ``kind`` from now on, or has done so since ``since_s``."""
        now_s = perf_counter() if since_s is None else since_s
        if self._present:
            now_s = max(now_s, self._present[1])  # of one kind directly after another
        self.leave(now_s)
        self._present = kind, now_s

    def leave(self, now_s: float | None = None) -> None:
        """The script has begun a step."""
        if self._present:
            kind, since_s = self._present
            self.add(kind, max(0.0, (perf_counter() if now_s is None else now_s) - since_s))
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
