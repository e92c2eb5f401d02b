"""One command that measures arms: prepare, train and measure, record after every round, judge, report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from ddpbench.bench.allowance import Allowance
from ddpbench.bench.earlier import Earlier
from ddpbench.bench.early import early_words
from ddpbench.bench.failure import Ending
from ddpbench.bench.gate import past_the_gate
from ddpbench.bench.ground import Ground
from ddpbench.bench.job_spec import Recipe
from ddpbench.bench.journal import Journal, print_and_write
from ddpbench.bench.lineup import line_up
from ddpbench.bench.pace import Pace
from ddpbench.bench.preflight import MEETING_PATIENCE, new_record, prepare
from ddpbench.bench.round_log import labels_of, named, note
from ddpbench.bench.scheduler import interleave
from ddpbench.bench.since import began
from ddpbench.bench.to_do import ToDo
from ddpbench.bench.transport import Travel
from ddpbench.distributed.exit_status import leave_outcome, refuse
from ddpbench.distributed.rank_store import Blame
from ddpbench.distributed.world import World
from ddpbench.machine.gc_control import spare_the_collector_all_modules
from ddpbench.machine.peaks import matmul_tflops
from ddpbench.machine.progress_marker import Pulse
from ddpbench.machine.stderr import print_error, print_note
from ddpbench.record.errors import BenchError, DoesNotFit, Exit
from ddpbench.record.progress import Progress, Silent
from ddpbench.record.record import Ceilings, Fault, Job, Record
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.request import Request
from ddpbench.report.pages.arms import arm_name
from ddpbench.report.progress import listener


def carry_out(request: Request, recipe: Recipe) -> NoReturn:
    """Carries the request out on this rank, and ends the process with the exit code."""
    try:
        arms, world, made_s = prepare(request)
        records = [
            new_record(asked, config, recipe.among(label, world.on(config.device)), label)
            for asked, config, label in zip(request.arms, arms, labels_of(request), strict=True)
        ]
        journal = journal_of(request, recipe, world, records)
    except BenchError as error:
        refuse(error)
    for words in early_words(world, records[0]) if journal else ():
        print_note(words)
    progress = listener(sys.stderr) if journal and not request.output.quiet else Silent()
    pulse = Pulse(MEETING_PATIENCE * request.arms[0].hang_timeout)
    goes_on = recipe.continued and len(arms) > 1
    ending = Ending(world, pulse, journal, show=lambda: show(request, recipe, journal, progress), goes_on=goes_on)
    ending.watch()
    try:
        measure(request, recipe, Ground(arms, world, pulse, journal, progress, began() + made_s))
        pulse.enter("saying goodbye")
        world.barrier()
    except BaseException as problem:
        progress.close()
        ending.on_exception(problem)
    if journal is None:
        ending.leave(Exit.OK)
    journal.close("ok")
    show(request, recipe, journal, progress)
    code, short = verdict_on(recipe.answers(journal.job.records), journal)
    if short:
        print_error(short)
    leave_outcome(world.seat, short, code, journal.path)
    ending.leave(code)


def journal_of(request: Request, recipe: Recipe, world: World, records: list[Record]) -> Journal | None:
    """On rank 0 the journal; every rank returns when it is open. Raises why it cannot be, which rank 0 tells, and the others need not."""
    if not world.seat.speaks:
        world.board.wait_for("record", request.arms[0].hang_timeout)  # rank 0 pins it when it has one, and is watched over
        return None
    try:
        return recipe.open_journal(request, records)
    except BenchError as error:
        world.board.blame(Blame(error.status, Fault(message=error.message, hint=error.hint)))
        raise


def measure(request: Request, recipe: Recipe, ground: Ground) -> None:
    """Every round of every arm, interleaved; the record is on disk after each."""
    travel, earlier = meet(ground)
    to_do = ToDo(ground.configs, earlier)
    if not to_do.arms:
        return
    pace = Pace()
    spare_the_collector_all_modules()
    recipe.before_rounds(ground)
    end_s = recipe.rounds_end_s(request.arms[0].time_limit, pace.spent_s)
    ceilings = measure_ceilings(ground)
    ground.progress.stage("warming up")
    briefs = [recipe.brief(label) for label in labels_of(request)]
    allowance = Allowance(end_s, pace, ground.world, briefs)
    arms = line_up(request, recipe, ground, earlier, briefs)
    if len(arms) > 1:
        pace.rounds_begin({index: brief.first_round_s for index, brief in enumerate(briefs) if brief})
    at_once = {index: brief.at_once for index, brief in enumerate(briefs) if brief}
    for index, measured in interleave(arms, allowance.has_time_for, at_once, recipe.even):
        pace.round_ended(index)
        travel.learn(index)
        to_do.round_ended(index, arms[index].over)
        if ground.journal and measured is not None:
            text = named(request, ground.configs, index, note(ground.journal, index, arms[index], measured, ceilings))
            left_s = pace.seconds_left_until(end_s, to_do.arms)
            ground.progress.round_done(to_do.done, to_do.total, text, None if left_s is None else left_s + recipe.after_rounds_s())
    recipe.after_rounds(ground, arms)
    for arm in arms:
        arm.leave()


def meet(ground: Ground) -> tuple[Travel, list[Earlier]]:
    """Joins the process group; returns what is heard of its transport, and what rank 0 knows of each arm from before."""
    world, pulse, journal = ground.world, ground.pulse, ground.journal
    if journal:
        world.board.pin("earlier", msgspec.json.encode([Earlier.of(record) for record in journal.job.records]).decode())
    travel = Travel(world, pulse, journal)
    pulse.enter("joining the process group")
    with travel.listening():
        world.join()
    world.barrier()  # rank 0 has told where the record is and what it holds, and every rank is watched over
    return travel, msgspec.json.decode(world.board.read("earlier") or "[]", type=list[Earlier])


def measure_ceilings(ground: Ground) -> Ceilings:
    """The matrix product of every dtype that an arm computes in; the least over ranks. Nothing on a CPU."""
    world = ground.world
    if not world.device.cuda:
        return Ceilings()
    ground.begin("measuring ceilings", "measuring the ceilings of this GPU")
    dtypes = sorted({PRECISIONS[config.precision].compute_dtype for config in ground.configs})
    reached = {dtype: world.least(matmul_tflops(world.device, dtype)) for dtype in dtypes}
    world.device.release()
    return Ceilings(matmul_tflops=reached)


def show(request: Request, recipe: Recipe, journal: Journal | None, progress: Progress) -> None:
    """The report, where this rank has a journal."""
    if journal is None:
        return
    progress.close()
    journal.unsaved = print_and_write(journal.job, journal.path, request.output, recipe.render, journal.unsaved)


def verdict_on(records: Sequence[Record], journal: Journal) -> tuple[int, BenchError | None]:
    """The exit code, and what is still to be said of it.

    0; 1 where the only record is invalid or the file is not on disk; 2 where none fits into memory;
    3 where ``--strict`` meets a check that warns or blocks;
    4 where ``--fail-if-data-wait`` meets one that waited longer.
    """
    if journal.unsaved:
        return Exit.FAILED, None
    if all(record.out_of_memory and not record.rounds for record in records):
        too_large = nothing_fits(records, journal.job)
        return too_large.exit_code, too_large
    if records[0].config.strict and any(check.effect in ("blocks", "warns") for record in records for check in record.checks):
        return Exit.NOT_TRUSTWORTHY, None
    if short := past_the_gate(records, journal.job):
        return short.exit_code, short
    alone = len(records) == 1 and journal.job.share is None
    return Exit.FAILED if alone and records[0].status != "ok" else Exit.OK, None


def nothing_fits(records: Sequence[Record], job: Job) -> DoesNotFit:
    """Says so of the smallest batch."""
    smallest = min(records, key=lambda record: record.config.batch_size)
    assert smallest.fault is not None, "out of memory"
    which = f"none of {len(records)} cells fits, nor the smallest, {arm_name(smallest.config, job.swept)}: " if len(records) > 1 else ""
    return DoesNotFit(f"{which}{smallest.fault.message}", smallest.fault.hint)
