"""Collected rounds, and the interleaver's time estimates."""

from __future__ import annotations

import msgspec
import pytest
from records import record

from ddpbench.analysis.collective_wait import collective_waits
from ddpbench.analysis.rounds import MAX_FULL_TRACES, collect_round
from ddpbench.bench import time_budget as pace_module
from ddpbench.bench.runner import time_left_text
from ddpbench.bench.time_budget import RoundTimer
from ddpbench.record.loader_stats import subsample
from ddpbench.record.trace import PHASES, Trace


@pytest.fixture
def trace() -> Trace:
    return record().rounds[0].traces[0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Fake clock of a RoundTimer: one element, in seconds."""
    now = [0.0]
    monkeypatch.setattr(pace_module, "perf_counter", lambda: now[0])
    return now


def gathered(trace: Trace, ranks: int) -> list[Trace]:
    """Traces of ranks whose data are late alternately, each in every fourth step, so that waits differ between ranks."""
    traces = []
    for rank in range(ranks):
        late = [40.0 if step % 4 == rank % 4 else 0.0 for step in range(trace.steps)]
        waited = [41.0 - (ms if rank % 4 != 3 else 0.0) for ms in late]
        traces.append(msgspec.structs.replace(trace, rank=rank, phases_ms={**trace.phases_ms, "data": late, "sync": waited}))
    return traces


def test_up_to_64_ranks_keep_every_step(trace: Trace) -> None:
    traces = [msgspec.structs.replace(trace, rank=rank) for rank in range(MAX_FULL_TRACES)]
    kept = collect_round(0, traces, "none")
    assert kept.traces == traces
    assert kept.collective_wait is None


@pytest.mark.parametrize("ranks", [65, 128, 1000])
def test_more_ranks_keep_totals_and_subsampled_steps(trace: Trace, ranks: int) -> None:
    traces, every = gathered(trace, ranks), -(-ranks // MAX_FULL_TRACES)
    timed = collect_round(0, traces, "none")
    for kept, whole in zip(timed.traces, traces, strict=True):
        for phase in PHASES:
            assert kept.phases_ms[phase] == subsample(every, whole.phases_ms[phase])
            assert kept.total_ms(phase) == pytest.approx(sum(whole.phases_ms[phase]))
        assert len(kept.host_data_ms) == len(kept.phases_ms["data"]) < trace.steps
        assert (kept.rank, kept.steps, kept.wall_s, kept.numerics) == (whole.rank, trace.steps, trace.wall_s, trace.numerics)
    assert collective_waits(timed) == collective_waits(msgspec.structs.replace(timed, traces=traces, collective_wait=None)), (
        "of all steps, not of those that are kept"
    )


@pytest.mark.parametrize("every", [2, 3, 4, 8])
def test_subsample_preserves_the_frequency_of_periodic_steps(every: int) -> None:
    late = [step % 4 == 0 for step in range(400)]
    assert sum(subsample(every, late)) / len(subsample(every, late)) == pytest.approx(1 / 4, abs=0.07)
    assert len(subsample(every, late)) == -(-400 // every)
    assert subsample(every, late[:1]) == [True]


def test_remaining_time_excludes_the_warmup(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 40.0, 43.0, 46.0])
    monkeypatch.setattr(pace_module, "perf_counter", lambda: next(now))
    pace = RoundTimer()
    assert pace.remaining_s([0]) is None
    pace.round_ended(0)
    assert pace.remaining_s([0, 0, 0, 0]) is None, "one round ended, and its start is unknown"
    pace.round_ended(0)
    assert pace.remaining_s([0, 0, 0]) == 9.0
    pace.round_ended(0)
    assert pace.remaining_s([0, 0]) == 6.0


def test_remaining_time_is_known_once_each_arm_has_had_a_round_without_its_warmup(clock: list[float]) -> None:
    pace = RoundTimer()
    pace.start_rounds()
    for arm, end_s in ((0, 40.0), (1, 60.0), (1, 63.0), (0, 75.0)):
        assert pace.remaining_s([0, 1]) is None
        clock[0] = end_s
        pace.round_ended(arm)
    assert pace.remaining_s([0, 1, 1]) == 12.0 + 2 * 3.0
    clock[0] = 83.0
    pace.round_ended(0)
    assert pace.remaining_s([0]) == 10.0, "the mean of its later rounds"


def test_time_left_is_a_limit_until_it_can_be_estimated(clock: list[float]) -> None:
    pace = RoundTimer()
    pace.start_rounds()
    clock[0] = 49.0
    pace.round_ended(0)
    assert time_left_text(pace, [0, 0], end_s=None, after_s=5.0) == ""
    assert time_left_text(pace, [0, 0], end_s=100.0, after_s=5.0) == "at most 56 s left"
    clock[0] = 52.0
    pace.round_ended(0)
    assert time_left_text(pace, [0], end_s=None, after_s=5.0) == "about 8 s left"
    assert time_left_text(pace, [0], end_s=53.0, after_s=5.0) == "about 6 s left"


def test_next_round_is_predicted_from_previous_rounds(clock: list[float]) -> None:
    pace = RoundTimer()
    assert pace.expected_end_s(0) == 0, "the first round always runs"
    clock[0] = 10.0
    pace.round_ended(0)
    assert pace.expected_end_s(0) == 20.0
    clock[0] = 13.0
    pace.round_ended(0)
    assert pace.expected_end_s(0) == 16.0


def test_first_of_several_arms_is_timed_from_the_start_of_rounds(clock: list[float]) -> None:
    pace = RoundTimer()
    clock[0] = 30.0
    pace.start_rounds()
    assert pace.expected_end_s(0) == 0, "the first round always runs"
    clock[0] = 40.0
    pace.round_ended(0)
    assert pace.expected_end_s(1) == 50.0


def test_one_time_cost_is_not_expected_from_other_arms(clock: list[float]) -> None:
    pace = RoundTimer()
    pace.start_rounds({0: 8.0, 1: 6.0, 2: 6.0, 3: 6.0})
    clock[0] = 24.0
    pace.round_ended(0)
    assert pace.expected_round_s(1) == 18.0, "only the first round is known"
    clock[0] = 28.0
    pace.round_ended(1)
    assert pace.expected_round_s(2) == 6.0
    assert pace.expected_round_s(0) == 8.0, "nor of the first arm's next round"
    clock[0] = 40.0
    pace.round_ended(2)
    assert pace.expected_round_s(3) == pytest.approx(6.0 * (4 / 6 + 12 / 6) / 2)
