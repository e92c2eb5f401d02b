"""The main job: train on every rank, measure, record after every round, judge, report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ddpbench.experiments.arms import Arm, enter_alone, interleave
from ddpbench.experiments.ending import Ending
from ddpbench.experiments.journal import Journal, write_json
from ddpbench.experiments.launches import start_launches
from ddpbench.experiments.pace import Pace
from ddpbench.experiments.prepare import MEETING_PATIENCE, new_record, prepare
from ddpbench.machine.ceilings import matmul_tflops
from ddpbench.machine.pulse import Pulse
from ddpbench.machine.say import leave_outcome, print_error, refuse
from ddpbench.machine.world import World
from ddpbench.record.catalogue import PRECISIONS
from ddpbench.record.config import Config
from ddpbench.record.errors import BenchError, DoesNotFit, Exit
from ddpbench.record.progress import Progress, Silent
from ddpbench.record.record import Ceilings, LaunchGap
from ddpbench.record.request import Request
from ddpbench.report.arms import arm_name
from ddpbench.report.console import make_console
from ddpbench.report.figures import about
from ddpbench.report.progress import listener
from ddpbench.report.terminal import render


def run(request: Request) -> int:
    """Runs the request on this rank, or starts the ranks that it asks for; returns the exit code."""
    if request.output.gpus or request.arms[0].launches > 1:
        return start_launches(request)
    try:
        arms, world = prepare(request)
        records = [new_record(asked, config, world) for asked, config in zip(request.arms, arms, strict=True)]
        journal = Journal(request, records) if world.seat.speaks else None
    except BenchError as error:
        refuse(error)
    progress = listener(sys.stderr) if journal and not request.output.quiet else Silent()
    pulse = Pulse(MEETING_PATIENCE * request.arms[0].hang_timeout)
    ending = Ending(world, pulse, journal, show=lambda: show(request, journal, progress))
    ending.watch()
    try:
        train_all(request, arms, world, pulse, journal, progress)
        pulse.enter("saying goodbye")
        world.barrier()
    except BaseException as problem:
        progress.close()
        ending.on_exception(problem)
    if journal is None:
        ending.leave(Exit.OK)
    journal.close("ok")
    show(request, journal, progress)
    code = exit_code(request, journal)
    leave_outcome(world.seat, None, code, journal.path)
    ending.leave(code)


def train_all(request: Request, configs: Sequence[Config], world: World, pulse: Pulse, journal: Journal | None, progress: Progress) -> None:
    """Every round of every arm, interleaved; the record is on disk after each."""
    pulse.enter("joining the process group")
    world.join()
    world.barrier()  # rank 0 has told where the record is, and every rank is watched over
    pace, total = Pace(), len(request.arms) * request.arms[0].rounds

    def in_time() -> bool:
        """Whether one more round of the usual length ends before ``--time-limit``."""
        limit_s = request.arms[0].time_limit
        return limit_s is None or world.most(pace.end_of_next_s()) <= limit_s

    ceilings = measure_ceilings(configs, world, pulse, progress)
    progress.stage("warming up")
    arms = [Arm(config, len(configs), world, pulse, trace_file(request, world, index)) for index, config in enumerate(configs)]
    for done, (index, measured) in enumerate(interleave(arms, request.arms[0].rounds, in_time), 1):
        pace.round_ended()
        if journal is None or measured is None:
            continue
        arm = arms[index]
        if isinstance(measured, DoesNotFit):
            journal.drop(index, measured)
            text = measured.message
        else:
            known = {"data": arm.data, "attestation": arm.attestation, "preparation": arm.preparation, "ceilings": ceilings}
            journal.add(index, measured, **known)
            text = f"{about(measured.images_per_s, 4)} images/s"
        if request.swept:
            text = f"{arm_name(arm.config, request.swept)}: {text}"
        progress.round_done(done, total, text, pace.seconds_left(total - done))
    if len(arms) == 1 or request.arms[0].profile:
        look_inside(arms, journal, progress)
    for arm in arms:
        arm.leave()


def look_inside(arms: Sequence[Arm], journal: Journal | None, progress: Progress) -> None:
    """The profiler's window of each arm, one arm on the device at a time."""
    for index, arm in enumerate(arms):
        if not arm.can_look_inside:
            continue
        progress.stage("looking inside a step")
        enter_alone(arm, arms)
        kernels = arm.look_inside()
        if journal and kernels and (rounds := journal.job.records[index].rounds):
            last = rounds[-1]
            journal.job.records[index].launch_gap = LaunchGap(step_ms=1e3 * last.wall_s / last.traces[0].steps, kernel_ms=kernels)


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


def show(request: Request, journal: Journal | None, progress: Progress) -> None:
    """The report, on stdout unless the record goes there."""
    if journal is None:
        return
    progress.close()
    output = request.output
    console = make_console(sys.stderr if output.json == "-" else sys.stdout)
    render(journal.job, console, journal.path, verbose=output.verbose, quiet=output.quiet)
    try:
        if output.json:
            write_json(journal.job, output.json, output.force)
    except OSError as problem:
        journal.unsaved = f"cannot save {output.json}: {problem.strerror}"
    if journal.unsaved:
        print_error(BenchError(journal.unsaved, "the figures above are whole; free some space and run again to keep them"))


def exit_code(request: Request, journal: Journal) -> int:
    """0; 1 where the only arm is invalid or the record is not on disk; 3 where ``--strict`` meets a check that warns or blocks."""
    records = journal.job.records
    if journal.unsaved:
        return Exit.FAILED
    strict = any(check.effect in ("blocks", "warns") for record in records for check in record.checks)
    if request.arms[0].strict and strict:
        return Exit.NOT_TRUSTWORTHY
    return Exit.FAILED if len(records) == 1 and records[0].status != "ok" else Exit.OK
