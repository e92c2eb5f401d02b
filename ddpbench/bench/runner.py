"""Runs a job: prepares, trains the arms in turn, records every round, analyses, reports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec

from ddpbench.bench.after_first_step import AfterFirstStep
from ddpbench.bench.arm import Arm, ArmOptions
from ddpbench.bench.failure import FailureMonitor
from ddpbench.bench.gate import gate_error
from ddpbench.bench.job_spec import JobContext, JobSpec
from ddpbench.bench.journal import Journal, print_and_write_json
from ddpbench.bench.preflight import RENDEZVOUS_TIMEOUT_FACTOR, new_record, prepare_job, startup_warnings
from ddpbench.bench.progress_text import log_round, with_arm_name
from ddpbench.bench.resume import ResumeState
from ddpbench.bench.round_plan import RoundPlan
from ddpbench.bench.scheduler import RoundQueue, interleave
from ddpbench.bench.time_budget import RoundDeadline, RoundTimer
from ddpbench.bench.transport import TransportProbe
from ddpbench.distributed.exit_status import exit_with_error, write_exit_status
from ddpbench.distributed.rank_store import FailureReport
from ddpbench.distributed.world import World
from ddpbench.machine.garbage import gc_freeze
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.machine.start_time import command_start
from ddpbench.machine.streams import print_error, print_note
from ddpbench.record.errors import BenchError, ExitCode, OutOfMemory
from ddpbench.record.record import Fault, Job, Record
from ddpbench.record.request import Request
from ddpbench.report.messages.arms import arm_name
from ddpbench.report.progress import NullProgress, Progress, format_time_left, make_progress


def run_job(request: Request, spec: JobSpec) -> NoReturn:
    """Run the request on this rank, then exit the process with the exit code."""
    try:
        arms, world, generated_s = prepare_job(request)
        records = [
            new_record(requested, config, spec.ranks_for(role, world.for_device(config.device)), role)
            for requested, config, role in zip(request.arms, arms, request.arm_roles, strict=True)
        ]
        journal = open_job_journal(request, spec, world, records)
    except BenchError as error:
        exit_with_error(error)
    for warning in startup_warnings(world, records) if journal else ():
        print_note(warning)
    progress = make_progress(sys.stderr) if journal and not request.output.quiet else NullProgress()
    marker = ProgressMarker(RENDEZVOUS_TIMEOUT_FACTOR * request.arms[0].hang_timeout)
    resumable = spec.resumable and len(arms) > 1
    monitor = FailureMonitor(world, marker, journal, show=lambda: print_report(request, spec, journal, progress), resumable=resumable)
    monitor.start()
    try:
        run_rounds(request, spec, JobContext(arms, world, marker, journal, progress, command_start() + generated_s))
        marker.enter("final barrier")
        world.barrier()
    except BaseException as problem:
        progress.close()
        monitor.on_exception(problem)
    if journal is None:
        monitor.exit(ExitCode.OK)
    journal.close("ok")
    print_report(request, spec, journal, progress)
    code, final_error = decide_exit_code(spec.graded_records(journal.job.records), journal)
    if final_error:
        print_error(final_error)
    write_exit_status(world.rank_env, final_error, code, journal.path)
    monitor.exit(code)


def open_job_journal(request: Request, spec: JobSpec, world: World, records: list[Record]) -> Journal | None:
    """Open the journal on rank 0; the other ranks wait until it is open. Raises why it cannot be opened, which rank 0 reports to all."""
    if not world.rank_env.is_rank0:
        world.store.wait_for_key("record", request.arms[0].hang_timeout)  # rank 0 sets it once its journal is open and monitored
        return None
    try:
        return spec.open_journal(request, records)
    except BenchError as error:
        world.store.report_failure(FailureReport(error.status, Fault(message=error.message, hint=error.hint)))
        raise


def run_rounds(request: Request, spec: JobSpec, context: JobContext) -> None:
    """Run all rounds of all arms, interleaved; the record is saved after each."""
    transport_probe, resume_states = join_process_group(context)
    queue = RoundQueue(context.configs, resume_states)
    if not queue.pending_arms:
        return
    timer = RoundTimer()
    gc_freeze()
    spec.before_rounds(context)
    end_s = spec.rounds_end_s(request.arms[0].time_limit, timer.elapsed_s)
    context.progress.stage("starting: model, loader and first step")
    round_plans = [spec.round_plan(role) for role in request.arm_roles]
    deadline = RoundDeadline(end_s, timer, context.world, round_plans)
    arms = build_arms(request, spec, context, resume_states, round_plans, AfterFirstStep(context, timer))
    if len(arms) > 1:
        timer.start_rounds({index: round_plan.first_round_s for index, round_plan in enumerate(round_plans) if round_plan})
    first_turn_rounds = {index: round_plan.first_turn_rounds for index, round_plan in enumerate(round_plans) if round_plan}
    for index, measured in interleave(arms, deadline.has_time_for, first_turn_rounds, spec.equal_rounds):
        timer.round_ended(index)
        transport_probe.probe(index)
        queue.round_ended(index, arms[index].is_finished)
        if context.journal and measured is not None:
            text = with_arm_name(request, context.configs, index, log_round(context.journal, index, arms[index], measured))
            time_left = time_left_text(timer, queue.pending_arms, end_s, spec.after_rounds_s())
            context.progress.round_done(queue.num_finished, queue.num_total, text, time_left)
    spec.after_rounds(context, arms)
    for arm in arms:
        arm.park()


def time_left_text(timer: RoundTimer, pending: Sequence[int], end_s: float | None, after_s: float) -> str:
    """The time left for ``pending`` rounds and the ``after_s`` seconds behind them, as text.

    Until each arm has had a round without its warm-up, only what ``end_s`` allows is known; nothing without it.
    """
    left_s, limit_s = timer.remaining_s(pending), None if end_s is None else max(0.0, end_s - timer.elapsed_s)
    if left_s is None:
        return "" if limit_s is None else format_time_left(limit_s + after_s, is_limit=True)
    return format_time_left((left_s if limit_s is None else min(left_s, limit_s)) + after_s)


def join_process_group(context: JobContext) -> tuple[TransportProbe, list[ResumeState]]:
    """Join the process group; returns the transport probe and each arm's state from an earlier job, as rank 0 knows it."""
    world, marker, journal = context.world, context.marker, context.journal
    if journal:
        world.store.set("earlier", msgspec.json.encode([ResumeState.from_record(record) for record in journal.job.records]).decode())
    transport_probe = TransportProbe(world, marker, journal)
    marker.enter("joining the process group")
    with transport_probe.capture_nccl_log():
        world.init_process_group()
    world.barrier()  # now the store holds the record's path and the resume states, and every rank is monitored
    return transport_probe, msgspec.json.decode(world.store.try_get("earlier") or "[]", type=list[ResumeState])


