"""How one training scales, as a recipe."""

from __future__ import annotations

from typing import NoReturn

from ddpbench.bench.cells import request_of
from ddpbench.bench.journal import Journal, new_job, reserve_now
from ddpbench.bench.resolve import default_batch
from ddpbench.bench.runner import carry_out
from ddpbench.bench.scaling.ladder import ladder, refuse_no_ladder, trainings
from ddpbench.bench.scaling.recipe import ScaleRecipe
from ddpbench.distributed.exit_status import refuse
from ddpbench.machine.rank_env import take_seat
from ddpbench.record.errors import BenchError
from ddpbench.record.record import Record, slug
from ddpbench.record.request import Request
from ddpbench.record.scaling import Scaling


def scale(request: Request, strong: bool) -> NoReturn:
    """Measures the one training of the request on 1, 2, 4 ... ranks of this launch, and ends the process with the exit code."""
    try:
        seat, asked = take_seat(), request.arms[0]
        refuse_no_ladder(asked, seat)
        rungs = ladder(seat.world_size, seat.local_world_size)
        cells, ranks, left_out = trainings(asked, rungs, (asked.batch_size or default_batch(asked)) if strong else None)
    except BenchError as error:
        refuse(error)

    def open_journal(asked_for: Request, records: list[Record]) -> Journal:
        job = new_job(asked_for, records)
        job.kind, job.scaling = "scale", Scaling(ladder=rungs, strong=strong, left_out=left_out)
        return Journal(job, reserve_now(asked_for, slug(f"scale {asked.workload} {asked.precision}{' strong' if strong else ''}")))

    carry_out(
        request_of(cells, {}, request.output, request.command),
        ScaleRecipe(open_journal, asked.time_limit, asked.rounds, ranks),
    )
