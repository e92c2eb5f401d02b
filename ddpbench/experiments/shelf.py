"""Trainings laid down beside the journal, a file a rank, for the same command to go on with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from pickle import UnpicklingError

import msgspec
import torch

from ddpbench.record.files import write_whole
from ddpbench.record.trace import Trace
from ddpbench.training.parked import Parked


@dataclass(frozen=True)
class Stand:
    """How far one rank has come in a round: what it has trained and measured, and where its generators of random numbers are."""

    epochs: int = 0
    parked: Parked = field(default_factory=Parked)
    random: Sequence[torch.Tensor] = ()
    traces: Sequence[Trace] = ()


BEGINNING = Stand()


class Shelf:
    """The files of one rank for all rounds of a job; ``job`` names that, for the files of another may lie where its were.

    What a rank that was killed has left half lies under another name, and goes when the next file is there.
    """

    def __init__(self, journal: Path, job: str, rank: int) -> None:
        self._journal, self._job, self._rank = journal, job, rank
        self.refused = False  # whether the disk took no more, and that was said

    def path(self, arm: int, turn: int, epochs: int) -> Path:
        return self._journal.with_name(f"{self._prefix(arm, turn)}{epochs}.pt")

    def put(self, arm: int, turn: int, stand: Stand) -> None:
        """Writes the file whole, beside those of fewer epochs. Raises OSError."""
        path, kept = self.path(arm, turn, stand.epochs), BytesIO()
        content = {
            "job": self._job,
            "parked": vars(stand.parked),
            "random": list(stand.random),
            "traces": msgspec.json.encode(stand.traces).decode(),
        }
        torch.save(content, kept)
        path.parent.mkdir(parents=True, exist_ok=True)  # of a rank on another host it may not be there
        write_whole(path, kept.getvalue())

    def latest(self, arm: int, turn: int) -> Stand:
        """What lies there of this job with the most epochs, and is whole; else ``BEGINNING``."""
        pattern = re.compile(rf"{re.escape(self._prefix(arm, turn))}(\d+)\.pt")
        names = [pattern.fullmatch(path.name) for path in self._files(arm, turn)]
        stands = (self.take(arm, turn, epochs) for epochs in sorted((int(name[1]) for name in names if name), reverse=True))
        return next((stand for stand in stands if stand.epochs), BEGINNING)

    def take(self, arm: int, turn: int, epochs: int) -> Stand:
        """What was put there after that many epochs; ``BEGINNING`` where it is not there, not whole, or of another job."""
        try:
            kept = torch.load(self.path(arm, turn, epochs), map_location="cpu", weights_only=True)
            if kept["job"] != self._job:
                return BEGINNING
            return Stand(epochs, Parked(**kept["parked"]), kept["random"], msgspec.json.decode(kept["traces"], type=list[Trace]))
        except (OSError, RuntimeError, EOFError, UnpicklingError, LookupError, TypeError, msgspec.MsgspecError):
            return BEGINNING

    def keep_only(self, arm: int, turn: int, epochs: int) -> None:
        """Removes what lies there of that round, but the file after so many epochs."""
        for path in self._files(arm, turn):
            if path != self.path(arm, turn, epochs):
                with suppress(OSError):
                    path.unlink()

    def clear(self, arm: int, turn: int) -> None:
        """Removes all that lies there of that round."""
        self.keep_only(arm, turn, 0)

    def _prefix(self, arm: int, turn: int) -> str:
        return f"{self._journal.stem}.arm{arm}.round{turn}.rank{self._rank}.epoch"

    def _files(self, arm: int, turn: int) -> list[Path]:
        """The files of that round, and what is left of one that was being written."""
        prefix = self._prefix(arm, turn)
        return [*self._journal.parent.glob(f"{prefix}*.pt"), *self._journal.parent.glob(f".{prefix}*.tmp")]
