"""The arms of a job, each on its own terms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ddpbench.bench.arm import Arm
from ddpbench.bench.earlier import ResumeState
from ddpbench.bench.ground import JobContext
from ddpbench.bench.job_spec import JobSpec
from ddpbench.bench.round_log import arm_labels, with_arm_name
from ddpbench.bench.round_plan import RoundPlan
from ddpbench.bench.terms import ArmOptions
from ddpbench.distributed.world import World
from ddpbench.record.request import Request


def build_arms(
    request: Request, spec: JobSpec, context: JobContext, resume_states: Sequence[ResumeState], round_plans: Sequence[RoundPlan | None]
) -> list[Arm]:
    """Every arm of the request, in its order."""
    arms = []
    for index, (config, label) in enumerate(zip(context.configs, arm_labels(request), strict=True)):
        terms = ArmOptions(
            num_arms=request.total_arms,
            index=index,
            resume_state=resume_states[index],
            loader_factory=spec.loader_factory(label),
            round_plan=round_plans[index],
            leftover_factory=spec.leftover_factory(label),
            report=partial(report_stage, request, context, index) if context.journal else None,
            trace_file=profiler_trace_path(request, context.world, index),
        )
        world = spec.ranks_for(label, context.world.for_device(config.device))
        arms.append(spec.make_arm(label, config, world, context.marker, terms))
    return arms


def report_stage(request: Request, context: JobContext, index: int, text: str) -> None:
    """Reports where arm ``index`` is within a round."""
    context.progress.stage(with_arm_name(request, context.configs, index, text))


def profiler_trace_path(request: Request, world: World, index: int) -> Path | None:
    """Where this rank keeps the profiler's trace of one arm, beside the record; ``None`` without ``--profile``."""
    if not request.arms[0].profile:
        return None
    record = Path(world.store.try_get("record") or "")
    arm = f"-arm{index}" if request.swept else ""
    return record.with_name(f"{record.stem}{arm}-rank{world.rank}.trace.json")
