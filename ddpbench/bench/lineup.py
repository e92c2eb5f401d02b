"""The arms of a job, each on its own terms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ddpbench.bench.arm import Arm
from ddpbench.bench.earlier import Earlier
from ddpbench.bench.ground import Ground
from ddpbench.bench.job_spec import Recipe
from ddpbench.bench.round_log import labels_of, named
from ddpbench.bench.round_plan import Brief
from ddpbench.bench.terms import Terms
from ddpbench.distributed.world import World
from ddpbench.record.request import Request


def line_up(request: Request, recipe: Recipe, ground: Ground, earlier: Sequence[Earlier], briefs: Sequence[Brief | None]) -> list[Arm]:
    """Every arm of the request, in its order."""
    arms = []
    for index, (config, label) in enumerate(zip(ground.configs, labels_of(request), strict=True)):
        terms = Terms(
            arms=request.cells,
            index=index,
            earlier=earlier[index],
            opener=recipe.opener(label),
            brief=briefs[index],
            beside=recipe.beside(label),
            report=partial(report_stage, request, ground, index) if ground.journal else None,
            trace_file=trace_file(request, ground.world, index),
        )
        world = recipe.among(label, ground.world.on(config.device))
        arms.append(recipe.arm(label, config, world, ground.pulse, terms))
    return arms


def report_stage(request: Request, ground: Ground, index: int, text: str) -> None:
    """Reports where arm ``index`` is within a round."""
    ground.progress.stage(named(request, ground.configs, index, text))


def trace_file(request: Request, world: World, index: int) -> Path | None:
    """Where this rank keeps the profiler's trace of one arm, beside the record; ``None`` without ``--profile``."""
    if not request.arms[0].profile:
        return None
    record = Path(world.board.read("record") or "")
    arm = f"-arm{index}" if request.swept else ""
    return record.with_name(f"{record.stem}{arm}-rank{world.rank}.trace.json")
