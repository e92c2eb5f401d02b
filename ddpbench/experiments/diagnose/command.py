"""What holds the data pipeline of one training back, as a recipe."""

from __future__ import annotations

from ddpbench.experiments.cells import request_of
from ddpbench.experiments.diagnose.apply import refuse_ranks_of_others, run_the_winner
from ddpbench.experiments.diagnose.course import Course
from ddpbench.experiments.diagnose.trainings import trainings, with_a_loader
from ddpbench.experiments.job import carry_out
from ddpbench.experiments.journal import Journal, new_job, reserve_now
from ddpbench.experiments.launches import start_one
from ddpbench.machine.say import print_note, refuse
from ddpbench.machine.seat import take_seat
from ddpbench.record.config import Config
from ddpbench.record.diagnosis import Diagnosis
from ddpbench.record.errors import BenchError, Exit
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Record, slug
from ddpbench.record.request import Proving, Request

PROVING = Proving()


def diagnose(request: Request, proving: Proving = PROVING) -> int:
    """Diagnoses the one training of the request on this rank, or starts the ranks that it asks for; returns the exit code."""
    try:
        seat, real = take_seat(), with_a_loader(request.arms[0])
        if proving.apply:
            refuse_ranks_of_others(request)
        cells, left_out = trainings(real, seat.world_size)
    except BenchError as error:
        refuse(error)
    if request.output.gpus:
        ended = start_one(request)
        return run_the_winner(request, ended.record) if proving.apply and ended.exit_code == Exit.OK else ended.exit_code
    if seat.speaks:
        note_another_loader(request.arms[0], real)

    def open_journal(asked: Request, records: list[Record]) -> Journal:
        job = new_job(asked, records)
        job.kind, job.diagnosis = "diagnose", Diagnosis(loader=real.loader or "", left_out=left_out)
        return Journal(job, reserve_now(asked, slug(f"diagnose {real.workload} {real.precision} {real.loader}")))

    return carry_out(
        request_of(cells, {}, request.output, request.command),
        Course(open_journal, real.time_limit, [cell.label for cell in cells], proving.verify),
    )


def note_another_loader(asked: Config, real: Config) -> None:
    """Says that there was no loader to diagnose, and which is looked at in its stead."""
    if real.loader == "torch" and asked.loader in (None, SYNTHETIC) and not asked.data_dir:
        print_note(f"synthetic data need no loader; this is the loader {real.loader}. Yours: --loader NAME, --data-dir DIR")
