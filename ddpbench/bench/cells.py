"""Jobs whose cells a recipe lays out, and those of them that a second call goes on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ddpbench.bench.journal import Journal
from ddpbench.bench.resume import continued_journal
from ddpbench.record.config import Config
from ddpbench.record.record import Record
from ddpbench.record.request import Output, Request

NAMING = ("workload", "precision", "batch_size")
"""The fields of a cell that tell it from the others."""


@dataclass(frozen=True)
class Cell:
    """One training of a recipe, with what sets it apart that no field of its Config does."""

    config: Config
    label: str = ""


def request_of(cells: Sequence[Cell], given: Mapping[str, Any], output: Output, command: Sequence[str]) -> Request:
    """The request of all cells, with ``given`` in force in each."""
    arms = [msgspec.structs.replace(cell.config, **given) for cell in cells]
    differing = [name for name in NAMING if len({getattr(arm, name) for arm in arms}) > 1]
    return Request(arms=arms, output=output, command=list(command), swept=differing, labels=[cell.label for cell in cells])


def kept_as(stem: str, kind: str) -> Callable[[Request, list[Record]], Journal]:
    """Opens the journal ``stem`` of the device's folder, whose job is of that kind."""

    def open_journal(request: Request, records: list[Record]) -> Journal:
        journal = continued_journal(request, records, stem)
        journal.job.kind = kind
        return journal

    return open_journal
