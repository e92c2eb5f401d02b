"""The ``sweep`` command: trains every combination from scratch in every round, resumable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from ddpbench.bench.job_spec import ResumableJobSpec
from ddpbench.bench.journal import Journal
from ddpbench.bench.resume import open_resumable_journal
from ddpbench.bench.runner import run_job
from ddpbench.record.config import Config
from ddpbench.record.record import Record, slug
from ddpbench.record.request import OutputOptions, Request
from ddpbench.report.pages.sweep import render_sweep

DISTINGUISHING_FIELDS = ("workload", "precision", "batch_size")
"""The fields of a cell that tell it from the others."""


@dataclass(frozen=True)
class ArmSpec:
    """One training of a recipe, with what sets it apart that no field of its Config does."""

    config: Config
    label: str = ""


def build_request(arm_specs: Sequence[ArmSpec], overrides: Mapping[str, Any], output: OutputOptions, command: Sequence[str]) -> Request:
    """The request of all cells, with ``overrides`` in force in each."""
    arms = [msgspec.structs.replace(cell.config, **overrides) for cell in arm_specs]
    differing = [name for name in DISTINGUISHING_FIELDS if len({getattr(arm, name) for arm in arms}) > 1]
    return Request(arms=arms, output=output, command=list(command), swept=differing, labels=[cell.label for cell in arm_specs])


def resumable_journal(stem: str, kind: str) -> Callable[[Request, list[Record]], Journal]:
    """Opens the journal ``stem`` of the device's folder, whose job is of that kind."""

    def open_journal(request: Request, records: list[Record]) -> Journal:
        journal = open_resumable_journal(request, records, stem)
        journal.job.kind = kind
        return journal

    return open_journal


def run_sweep(request: Request) -> NoReturn:
    """Trains every cell of the request, or those that its journal lacks, and ends the process with the exit code."""
    axes = " ".join(request.swept) or request.arms[0].precision
    part = f" part {request.sweep_shard.parts[0]} of {request.sweep_shard.num_parts}" if request.sweep_shard else ""
    stem = slug(f"sweep {request.arms[0].workload} {axes}{part}")
    run_job(with_fresh_rounds(request), ResumableJobSpec(resumable_journal(stem, "sweep"), render_sweep))


def with_fresh_rounds(request: Request) -> Request:
    """The request with every round a training of its own, unless it says otherwise."""
    arms = [msgspec.structs.replace(arm, fresh=True) if arm.fresh is None else arm for arm in request.arms]
    return msgspec.structs.replace(request, arms=arms)
