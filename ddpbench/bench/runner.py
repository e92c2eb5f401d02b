"""Runs a job: prepares, trains the arms in turn, records every round, analyses, reports."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec

from ddpbench.bench.arm import Arm, ArmOptions
from ddpbench.bench.failure import FailureMonitor
from ddpbench.bench.gate import gate_error
from ddpbench.bench.job_spec import JobContext, JobSpec
from ddpbench.bench.journal import Journal, print_and_write_json
from ddpbench.bench.launch import command_start
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
from ddpbench.machine.backends import gc_freeze
from ddpbench.machine.peaks import measure_matmul_tflops
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.machine.streams import print_error, print_note
from ddpbench.record.errors import BenchError, ExitCode, OutOfMemory
from ddpbench.record.progress import NullProgress, Progress
from ddpbench.record.record import Fault, Job, PeakThroughput, Record
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.request import Request
from ddpbench.report.pages.arms import arm_name
from ddpbench.report.progress import make_progress


def run_job(request: Request, spec: JobSpec) -> NoReturn:
    """Run the request on this rank, then exit the process with the exit code."""
    try:
        arms, world, made_s = prepare_job(request)
        records = [
            new_record(asked, config, spec.ranks_for(role, world.for_device(config.device)), role)
            for asked, config, role in zip(request.arms, arms, request.arm_roles, strict=True)
        ]
        journal = open_job_journal(request, spec, world, records)
    except BenchError as error:
        exit_with_error(error)
    for words in startup_warnings(world, records[0]) if journal else ():
        print_note(words)
    progress = make_progress(sys.stderr) if journal and not request.output.quiet else NullProgress()
    pulse = ProgressMarker(RENDEZVOUS_TIMEOUT_FACTOR * request.arms[0].hang_timeout)
    goes_on = spec.resumable and len(arms) > 1
    ending = FailureMonitor(world, pulse, journal, show=lambda: print_report(request, spec, journal, progress), resumable=goes_on)
    ending.start()
    try:
        run_rounds(request, spec, JobContext(arms, world, pulse, journal, progress, command_start() + made_s))
        pulse.enter("saying goodbye")
        world.barrier()
    except BaseException as problem:
        progress.close()
        ending.on_exception(problem)
    if journal is None:
        ending.exit(ExitCode.OK)
    journal.close("ok")
    print_report(request, spec, journal, progress)
    code, short = decide_exit_code(spec.graded_records(journal.job.records), journal)
    if short:
        print_error(short)
    write_exit_status(world.rank_env, short, code, journal.path)
    ending.exit(code)


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
    travel, earlier = join_process_group(context)
    to_do = RoundQueue(context.configs, earlier)
    if not to_do.pending_arms:
        return
    pace = RoundTimer()
    gc_freeze()
    spec.before_rounds(context)
    end_s = spec.rounds_end_s(request.arms[0].time_limit, pace.elapsed_s)
    ceilings = measure_peaks(context)
    context.progress.stage("warming up")
    briefs = [spec.round_plan(role) for role in request.arm_roles]
    allowance = RoundDeadline(end_s, pace, context.world, briefs)
    arms = build_arms(request, spec, context, earlier, briefs)
    if len(arms) > 1:
        pace.start_rounds({index: brief.first_round_s for index, brief in enumerate(briefs) if brief})
    at_once = {index: brief.first_turn_rounds for index, brief in enumerate(briefs) if brief}
    for index, measured in interleave(arms, allowance.has_time_for, at_once, spec.equal_rounds):
        pace.round_ended(index)
        travel.probe(index)
        to_do.round_ended(index, arms[index].is_finished)
        if context.journal and measured is not None:
            text = with_arm_name(request, context.configs, index, log_round(context.journal, index, arms[index], measured, ceilings))
            left_s = pace.remaining_s(end_s, to_do.pending_arms)
            context.progress.round_done(
                to_do.num_finished, to_do.num_total, text, None if left_s is None else left_s + spec.after_rounds_s()
            )
    spec.after_rounds(context, arms)
    for arm in arms:
        arm.park()


def join_process_group(context: JobContext) -> tuple[TransportProbe, list[ResumeState]]:
    """Join the process group; returns the transport probe and each arm's state from an earlier job, as rank 0 knows it."""
    world, pulse, journal = context.world, context.marker, context.journal
    if journal:
        world.store.set("earlier", msgspec.json.encode([ResumeState.from_record(record) for record in journal.job.records]).decode())
    travel = TransportProbe(world, pulse, journal)
    pulse.enter("joining the process group")
    with travel.capture_nccl_log():
        world.init_process_group()
    world.barrier()  # now the store holds the record's path and the resume states, and every rank is monitored
    return travel, msgspec.json.decode(world.store.try_get("earlier") or "[]", type=list[ResumeState])


