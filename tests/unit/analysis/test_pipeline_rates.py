"""Data-pipeline formulas, against values computed by hand."""

from __future__ import annotations

from math import inf

import pytest

from ddpbench.analysis.cpu_demand import CpuDemand
from ddpbench.analysis.pipeline import rates


def test_formulas_match_hand_computed_values() -> None:
    assert rates.step_rate(256, 0.05) == 5120
    assert rates.worker_rate(8, 0.01) == 800
    assert rates.core_rate(cores=16, trainer_cores=4, ranks=4, sample_cpu_s=0.01) == pytest.approx(300)
    assert rates.copy_rate(50e9, 600_000) == pytest.approx(83_333, abs=1)
    assert rates.workers_needed(0.01, 1000) == 12
    assert rates.cores_needed(0.01, 1000, trainer_cores=4, ranks=4) == pytest.approx(11)
    assert rates.accelerator_utilization(0.05, 0.2) == 0.25
    assert rates.sync_cost_s(0.06, 0.05) == pytest.approx(0.01)
    assert rates.trainer_rate(0.0002) == 5000
    assert rates.trainer_rate(0.0) == inf


def test_rates_are_never_negative() -> None:
    assert rates.core_rate(cores=2, trainer_cores=4, ranks=4, sample_cpu_s=0.01) == 0
    assert rates.sync_cost_s(0.05, 0.051) == 0


def test_free_samples_are_not_limited_by_cores() -> None:
    assert rates.core_rate(cores=16, trainer_cores=4, ranks=4, sample_cpu_s=0.0) == inf
    assert rates.core_rate(cores=4, trainer_cores=4, ranks=4, sample_cpu_s=0.0) == 0


def test_max_workers_leave_cores_for_the_trainers() -> None:
    for cores in (8, 9, 31, 64):
        workers = CpuDemand("node", ranks=4, workers=16, threads_per_rank=1, usable_cores=cores).max_workers
        assert 4 * workers + 4 <= cores < 4 * (workers + 1) + 4


def test_cores_needed_reach_the_requested_rate() -> None:
    needed = rates.cores_needed(0.0091, 6030, trainer_cores=4, ranks=4)
    assert rates.core_rate(4 * needed, trainer_cores=4, ranks=4, sample_cpu_s=0.0091) == pytest.approx(6030)


def test_shared_cores_cover_loading_and_training() -> None:
    """Two ranks on two cores; an image takes 8 ms of CPU to train and 2 ms to load."""
    assert rates.shared_core_rate(cores=2, ranks=2, sample_cpu_s=0.002, training_cpu_s=0.008) == pytest.approx(100)


def test_storage_rate_mixes_cached_and_cold_reads() -> None:
    assert rates.storage_rate(4, 1.0, 40_000, None) == pytest.approx(10_000)
    assert rates.storage_rate(4, 0.0, None, 4000) == pytest.approx(1000)
    assert rates.storage_rate(1, 0.5, 40_000, 4000) == pytest.approx(1 / (0.5 / 40_000 + 0.5 / 4000))
    assert rates.storage_rate(1, 0.5, 40_000, None) is None
