"""Builds the records of a diagnosis, one per role, from the windows that all ranks have measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

import msgspec
import numpy as np

from ddpbench.analysis.collective_wait import subsample_round
from ddpbench.analysis.command import config_fields
from ddpbench.analysis.rounds import collect_round
from ddpbench.analysis.run_length import MIN_ROUNDS_AND_STEPS_FOR_VERDICT, are_mostly_prefetched
from ddpbench.record.config import Config
from ddpbench.record.diagnosis import Diagnosis, LoaderBenchmark
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Fault, KernelActivity, Record, Round
from ddpbench.record.roles import BASELINE, COMPUTE_ONLY, Role, SkippedMeasurement, trial_role
from ddpbench.record.trace import Memory, Trace
from ddpbench.script.diagnose.schedule import MAX_TURNS, MIN_ROUND_STEPS, unsteady_batches
from ddpbench.script.diagnose.stage import RankResults, Stage, WindowResult
from ddpbench.script.observe.rounds import MAX_ROUND_STEPS, LoaderShape, batches_per_update, make_trace, with_batch_sizes
from ddpbench.script.observe.rows import EPOCH_START_MS, NUMBER, STRETCH, Rows, to_rows
from ddpbench.script.ranks.observation import Observation


def build_records(observation: Observation, own_rows: Rows, results: Sequence[RankResults], requested: Config) -> list[Record]:
    """One record per role, the baseline first. ``results`` are those of every rank, ``own_rows`` all steps of rank 0."""
    states = {rank: each.state for rank, each in enumerate(results) if each.state}
    rounds: dict[Role, list[Round]] = {}
    firsts: dict[int, int] = {}  # steps of the baseline's windows, by turn
    memory = [state.memory for state in states.values()]
    starts_ms = [_epoch_start_ms(each, observation.loader_shape) for each in results]
    for windows in _shared_windows(results):
        role = windows[0].stage.role
        assert role is not None, "timed windows have a role"
        found = rounds.setdefault(role, [])
        added_ms = starts_ms if role == BASELINE else [0.0] * len(results)
        if timed := _build_round(windows, own_rows, observation.engine, memory, added_ms):
            found.append(timed)
        if role == BASELINE:
            firsts[windows[0].stage.turn] = windows[0].stage.first
    if len(rounds.get(BASELINE, [])) < MIN_ROUNDS_AND_STEPS_FOR_VERDICT[0] and len(states) == len(results):
        # of a short training, all steps before the first change count, in place of the windows in them
        own = [to_rows(each.own_rows) for each in results]
        later = [timed for timed in rounds.get(BASELINE, []) if not len(own[0]) or firsts[timed.index] > own[0][-1, NUMBER]]
        found = _with_other_turns(observation.cut_rounds(states, own)) + later
        rounds[BASELINE] = max(rounds.get(BASELINE, []), found, key=len)
    records = [_with_role(observation.record_with(measured, states, own_rows), role, requested) for role, measured in rounds.items()]
    for record in records:
        if record.script:
            shared, compared = results[0].shared_handles, results[0].sample_comparison
            record.script = msgspec.structs.replace(record.script, shared_handles=shared, sample_comparison=compared)
        if record.role == COMPUTE_ONLY and results[0].kernel_ms is not None and record.rounds:
            last = record.rounds[-1]
            step_ms = 1000 * last.wall_s / last.traces[0].steps
            record.kernel_activity = KernelActivity(step_ms=step_ms, kernel_ms=results[0].kernel_ms)
            record.roofline = results[0].roofline
    for failed in (trial for each in results for trial in each.failed_trials):
        role = trial_role(failed.scenario)
        if all(each.role != role for each in records):
            records.append(_with_role(observation.record_with([], states, own_rows), role, requested))
        record = next(each for each in records if each.role == role)
        record.status, record.fault = "failed", Fault(message=failed.message, arm_index=len(records) - 1)
    return sorted(records, key=lambda record: record.role != BASELINE)


def _with_other_turns(rounds: Sequence[Round]) -> list[Round]:
    """Rounds that were not measured in turn with control runs, and are not compared with those one by one."""
    return [msgspec.structs.replace(timed, index=MAX_TURNS + place) for place, timed in enumerate(rounds)]


def update_diagnosis(diagnosis: Diagnosis, results: Sequence[RankResults]) -> None:
    """Enter what was measured besides the windows."""
    diagnosis.loader_benchmarks = [benchmark for each in results for benchmark in each.benchmarks]
    diagnosis.single_rank_loader_benchmark = results[0].single_rank_benchmark
    diagnosis.all_cores_loader_benchmarks = _of_all_ranks([each.all_cores_benchmark for each in results])
    problems = [each.all_cores_problem for each in results if each.all_cores_problem]
    diagnosis.skipped = [SkippedMeasurement("all_cores_loader_benchmarks", "failed", error=each) for each in problems[:1]]
    diagnosis.resident_loader_benchmarks = _of_all_ranks([None if each.reads_on_host else each.resident_benchmark for each in results])
    diagnosis.gpu_decoding_benchmarks = _of_all_ranks([None if each.reads_on_host else each.decoding_benchmark for each in results])
    diagnosis.pixel_difference = results[0].pixel_difference if diagnosis.gpu_decoding_benchmarks else None
    diagnosis.storage, diagnosis.worker_memory = results[0].storage, results[0].worker_memory
    if bandwidths := [each.h2d_bandwidth for each in results if each.h2d_bandwidth]:
        diagnosis.h2d_bandwidth = min(bandwidths, key=lambda each: each.pinned_bytes_per_s)
    if decodings := [each.device_decoding for each in results if each.device_decoding]:
        diagnosis.device_decoding = min(decodings, key=lambda each: each.images_per_s)
    diagnosis.node_states = [each.node_state for each in results if each.node_state]


def _of_all_ranks(found: Sequence[LoaderBenchmark | None]) -> list[LoaderBenchmark]:
    """Empty unless every rank has one."""
    benchmarks = [each for each in found if each is not None]
    return benchmarks if len(benchmarks) == len(found) else []


def _shared_windows(results: Sequence[RankResults]) -> Iterator[list[WindowResult]]:
    """The windows that every rank has measured, each with the results of all ranks in their order."""
    by_first = [{window.stage.first: window for window in each.windows} for each in results]
    for first in by_first[0]:
        if all(first in windows for windows in by_first):
            yield [windows[first] for windows in by_first]


def _build_round(
    windows: Sequence[WindowResult], own_rows: Rows, engine: str, memory: Sequence[Memory], starts_ms: Sequence[float]
) -> Round | None:
    """The round of one window; None if an epoch ended so often in it that too few steps are left.

    Unless it consists of whole epochs, the steps of a rank get its share of ``starts_ms`` for the start of an epoch.
    """
    stage = windows[0].stage
    numbers = counted_steps(own_rows, stage)
    parts = [rows[np.isin(rows[:, NUMBER], numbers)] for rows in (to_rows(window.rows) for window in windows)]
    if len(numbers) < MIN_ROUND_STEPS or any(len(part) < len(numbers) for part in parts):
        return None
    if not stage.whole_epochs:
        for part, start_ms in zip(parts, starts_ms, strict=True):
            part[:, EPOCH_START_MS] = start_ms
    traces = [_trace(rank, part, windows[rank], memory[rank]) for rank, part in enumerate(parts)]
    timed = with_batch_sizes(collect_round(stage.turn, traces, engine), parts)
    return subsample_round(timed, -(-traces[0].steps // MAX_ROUND_STEPS))


def _epoch_start_ms(results: RankResults, loader: LoaderShape) -> float:
    """What the start of an epoch takes per step, in ms: the mean of all but the first, if there are others."""
    starts_s = results.epoch_starts_s
    if not starts_s or not loader.epoch_batches:
        return 0.0
    return 1000 * fmean(starts_s[1:] or starts_s) / loader.epoch_batches


def counted_steps(own_rows: Rows, stage: Stage) -> Rows:
    """Numbers of the steps of ``stage`` that count: all of whole epochs, and of stretches without a pause that are so short that workers
    load most of their batches at once.

    Of longer ones the first step does not count, nor those whose batches were loaded at the start.
    """
    numbers, begins = own_rows[:, NUMBER], np.flatnonzero(np.diff(own_rows[:, STRETCH], prepend=-1.0))
    lengths = np.diff(np.append(begins, len(own_rows)))
    longest, measured = int(lengths.max(initial=0)), (numbers >= stage.first_measured) & (numbers < stage.end)
    if stage.whole_epochs or (stage.source in ("own", "trial") and are_mostly_prefetched(longest, stage.prefetched)):
        return numbers[measured]
    positions = numbers - np.repeat(numbers[begins], lengths)
    unsteady = unsteady_batches(stage.prefetched, longest, batches_per_update(own_rows))
    return numbers[measured & (positions >= unsteady)]


def _trace(rank: int, rows: Rows, window: WindowResult, memory: Memory) -> Trace:
    trace = make_trace(rank, rows, memory)
    return msgspec.structs.replace(trace, loader_stats=window.loader_stats, cpu_usage=window.cpu_usage, cpu_s=window.cpu_s * trace.steps)


def _with_role(record: Record, role: Role, requested: Config) -> Record:
    asked: dict[str, object] = {"time_limit": requested.time_limit, "fail_if_data_wait": requested.fail_if_data_wait}
    if role == COMPUTE_ONLY:
        asked["loader"] = SYNTHETIC
    changed = config_fields(role.scenario) if role.scenario else {}
    record.role, record.config = role, msgspec.structs.replace(record.config, **asked, **changed)
    return record
