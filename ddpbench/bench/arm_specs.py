"""The arms of a job as Configs with roles, and the journal that the same command resumes. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ddpbench.bench.journal import Journal
from ddpbench.bench.resume import open_resumable_journal
from ddpbench.record.config import Config
from ddpbench.record.record import Record
from ddpbench.record.request import OutputOptions, Request
from ddpbench.record.roles import RUN, Role

DISTINGUISHING_FIELDS = ("workload", "precision", "batch_size")
"""The fields that distinguish the arms of a job."""


@dataclass(frozen=True)
class ArmSpec:
    """The Config of one arm, and its role."""

    config: Config
    role: Role = RUN


def build_request(arm_specs: Sequence[ArmSpec], overrides: Mapping[str, Any], output: OutputOptions, command: Sequence[str]) -> Request:
    """The request for all ``arm_specs``, with ``overrides`` applied to each."""
    arms = [msgspec.structs.replace(spec.config, **overrides) for spec in arm_specs]
    differing = [name for name in DISTINGUISHING_FIELDS if len({getattr(arm, name) for arm in arms}) > 1]
    return Request(arms=arms, output=output, command=list(command), swept=differing, roles=[spec.role for spec in arm_specs])


def resumable_journal(stem: str, kind: str) -> Callable[[Request, list[Record]], Journal]:
    """A factory that opens the journal ``stem`` in the device's folder and sets the job's ``kind``."""

    def open_journal(request: Request, records: list[Record]) -> Journal:
        journal = open_resumable_journal(request, records, stem)
        journal.job.kind = kind
        return journal

    return open_journal
