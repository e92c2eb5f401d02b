"""What holds the data pipeline of one training back, as a recipe."""

from __future__ import annotations

import os
from typing import NoReturn

from ddpbench.bench.cells import request_of
from ddpbench.bench.diagnose.control_runs import trainings, with_a_loader
from ddpbench.bench.diagnose.recipe import DiagnoseRecipe
from ddpbench.bench.journal import Journal, new_job, reserve_now
from ddpbench.bench.runner import carry_out
from ddpbench.distributed.exit_status import OUTCOME_VARIABLE, refuse
from ddpbench.machine.rank_env import take_seat
from ddpbench.machine.stderr import print_note
from ddpbench.record.config import Config
from ddpbench.record.diagnosis import Diagnosis
from ddpbench.record.errors import BenchError, UsageError
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Record, slug
from ddpbench.record.request import Proving, Request

PROVING = Proving()


def diagnose(request: Request, proving: Proving = PROVING) -> NoReturn:
    """Diagnoses the one training of the request on this rank, and ends the process with the exit code."""
    try:
        seat, real = take_seat(), with_a_loader(request.arms[0])
        if proving.apply:
            refuse_ranks_of_others()
        cells, left_out = trainings(real, seat.world_size)
    except BenchError as error:
        refuse(error)
    if seat.speaks:
        note_another_loader(request.arms[0], real)

    def open_journal(asked: Request, records: list[Record]) -> Journal:
        job = new_job(asked, records)
        job.kind, job.diagnosis = "diagnose", Diagnosis(loader=real.loader or "", left_out=left_out)
        return Journal(job, reserve_now(asked, slug(f"diagnose {real.workload} {real.precision} {real.loader}")))

    carry_out(
        request_of(cells, {}, request.output, request.command),
        DiagnoseRecipe(open_journal, real.time_limit, [cell.label for cell in cells], proving.verify),
    )


def refuse_ranks_of_others() -> None:
    """Raises UsageError where nobody of ours starts the ranks: those of a launcher end with what they were started for."""
    if OUTCOME_VARIABLE not in os.environ:
        raise UsageError("--apply starts a second run, and here the ranks are the launcher's", "--gpus N, and no torchrun")


def note_another_loader(asked: Config, real: Config) -> None:
    """Says that there was no loader to diagnose, and which is looked at in its stead."""
    if real.loader == "torch" and asked.loader in (None, SYNTHETIC) and not asked.data_dir:
        print_note(f"synthetic data need no loader; this is the loader {real.loader}. Yours: --loader NAME, --data-dir DIR")
