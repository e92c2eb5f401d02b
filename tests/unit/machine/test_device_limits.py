"""Measured limits of a device: what is timed, and that no cold run counts."""

from __future__ import annotations

import pytest
import torch

from ddpbench.machine import peaks
from ddpbench.machine.device import Device
from ddpbench.machine.peaks import measure_limits

CPU = Device(torch.device("cpu"), "CPU", "", 0)


def test_every_limit_of_a_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "MIN_DURATION_S", 0.02)
    monkeypatch.setattr(peaks, "CPU_COPY_BYTES", 2**20)
    limits = measure_limits(CPU, "float32")
    assert 1e-3 < limits.matmul_tflops < 100
    assert 0.1 < limits.copy_gb_per_s < 10_000
    assert 0.01 < limits.launch_us < 1000


@pytest.mark.parametrize(("warm_s", "calls"), [(0.5, 4), (0.01, 81)])
def test_first_call_and_first_half_of_the_runs_only_warm_up(warm_s: float, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []

    def run_s(device: Device, call: object, number: int) -> float:
        runs.append(number)
        return 100.0 if len(runs) == 1 else 10 * warm_s if len(runs) == 2 and warm_s == 0.5 else warm_s

    monkeypatch.setattr(peaks, "_run_s", run_s)
    assert peaks._seconds_per_call(CPU, lambda: None, 5) == pytest.approx(warm_s / 5)
    assert len(runs) == pytest.approx(calls, abs=1)
    assert runs[0] == 1
