"""Step timers with a fake clock: exact, contiguous phases that sum to the step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import accumulate

import pytest
import torch

from ddpbench.machine import step_timer
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.record.trace import PHASES

STEPS_MS = [(5.0, 1.0, 0.5, 10.0, 20.0, 3.0, 2.0), (7.0, 1.0, 0.25, 10.0, 21.0, 1.0, 2.0)]


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace perf_counter_ns by a clock that steps through STEPS_MS."""
    stamps: Iterator[float] = accumulate([1_000.0, *(ms for step in STEPS_MS for ms in step), 9.0])
    monkeypatch.setattr(step_timer, "perf_counter_ns", lambda: int(next(stamps) * 1e6))


def test_phases_are_exact_and_sum_to_the_step(fake_clock: None) -> None:
    pulse = ProgressMarker(timeout_s=1.0)
    host = step_timer.HostStepTimer(pulse)
    host.begin(len(STEPS_MS))
    for _ in STEPS_MS:
        for phase in range(len(PHASES)):
            host.mark(phase)
    phases = host.read().phases_ms
    assert {name: phases[name] for name in PHASES} == {name: [step[i] for step in STEPS_MS] for i, name in enumerate(PHASES)}
    assert host.read().host_data_ms == host.host_data_ms() == [5.0, 7.0]
    assert host.timestamps_ms()[:: len(PHASES)] == [0.0, sum(STEPS_MS[0]), sum(STEPS_MS[0]) + sum(STEPS_MS[1])]
    assert pulse.step == len(STEPS_MS)
    assert pulse.marks_passed == 1 + len(STEPS_MS) * len(PHASES)
    assert pulse.phase == "data"


def test_first_step_waits_for_data_as_soon_as_it_begins() -> None:
    pulse = ProgressMarker(timeout_s=1.0)
    pulse.enter("gathering the round")
    step_timer.HostStepTimer(pulse).begin(1)
    assert (pulse.phase, pulse.marks_passed) == ("data", 2)


def test_second_round_does_not_contain_the_first(fake_clock: None) -> None:
    host = step_timer.HostStepTimer(ProgressMarker(timeout_s=1.0))
    for _ in range(2):
        host.begin(1)
        for phase in range(len(PHASES)):
            host.mark(phase)
    second = [*STEPS_MS[1][1:], 9.0]  # the start timestamp of the second round consumes its first phase
    assert list(host.read().phases_ms.values()) == [[ms] for ms in second]


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ([17, 18, 19, 19.5, 20, 21, 21.5], 0.0),  # the whole step before the device reaches it
        ([46, 47, 47.5, 55, 56, 57, 58], 5.25),  # the forward, which the device starts at 49.75
        ([46, 47, 49.7, 59, 80, 81, 84], 31.5),  # all three almost to their ends, capped at the optimizer phase
    ],
)
def test_host_issue_time_counts_phases_issued_after_the_device_started(second: list[float], expected: float) -> None:
    reached = [*accumulate((ms for step in STEPS_MS for ms in step), initial=0.0)]
    ahead = [0, 0.1, 0.2, 0.3, 1, 2, 3, 3.5]
    assert step_timer.host_issue_ms(reached, [*ahead, *second]) == [0.0, pytest.approx(expected)]


@pytest.mark.cuda
@pytest.mark.parametrize(("sleeps_ms", "least", "most"), [(0.0, 0.0, 5.0), (50.0, 50.0, 60.0)])
def test_gpu_idle_during_host_sleep_is_measured(sleeps_ms: float, least: float, most: float) -> None:
    device = torch.device("cuda", 0)
    on_gpu = step_timer.make_step_timer(ProgressMarker(timeout_s=1.0), device)
    busy = torch.randn(4096, 4096, device=device)
    for _ in range(2):  # events are warm in the second pass
        torch.cuda.synchronize()
        on_gpu.begin(2)
        for _ in range(2):
            for phase in range(len(PHASES)):
                if phase == step_timer.BACKWARD and sleeps_ms:
                    torch.cuda.synchronize()
                    time.sleep(sleeps_ms / 1000)
                for _ in range(20):
                    busy = busy @ busy * 1e-3
                on_gpu.mark(phase)
        torch.cuda.synchronize()
        issue_ms = on_gpu.read().host_issue_ms
    assert len(issue_ms) == 2
    assert all(least <= ms <= most for ms in issue_ms)


@pytest.mark.cuda
def test_cuda_phases_sum_to_the_time_between_synchronizations() -> None:
    device = torch.device("cuda", 0)
    busy = torch.randn(4096, 4096, device=device)
    on_gpu = step_timer.make_step_timer(ProgressMarker(timeout_s=1.0), device)
    for _ in range(2):  # events are warm in the second pass
        torch.cuda.synchronize()
        on_gpu.begin(3)
        start = step_timer.perf_counter_ns()
        for _ in range(3):
            for phase in range(len(PHASES)):
                busy = busy @ busy * 1e-3
                on_gpu.mark(phase)
        torch.cuda.synchronize()
        wall_ms = (step_timer.perf_counter_ns() - start) / 1e6
    timings = on_gpu.read()
    total = sum(sum(durations) for durations in timings.phases_ms.values())
    assert total == pytest.approx(wall_ms, rel=0.05)
    assert len(timings.host_lead_ms) == 3
    assert timings.host_lead_ms[-1] > 0, "large matrix products leave the host ahead of the GPU"
