"""The clock of a watched step."""

from __future__ import annotations

from time import sleep, thread_time

import pytest
import torch

from ddpbench.machine.step_timer import BACKWARD, DATA, FORWARD, HOST_TO_DEVICE, OPTIMIZER
from ddpbench.script.observe.step_clock import SCRIPT, StepClock


def test_steps_are_contiguous() -> None:
    clock: StepClock[int] = StepClock()
    clock.mark(FORWARD)  # no step is open
    assert not clock.is_open
    clock.open()
    seconds = 0.0
    for number in range(3):
        for phase in (DATA, FORWARD, FORWARD, BACKWARD, SCRIPT):
            sleep(0.002)
            clock.mark(phase)
        seconds += clock.close(number, reopen=True)
    steps = list(clock.finish())
    assert [step.label for step in steps] == [0, 1, 2]
    assert sum(sum(step.phases_ms) for step in steps) == pytest.approx(1000 * seconds)
    assert steps[0].phases_ms[FORWARD] >= 4
    assert steps[0].host_data_ms == steps[0].phases_ms[DATA]
    assert steps[0].phases_ms[OPTIMIZER] == 0
    assert steps[0].thread_cpu_ms < sum(steps[0].phases_ms)


def test_pause_is_no_part_of_the_step() -> None:
    clock: StepClock[int] = StepClock()
    clock.open()
    clock.mark(FORWARD)
    begin_s = thread_time()
    while thread_time() - begin_s < 0.05:
        pass
    clock.mark_pause(thread_time() - begin_s)
    clock.mark(SCRIPT)
    assert clock.close(0, reopen=False) < 0.05
    assert not clock.is_open
    (step,) = clock.finish()
    assert sum(step.phases_ms) < 50
    assert step.thread_cpu_ms < 50


def test_marks_after_the_end_of_a_step_can_be_dropped() -> None:
    clock: StepClock[int] = StepClock()
    clock.open()
    clock.mark(SCRIPT)
    kept = clock.num_marks
    sleep(0.02)
    clock.mark(DATA)
    clock.truncate(kept)
    clock.close(0, reopen=False)
    (step,) = clock.finish()
    assert step.phases_ms[DATA] == 0


@pytest.mark.cuda
def test_gpu_steps_are_timed_on_the_device_without_waiting_for_it() -> None:
    device = torch.device("cuda", 0)
    clock: StepClock[int] = StepClock()
    clock.use_device(device)
    matrix = torch.randn(4096, 4096, device=device)
    clock.open()
    for number in range(5):
        clock.mark(DATA)
        clock.mark(HOST_TO_DEVICE)
        for _ in range(20):
            matrix @ matrix
        clock.mark(FORWARD)
        clock.mark(SCRIPT)
        clock.close(number, reopen=True)
    steps = list(clock.finish())
    assert [step.label for step in steps] == list(range(5))
    assert all(step.phases_ms[FORWARD] > 0.8 * sum(step.phases_ms) for step in steps[1:])


@pytest.mark.cuda
def test_nothing_is_recorded_while_a_graph_is_captured() -> None:
    device = torch.device("cuda", 0)
    clock: StepClock[int] = StepClock()
    clock.use_device(device)
    ones, graph = torch.ones(8, device=device), torch.cuda.CUDAGraph()
    clock.open()
    with torch.cuda.graph(graph):
        clock.mark(FORWARD)
        ones += 1
        clock.mark(BACKWARD)
    clock.mark(SCRIPT)
    clock.close(0, reopen=False)
    graph.replay()
    (step,) = clock.finish()
    assert step.phases_ms[FORWARD] == step.phases_ms[BACKWARD] == 0
    assert step.phases_ms[SCRIPT] > 0
