"""One command that measures arms: prepare, train and measure, record after every round, judge, report."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ddpbench.experiments.arms import Arm, Earlier, interleave, schedule
from ddpbench.experiments.ending import Ending
from ddpbench.experiments.journal import Journal, print_and_write
from ddpbench.experiments.launches import start_launches
from ddpbench.experiments.pace import Pace
from ddpbench.experiments.prepare import MEETING_PATIENCE, new_record, prepare
from ddpbench.experiments.trial import TRIAL
from ddpbench.machine.ceilings import matmul_tflops
from ddpbench.machine.device import Device
from ddpbench.machine.pulse import Pulse
from ddpbench.machine.say import leave_outcome, refuse
from ddpbench.machine.world import World
from ddpbench.record.catalogue import PRECISIONS
from ddpbench.record.config import Config
from ddpbench.record.errors import BenchError, DoesNotFit, Exit
from ddpbench.record.progress import Progress, Silent
from ddpbench.record.record import Ceilings, Record, Round
from ddpbench.record.request import Request
from ddpbench.report.arms import arm_name
from ddpbench.report.figures import about
from ddpbench.report.header import rate
from ddpbench.report.pages import Render
from ddpbench.report.progress import listener


@dataclass(frozen=True)
class Recipe:
    """What sets one command that measures arms apart from another."""

    open_journal: Callable[[Request, list[Record]], Journal]
    render: Render
    after_rounds: Callable[[Sequence[Arm], Journal | None, Progress], None] = lambda *_: None
    beside: Callable[[str], Callable[[Device], object] | None] = lambda label: None


def carry_out(request: Request, recipe: Recipe) -> int:
    """Carries the request out on this rank, or starts the ranks that it asks for; returns the exit code."""
    if request.output.gpus or request.arms[0].launches > 1:
        return start_launches(request)
    try:
        arms, world = prepare(request)
        records = [new_record(asked, config, world.on(config.device)) for asked, config in zip(request.arms, arms, strict=True)]
        for record, label in zip(records, request.labels, strict=False):
            record.label = label
        journal = recipe.open_journal(request, records) if world.seat.speaks else None
    except BenchError as error:
        refuse(error)
    progress = listener(sys.stderr) if journal and not request.output.quiet else Silent()
    pulse = Pulse(MEETING_PATIENCE * request.arms[0].hang_timeout)
    ending = Ending(world, pulse, journal, show=lambda: show(request, recipe, journal, progress))
    ending.watch()
    try:
        measure(request, recipe, arms, world, pulse, journal, progress)
        pulse.enter("saying goodbye")
        world.barrier()
    except BaseException as problem:
        progress.close()
        ending.on_exception(problem)
    if journal is None:
        ending.leave(Exit.OK)
    journal.close("ok")
    show(request, recipe, journal, progress)
    code = exit_code(request, journal)
    leave_outcome(world.seat, None, code, journal.path)
    ending.leave(code)


def measure(
    request: Request, recipe: Recipe, configs: Sequence[Config], world: World, pulse: Pulse, journal: Journal | None, progress: Progress
) -> None:
    """Every round of every arm, interleaved; the record is on disk after each."""
    if journal:
        world.board.pin("earlier", msgspec.json.encode([Earlier.of(record) for record in journal.job.records]).decode())
    pulse.enter("joining the process group")
    world.join()
    world.barrier()  # rank 0 has told where the record is and what it holds, and every rank is watched over
    earlier = msgspec.json.decode(world.board.read("earlier") or "[]", type=list[Earlier])
    rounds = [config.rounds for config in configs]
    to_do = [index for index, turn in schedule(rounds) if earlier[index].lacks(turn)]
    if not to_do:
        return
    pace, total = Pace(), sum(rounds)

    def in_time(index: int) -> bool:
        """Whether one more round of that arm, of its usual length, ends before ``--time-limit``."""
        limit_s = request.arms[0].time_limit
        return limit_s is None or world.most(pace.end_of_next_s(index)) <= limit_s

    gc.collect()
    gc.freeze()  # modules never become garbage, and every collection would look through all of them
    ceilings = measure_ceilings(configs, world, pulse, progress)
    progress.stage("warming up")
    arms = [
        Arm(
            config,
            len(configs),
            world.on(config.device),
            pulse,
            trace_file(request, world, index),
            earlier[index],
            recipe.beside(label),
        )
        for index, (config, label) in enumerate(zip(configs, request.labels or [""] * len(configs), strict=True))
    ]
    for index, measured in interleave(arms, in_time):
        pace.round_ended(index)
        to_do.remove(index)
        if arms[index].over:
            to_do = [other for other in to_do if other != index]
        if journal is None or measured is None:
            continue
        text = note(journal, index, arms[index], measured, ceilings)
        if len(arms) > 1:
            label = journal.job.records[index].label
            text = f"{arm_name(arms[index].config, request.swept)}{f' ({label})' if label else ''}: {text}"
        progress.round_done(total - len(to_do), total, text, pace.seconds_left(to_do))
    recipe.after_rounds(arms, journal, progress)
    for arm in arms:
        arm.leave()


def note(journal: Journal, index: int, arm: Arm, measured: Round | DoesNotFit, ceilings: Ceilings) -> str:
    """Takes down what a turn gave, a round or the reason why there is none; returns it in words."""
    if isinstance(measured, DoesNotFit):
        journal.drop(index, measured, TRIAL)
        return measured.message
    learned = {"data": arm.data, "attestation": arm.attestation, "preparation": arm.preparation, "ceilings": ceilings}
    journal.add(index, measured, **{name: value for name, value in learned.items() if value is not None})
    return f"{about(measured.images_per_s, 4)} {rate(journal.job.records[index])}"


def measure_ceilings(arms: Sequence[Config], world: World, pulse: Pulse, progress: Progress) -> Ceilings:
    """The matrix product of every dtype that an arm computes in; the least over ranks. Nothing on a CPU."""
    if not world.device.cuda:
        return Ceilings()
    pulse.enter("measuring ceilings")
    progress.stage("measuring the ceilings of this GPU")
    dtypes = sorted({PRECISIONS[config.precision].compute_dtype for config in arms})
    reached = {dtype: -world.most(-matmul_tflops(world.device, dtype)) for dtype in dtypes}
    world.device.release()
    return Ceilings(matmul_tflops=reached)


def trace_file(request: Request, world: World, index: int) -> Path | None:
    """Where this rank keeps the profiler's trace of one arm, beside the record; ``None`` without ``--profile``."""
    if not request.arms[0].profile:
        return None
    record = Path(world.board.read("record") or "")
    arm = f"-arm{index}" if request.swept else ""
    return record.with_name(f"{record.stem}{arm}-rank{world.rank}.trace.json")


def show(request: Request, recipe: Recipe, journal: Journal | None, progress: Progress) -> None:
    """The report, where this rank has a journal."""
    if journal is None:
        return
    progress.close()
    journal.unsaved = print_and_write(journal.job, journal.path, request.output, recipe.render, journal.unsaved)


def exit_code(request: Request, journal: Journal) -> int:
    """0; 1 where the only arm is invalid or the record is not on disk; 3 where ``--strict`` meets a check that warns or blocks."""
    records = journal.job.records
    if journal.unsaved:
        return Exit.FAILED
    strict = any(check.effect in ("blocks", "warns") for record in records for check in record.checks)
    if request.arms[0].strict and strict:
        return Exit.NOT_TRUSTWORTHY
    return Exit.FAILED if len(records) == 1 and records[0].status != "ok" else Exit.OK
