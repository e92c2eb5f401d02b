"""The formulas of the data pipeline, on figures that one can do in one's head."""

from __future__ import annotations

from math import inf

import pytest

from ddpbench.analysis.pipeline import rates


def test_each_formula() -> None:
    assert rates.device_rate(256, 0.05) == 5120
    assert rates.worker_rate(8, 0.01) == 800
    assert rates.core_rate(cores=16, trainer_cores=4, ranks=4, sample_cpu_s=0.01) == pytest.approx(300)
    assert rates.copy_rate(50e9, 600_000) == pytest.approx(83_333, abs=1)
    assert rates.workers_needed(0.01, 1000) == 12
    assert rates.cores_needed(0.01, 1000, trainer_cores=4, ranks=4) == pytest.approx(11)
    assert rates.accelerator_utilization(0.05, 0.2) == 0.25
    assert rates.exposed_allreduce_s(0.06, 0.05) == pytest.approx(0.01)
    assert rates.trainer_rate(0.0002) == 5000
    assert rates.trainer_rate(0.0) == inf


def test_what_cannot_be_negative_is_not() -> None:
    assert rates.core_rate(cores=2, trainer_cores=4, ranks=4, sample_cpu_s=0.01) == 0
    assert rates.max_workers(cores=2, trainer_cores=4, ranks=4) == 0
    assert rates.exposed_allreduce_s(0.05, 0.051) == 0


def test_images_that_cost_nothing_are_no_limit_of_the_cores() -> None:
    assert rates.core_rate(cores=16, trainer_cores=4, ranks=4, sample_cpu_s=0.0) == inf
    assert rates.core_rate(cores=4, trainer_cores=4, ranks=4, sample_cpu_s=0.0) == 0


def test_workers_that_fit_leave_the_trainers_their_cores() -> None:
    for cores in (8, 9, 31, 64):
        workers = rates.max_workers(cores, trainer_cores=4, ranks=4)
        assert 4 * workers + 4 <= cores < 4 * (workers + 1) + 4


def test_cores_needed_give_the_rate_they_are_needed_for() -> None:
    needed = rates.cores_needed(0.0091, 6030, trainer_cores=4, ranks=4)
    assert rates.core_rate(4 * needed, trainer_cores=4, ranks=4, sample_cpu_s=0.0091) == pytest.approx(6030)


def test_cores_that_load_and_train_give_as_much_as_both_take() -> None:
    """Two ranks on two cores: each has one, and an image takes 8 ms of it to train and 2 ms to load."""
    assert rates.shared_core_rate(cores=2, ranks=2, sample_cpu_s=0.002, training_cpu_s=0.008) == pytest.approx(100)


def test_storage_is_a_mixture_of_what_lies_in_memory_and_what_does_not() -> None:
    assert rates.storage_rate(4, 1.0, 40_000, None) == pytest.approx(10_000)
    assert rates.storage_rate(4, 0.0, None, 4000) == pytest.approx(1000)
    assert rates.storage_rate(1, 0.5, 40_000, 4000) == pytest.approx(1 / (0.5 / 40_000 + 0.5 / 4000))
    assert rates.storage_rate(1, 0.5, 40_000, None) is None
