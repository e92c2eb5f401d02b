"""How a run tells someone that it moves, without knowing who listens."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Hears of a run's stages. Rank 0 has a listener; every other rank has ``Silent``."""

    def stage(self, text: str) -> None:
        """Something slow begins: building, warming up, measuring a ceiling, another epoch of a long round."""

    def round_done(self, done: int, total: int, text: str, seconds_left: float | None) -> None:
        """A timed round ended; ``text`` is its figure in words, ``seconds_left`` an estimate for the whole job."""

    def close(self) -> None:
        """Nothing more comes; give the terminal back."""


class NullProgress:
    """A listener that says nothing."""

    def stage(self, text: str) -> None: ...

    def round_done(self, done: int, total: int, text: str, seconds_left: float | None) -> None: ...

    def close(self) -> None: ...
