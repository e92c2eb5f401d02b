"""The ``sweep`` command: trains every combination from scratch in every round, resumable."""

from __future__ import annotations

from typing import NoReturn

import msgspec

from ddpbench.bench.arm_specs import resumable_journal
from ddpbench.bench.job_spec import ResumableJobSpec
from ddpbench.bench.journal import config_in_name
from ddpbench.bench.runner import run_job
from ddpbench.record.io import slug
from ddpbench.record.request import Request


def run_sweep(request: Request) -> NoReturn:
    """Train every arm of the request that its journal lacks, then exit the process with the exit code."""
    axes = " ".join(request.swept) or request.arms[0].precision
    part = f" part {request.sweep_shard.parts[0]} of {request.sweep_shard.num_parts}" if request.sweep_shard else ""
    stem = slug(f"sweep {config_in_name(request.arms[0], request.output).workload} {axes}{part}")
    run_job(with_fresh_rounds(request), ResumableJobSpec(resumable_journal(stem, "sweep")))


def with_fresh_rounds(request: Request) -> Request:
    """The request with every round trained from scratch, unless an arm says otherwise."""
    arms = [msgspec.structs.replace(arm, fresh=True) if arm.fresh is None else arm for arm in request.arms]
    return msgspec.structs.replace(request, arms=arms)
