"""How one training scales, as a recipe."""

from __future__ import annotations

from typing import NoReturn

from ddpbench.bench.cells import build_request
from ddpbench.bench.journal import Journal, new_job, reserve_timestamped_path
from ddpbench.bench.resolve import default_batch_size
from ddpbench.bench.runner import run_job
from ddpbench.bench.scaling.ladder import check_can_scale, rank_ladder, scaling_arms
from ddpbench.bench.scaling.recipe import ScaleJobSpec
from ddpbench.distributed.exit_status import exit_with_error
from ddpbench.machine.rank_env import from_env
from ddpbench.record.errors import BenchError
from ddpbench.record.record import Record, slug
from ddpbench.record.request import Request
from ddpbench.record.scaling import Scaling


def run_scaling(request: Request, strong: bool) -> NoReturn:
    """Measures the one training of the request on 1, 2, 4 ... ranks of this launch, and ends the process with the exit code."""
    try:
        seat, asked = from_env(), request.arms[0]
        check_can_scale(asked, seat)
        rungs = rank_ladder(seat.world_size, seat.local_world_size)
        cells, ranks, left_out = scaling_arms(asked, rungs, (asked.batch_size or default_batch_size(asked)) if strong else None)
    except BenchError as error:
        exit_with_error(error)

    def open_journal(asked_for: Request, records: list[Record]) -> Journal:
        job = new_job(asked_for, records)
        job.kind, job.scaling = "scale", Scaling(world_sizes=rungs, strong_scaling=strong, skip_reasons=left_out)
        return Journal(
            job, reserve_timestamped_path(asked_for, slug(f"scale {asked.workload} {asked.precision}{' strong' if strong else ''}"))
        )

    run_job(
        build_request(cells, {}, request.output, request.command),
        ScaleJobSpec(open_journal, asked.time_limit, asked.rounds, ranks),
    )