def print_report(request: Request, spec: JobSpec, journal: Journal | None, progress: Progress) -> None:
    """Print the report, if this rank has a journal."""
    if journal is None:
        return
    progress.close()
    journal.save_error = print_and_write_json(journal.job, journal.path, request.output, journal.save_error)


def decide_exit_code(records: Sequence[Record], journal: Journal) -> tuple[int, BenchError | None]:
    """The exit code, and an error that is still to be printed.

    0 on success; 1 if the only record is invalid or the file could not be saved; 2 if every arm ran out of memory;
    3 if ``--strict`` is set and a check has severity "warning" or "error";
    4 if an arm waited for data longer than ``--fail-if-data-wait`` allows.
    """
    if journal.save_error:
        return ExitCode.FAILED, None
    if all(record.out_of_memory and not record.rounds for record in records):
        too_large = nothing_fits_error(records, journal.job)
        return too_large.exit_code, too_large
    if records[0].config.strict and any(check.severity in ("error", "warning") for record in records for check in record.checks):
        return ExitCode.NOT_TRUSTWORTHY, None
    if error := gate_error(records, journal.job):
        return error.exit_code, error
    is_single_record = len(records) == 1 and journal.job.sweep_shard is None
    return ExitCode.FAILED if is_single_record and records[0].status != "ok" else ExitCode.OK, None


def nothing_fits_error(records: Sequence[Record], job: Job) -> OutOfMemory:
    """The out-of-memory error of the smallest batch."""
    smallest = min(records, key=lambda record: record.config.batch_size)
    assert smallest.fault is not None, "it ran out of memory"
    name, several = arm_name(smallest.config, job.swept), len(records) > 1
    prefix = f"none of {len(records)} configurations fits in memory, not even {name}: " if several else ""
    return OutOfMemory(f"{prefix}{smallest.fault.message}", smallest.fault.hint)


def build_arms(
    request: Request,
    spec: JobSpec,
    context: JobContext,
    resume_states: Sequence[ResumeState],
    round_plans: Sequence[RoundPlan | None],
    after_first_step: Callable[[], None],
) -> list[Arm]:
    """All arms of the request, in its order."""
    arms = []
    for index, (config, role) in enumerate(zip(context.configs, request.arm_roles, strict=True)):
        world = spec.ranks_for(role, context.world.for_device(config.device))
        options = ArmOptions(
            num_arms=request.total_arms,
            index=index,
            resume_state=resume_states[index],
            loader_factory=spec.loader_factory(role),
            round_plan=round_plans[index],
            leftover_factory=spec.leftover_factory(role),
            report=partial(report_stage, request, context, index) if context.journal else None,
            trace_file=profiler_trace_path(request, context.world, index),
            redact_trace=request.output.redact,
            after_first_step=after_first_step if world.size == context.world.size else None,
        )
        arms.append(spec.make_arm(role, config, world, context.marker, options))
    return arms


def report_stage(request: Request, context: JobContext, index: int, text: str) -> None:
    """Report the current stage of arm ``index`` within a round."""
    context.progress.stage(with_arm_name(request, context.configs, index, text))


def profiler_trace_path(request: Request, world: World, index: int) -> Path | None:
    """This rank's profiler trace file for one arm, in the folder of the record; None without ``--profile``."""
    if not request.arms[0].profile:
        return None
    record = Path(world.store.try_get("record") or "")
    suffix = f"-arm{index}" if request.swept else ""
    return record.with_name(f"{record.stem}{suffix}-rank{world.rank}.trace.json")
