"""Interface through which a run reports its progress."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives progress of a run. Every rank but 0 has a NullProgress."""

    def stage(self, text: str) -> None:
        """A slow stage begins: building, warm-up, a peak measurement, another epoch of a long round."""

    def round_done(self, done: int, total: int, text: str, seconds_left: float | None) -> None:
        """A timed round ended. ``text`` is its throughput as text, ``seconds_left`` an estimate for the whole job."""

    def close(self) -> None:
        """Stop reporting and restore the terminal."""


class NullProgress:
    """A Progress that reports nothing."""

    def stage(self, text: str) -> None: ...

    def round_done(self, done: int, total: int, text: str, seconds_left: float | None) -> None: ...

    def close(self) -> None: ...
