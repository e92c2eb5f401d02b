"""The verdict and the next step of a watched script."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import records
from script_diagnoses import benchmark, rates, script_diagnosis, window

from ddpbench.analysis.checks.rules import run_checks
from ddpbench.analysis.judge import judge, previous_figures
from ddpbench.analysis.remedies.script import may_try
from ddpbench.analysis.summary import summarize
from ddpbench.record.bottleneck import OversubscribedRanks, ScriptTime, SlowRank, TooShort
from ddpbench.record.checks import MeasurementTooShort, Noisy, OversubscribedCpu, RepeatedSamples, SharedHandles
from ddpbench.record.errors import Status
from ddpbench.record.loader_stats import CpuUsage
from ddpbench.record.prediction import Scenario
from ddpbench.record.record import Record, Round
from ddpbench.record.roles import BASELINE, RUN, Role
from ddpbench.record.script import SampleComparison, SharedHandle
from ddpbench.record.verdict import ChangeDataLoader, NextStep, RunCommand, TrySettings, Verdict


def judged(record: Record) -> Verdict:
    judge(record)
    assert record.verdict is not None
    return record.verdict


def with_config(**changes: Any) -> dict[str, Any]:
    return {"config": msgspec.structs.replace(records.watched_script().config, **changes)}


def test_script_phase_is_part_of_the_step() -> None:
    summary = summarize(records.watched_script(script_ms=12.0))
    assert summary.phases_ms["script"] == pytest.approx(12.0, rel=0.01)
    assert summary.phases_ms["unexplained"] == pytest.approx(0.0, abs=0.01)
    assert sum(summary.phases_ms.values()) == pytest.approx(summary.step_ms)


def test_long_script_phase_is_named() -> None:
    found = judged(records.watched_script(data_ms=1.0, script_ms=30.0))
    assert found.kind == "inconclusive"
    assert found.evidence == ScriptTime(script_ms=pytest.approx(30.0, rel=0.01), step_ms=pytest.approx(78.0, rel=0.01))
    assert found.next is None


@pytest.mark.parametrize(
    ("data_ms", "workers", "expected"),
    [
        (60.0, 4, ChangeDataLoader(num_workers=9)),  # a batch per 27 ms, and 49 ms of training
        (60.0, 0, ChangeDataLoader(num_workers=2)),
        (2000.0, 4, ChangeDataLoader(num_workers=14)),  # 60 cores for 4 ranks, one of which each trainer needs
        (2000.0, 14, None),
        (1.0, 4, None),
    ],
)
def test_more_workers_are_suggested_up_to_the_cores(data_ms: float, workers: int, expected: NextStep | None) -> None:
    assert judged(records.watched_script(data_ms=data_ms, **with_config(workers=workers))).next == expected


@pytest.mark.parametrize(
    ("pin_memory", "workers", "expected"),
    [
        (False, 2, ChangeDataLoader(pin_memory=True)),
        (False, 0, ChangeDataLoader(num_workers=1, pin_memory=True, persistent_workers=True)),  # a thread pins the batches of workers only
        (True, 2, None),
    ],
)
def test_pinned_memory_is_suggested_against_slow_copies(pin_memory: bool, workers: int, expected: NextStep | None) -> None:
    phases = {"data": 1.0, "host_to_device": 30.0, "forward": 14.0, "backward": 27.0, "optimizer": 1.4, "script": 1.0}
    found = judged(records.watched_script(ranks=[phases] * 4, **with_config(pin_memory=pin_memory, workers=workers)))
    assert (found.kind, found.next) == ("host-to-device-bound", expected)


def test_slow_rank_is_found_by_resampling() -> None:
    phases = {"data": 1.0, "forward": 14.0, "backward": 27.0, "optimizer": 1.4, "script": 1.0}
    found = judged(records.watched_script(ranks=[phases, phases, phases, {**phases, "script": 21.0}]))
    assert (found.kind, found.rank) == ("straggler", 3)
    assert isinstance(found.evidence, SlowRank)
    assert found.evidence.slow_in == "host"


def test_no_command_of_ddpbench_is_suggested() -> None:
    assert not isinstance(judged(records.watched_script(data_ms=1.0)).next, RunCommand)


def test_checks_suggest_no_flags_of_a_run() -> None:
    noisy = next(check for check in run_checks(records.watched_script(longer=[1.0, 1.1, 1.0, 1.2, 1.0])) if isinstance(check, Noisy))
    assert noisy.suggested_rounds is None
    short = next(check for check in run_checks(records.watched_script(longer=[1.0] * 3)) if isinstance(check, MeasurementTooShort))
    assert (short.limited_by, short.severity, short.suggested_rounds) == ("script", "info", None)


@pytest.mark.parametrize("rounds", [1, 2, 3, 8])
@pytest.mark.parametrize("spread", [0.0, 0.05, 0.5])
def test_script_that_only_computes_is_compute_bound_whatever_its_rounds(rounds: int, spread: float) -> None:
    """One round has 109 steps."""
    figures = [1000.0 * (1 + spread * (-1) ** index) for index in range(rounds)]
    found = judged(without_cpu_times(window(figures, wait=0.004, steps=109)))
    assert (found.kind, found.repeatability, found.is_probable) == ("compute-bound", 1.0, False)


def test_noisy_control_runs_leave_a_diagnosis_compute_bound() -> None:
    noisy = [2_000.0, 800.0, 1_500.0, 1_000.0, 2_200.0, 900.0]
    job = script_diagnosis(noisy, [each * 1.01 for each in noisy], background=[1_500.0, 1_000.0, 900.0, 1_400.0, 1_300.0, 1_600.0])
    found = job.records[0].verdict
    assert found is not None
    assert (found.kind, found.repeatability) == ("compute-bound", 1.0)


def test_loader_that_slows_computing_is_still_found() -> None:
    """Steps are 40% longer while the loader runs, and so they are in the training, which never waits."""
    job = script_diagnosis(rates(1000.0), rates(1400.0), background=rates(1000.0), loader=benchmark(9000.0))
    found = job.records[0].verdict
    assert found is not None
    assert found.kind == "loader-contends-cpu"


@pytest.mark.parametrize(("steps", "wait", "status"), [(25, 0.0, "ok"), (109, 0.06, "ok"), (109, 0.0, "failed")])
def test_one_round_is_too_few_if_it_is_short_or_waits(steps: int, wait: float, status: Status) -> None:
    found = judged(without_cpu_times(window([1000.0], wait=wait, steps=steps, status=status)))
    assert (found.kind, type(found.evidence)) == ("inconclusive", TooShort)


def crowded_script(workers: int = 8, **changes: Any) -> Record:
    """A script on one CPU rank with far more workers than its two cores, which waits for data 80% of the time."""
    return window([500.0] * 5, wait=0.8, cores=2.0, workers=workers, **changes)


def without_cpu_times(record: Record) -> Record:
    """As ``watch`` records it."""
    record.rounds = [
        msgspec.structs.replace(timed, traces=[msgspec.structs.replace(trace, cpu_s=None, cpu_usage=None) for trace in timed.traces])
        for timed in record.rounds
    ]
    return record


@pytest.mark.parametrize("workers", [4, 8, 64])
def test_sleeping_workers_are_not_oversubscribed(workers: int) -> None:
    record = without_cpu_times(crowded_script(workers))
    verdict = judged(record)
    assert (verdict.kind, verdict.cause, verdict.cause_evidence) == ("data-bound", None, None)
    [check] = [check for check in record.checks if isinstance(check, OversubscribedCpu)]
    assert (check.severity, check.suggested_workers) == ("info", None)


def test_workers_whose_cores_have_time_left_get_no_check() -> None:
    record = crowded_script()
    assert judged(record).cause is None
    assert [check for check in record.checks if isinstance(check, OversubscribedCpu)] == [], "they use 1.3 of 2 cores"


def test_workers_that_fill_the_cores_are_named() -> None:
    record = crowded_script()
    record.rounds = [
        msgspec.structs.replace(
            timed, traces=[msgspec.structs.replace(trace, cpu_s=1.95 * timed.wall_s, cpu_usage=busy_cores(timed)) for trace in timed.traces]
        )
        for timed in record.rounds
    ]
    assert judged(record).cause == "oversubscribed"
    [check] = [check for check in record.checks if isinstance(check, OversubscribedCpu)]
    assert (check.severity, check.suggested_workers) == ("warning", 1)


def busy_cores(timed: Round) -> CpuUsage:
    return CpuUsage(num_cores=2, busy_s=1.97 * timed.wall_s, wall_s=timed.wall_s, throttled_s=None, cpu_pressure_fraction=0.5)


@pytest.mark.parametrize(("thread_cores", "kind"), [(0.2, "compute-bound"), (0.99, "inconclusive")])
def test_training_threads_that_share_cores_are_named_if_they_compute(thread_cores: float, kind: str) -> None:
    """Two threads on one core."""
    record = without_cpu_times(window([500.0] * 5, cores=1.0, workers=0))
    record.environment = msgspec.structs.replace(record.environment, variables={"OMP_NUM_THREADS": "2"})
    record.rounds = [
        msgspec.structs.replace(
            timed, traces=[msgspec.structs.replace(trace, thread_cpu_s=thread_cores * timed.wall_s) for trace in timed.traces]
        )
        for timed in record.rounds
    ]
    found = judged(record)
    assert (found.kind, isinstance(found.evidence, OversubscribedRanks)) == (kind, kind == "inconclusive")


@pytest.mark.parametrize(
    ("role", "ended_early", "limited_by", "remedy"),
    [
        (RUN, False, "script", None),
        (RUN, True, "steps", None),
        (BASELINE, False, "script", None),
        (BASELINE, True, "time-limit", "longer-time-limit"),
    ],
)
def test_what_ended_a_script_limits_its_rounds(role: Role, ended_early: bool, limited_by: str, remedy: str | None) -> None:
    record = records.watched_script(longer=[1.0] * 3, role=role)
    assert record.script is not None
    record.script = msgspec.structs.replace(record.script, ended_early=ended_early)
    [short] = [check for check in run_checks(record) if isinstance(check, MeasurementTooShort)]
    assert (short.severity, short.limited_by, short.remedy) == ("info", limited_by, remedy)


def test_earlier_runs_of_a_script_are_no_history() -> None:
    earlier, record = records.watched_script(), records.watched_script()
    judge(earlier)
    assert previous_figures(record, [earlier]) == []


FILE = SharedHandle(name="Records.file", kind="file")
REPEATED = SampleComparison(workers=2, samples=300, different=150, is_stream=True)


def with_script(workers: int, **changes: Any) -> Record:
    record = records.watched_script(data_ms=60.0, **with_config(workers=workers))
    assert record.script is not None
    record.script = msgspec.structs.replace(record.script, **changes)
    return record


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (with_script(2, shared_handles=[FILE]), SharedHandles(workers=2, handles=[FILE])),
        (with_script(1, shared_handles=[FILE]), None),
        (with_script(2, shared_handles=[SharedHandle(name="Records.map", kind="memory-map")]), None),
        (with_script(2, sample_comparison=REPEATED), RepeatedSamples(workers=2)),
        (with_script(1, sample_comparison=REPEATED), None),
        (with_script(2, sample_comparison=msgspec.structs.replace(REPEATED, different=0)), None),
    ],
)
def test_defects_of_the_training_data_are_warnings(record: Record, expected: SharedHandles | RepeatedSamples | None) -> None:
    assert [each for each in run_checks(record) if isinstance(each, SharedHandles | RepeatedSamples)] == ([expected] if expected else [])


def test_advice_names_what_each_worker_must_open() -> None:
    found = judged(with_script(0, shared_handles=[FILE])).next
    assert found == ChangeDataLoader(num_workers=2, shared_handles=[FILE])


@pytest.mark.parametrize(
    ("scenario", "compared", "may"),
    [
        (Scenario(workers=4), None, True),
        (Scenario(workers=4), SampleComparison(workers=3, samples=300), True),
        (Scenario(workers=4), SampleComparison(workers=3, samples=300, not_compared="random"), True),
        (Scenario(workers=4), SampleComparison(workers=3, samples=300, different=1), False),
        (Scenario(workers=4), SampleComparison(workers=3, not_compared="failed"), False),
        (Scenario(workers=0), SampleComparison(workers=3, samples=300, different=1), True),
        (Scenario(pin_memory=True), SampleComparison(workers=3, samples=300, different=1), True),
        (Scenario(workers=2), REPEATED, False),
        (Scenario(workers=1), REPEATED, True),
    ],
)
def test_workers_that_read_other_samples_are_not_tried(scenario: Scenario, compared: SampleComparison | None, may: bool) -> None:
    assert may_try(scenario, with_script(1, sample_comparison=compared)) is may


def test_no_worker_is_tried_that_would_share_a_file() -> None:
    record = with_script(1, shared_handles=[FILE])
    assert not may_try(Scenario(workers=4), record)
    assert not may_try(Scenario(prefetch=4), record), "the trial would fork a worker, too"
    assert may_try(Scenario(workers=0), record)


def test_settings_that_a_diagnosis_tries_are_named_to_a_script_that_computes() -> None:
    record = records.watched_script(data_ms=1.0)
    assert record.script is not None
    record.script = msgspec.structs.replace(record.script, settings_to_try=["channels-last", "bf16-autocast"])
    found = judged(record)
    assert (found.kind, found.next) == ("compute-bound", TrySettings(cures=["channels-last", "bf16-autocast"]))