def measure_peaks(context: JobContext) -> PeakThroughput:
    """Matrix-multiply TFLOPS of every dtype that an arm computes in, minimum over ranks; empty on a CPU."""
    world = context.world
    if not world.device.is_cuda:
        return PeakThroughput()
    context.enter_phase("measuring ceilings", "measuring the ceilings of this GPU")
    dtypes = sorted({PRECISIONS[config.precision].compute_dtype for config in context.configs})
    reached = {dtype: world.all_min(measure_matmul_tflops(world.device, dtype)) for dtype in dtypes}
    world.device.empty_cache()
    return PeakThroughput(matmul_tflops=reached)


def print_report(request: Request, spec: JobSpec, journal: Journal | None, progress: Progress) -> None:
    """Print the report, if this rank has a journal."""
    if journal is None:
        return
    progress.close()
    journal.save_error = print_and_write_json(journal.job, journal.path, request.output, spec.render, journal.save_error)


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
    if short := gate_error(records, journal.job):
        return short.exit_code, short
    alone = len(records) == 1 and journal.job.sweep_shard is None
    return ExitCode.FAILED if alone and records[0].status != "ok" else ExitCode.OK, None


def nothing_fits_error(records: Sequence[Record], job: Job) -> OutOfMemory:
    """The out-of-memory error of the smallest batch."""
    smallest = min(records, key=lambda record: record.config.batch_size)
    assert smallest.fault is not None, "out of memory"
    which = f"none of {len(records)} cells fits, nor the smallest, {arm_name(smallest.config, job.swept)}: " if len(records) > 1 else ""
    return OutOfMemory(f"{which}{smallest.fault.message}", smallest.fault.hint)


def build_arms(
    request: Request, spec: JobSpec, context: JobContext, resume_states: Sequence[ResumeState], round_plans: Sequence[RoundPlan | None]
) -> list[Arm]:
    """All arms of the request, in its order."""
    arms = []
    for index, (config, role) in enumerate(zip(context.configs, request.arm_roles, strict=True)):
        terms = ArmOptions(
            num_arms=request.total_arms,
            index=index,
            resume_state=resume_states[index],
            loader_factory=spec.loader_factory(role),
            round_plan=round_plans[index],
            leftover_factory=spec.leftover_factory(role),
            report=partial(report_stage, request, context, index) if context.journal else None,
            trace_file=profiler_trace_path(request, context.world, index),
        )
        world = spec.ranks_for(role, context.world.for_device(config.device))
        arms.append(spec.make_arm(role, config, world, context.marker, terms))
    return arms


def report_stage(request: Request, context: JobContext, index: int, text: str) -> None:
    """Report the current stage of arm ``index`` within a round."""
    context.progress.stage(with_arm_name(request, context.configs, index, text))


def profiler_trace_path(request: Request, world: World, index: int) -> Path | None:
    """This rank's profiler trace file for one arm, in the folder of the record; None without ``--profile``."""
    if not request.arms[0].profile:
        return None
    record = Path(world.store.try_get("record") or "")
    arm = f"-arm{index}" if request.swept else ""
    return record.with_name(f"{record.stem}{arm}-rank{world.rank}.trace.json")
