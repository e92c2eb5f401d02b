"""Simulated training against closed forms, known tables, invariants and real loaders with known timings."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from math import exp, log, sqrt
from random import Random
from statistics import fmean
from typing import Any

import pytest

from ddpbench.analysis.simulation.simulator import SimParams, SimResult, simulate

STEPS = 1000
EVEN = SimParams(ranks=1, workers=4, prefetch=2, batch_times_s=[[0.2]], step_times_s=[0.1])


def log_normal(mean: float, variation: float, number: int = 4000, seed: int = 0) -> list[float]:
    """Log-normal times with exactly this mean and about this coefficient of variation."""
    chance, spread = Random(seed), sqrt(log(1 + variation**2))
    spans = [exp(chance.gauss(0.0, spread)) for _ in range(number)]
    scale = mean / fmean(spans)
    return [scale * span for span in spans]


def run_simulation(setting: SimParams, steps: int = STEPS, seed: int = 1) -> SimResult:
    return simulate(setting, steps, Random(seed))


UNEVEN = SimParams(ranks=1, workers=8, prefetch=2, batch_times_s=[log_normal(0.8, 0.5)], step_times_s=[0.1])
"""Workers that just suffice on average."""


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("workers", [1, 3, 8])
@pytest.mark.parametrize("prefetch", [1, 2, 4])
@pytest.mark.parametrize("batch", [0.05, 0.3, 2.0])
def test_uniform_batches_step_at_the_slower_of_device_and_workers(ranks: int, workers: int, prefetch: int, batch: float) -> None:
    setting = replace(EVEN, ranks=ranks, workers=workers, prefetch=prefetch, batch_times_s=[[batch]])
    expected = max(0.1, batch / workers)
    found = run_simulation(setting, 200)
    assert found.step_s == pytest.approx(expected, rel=0.01)
    assert found.data_wait_fraction == pytest.approx(1 - 0.1 / expected, abs=0.01)


def test_batches_without_workers_are_loaded_between_steps() -> None:
    assert run_simulation(replace(EVEN, workers=0)).step_s == pytest.approx(0.3)


def test_handoff_adds_to_the_step_unless_in_background() -> None:
    plenty = replace(EVEN, workers=8, handoff_s=0.03)
    assert run_simulation(plenty).step_s == pytest.approx(0.13)
    assert run_simulation(replace(plenty, background_handoff=True)).step_s == pytest.approx(0.1, rel=0.01)
    assert run_simulation(replace(plenty, background_handoff=True, handoff_s=0.15)).step_s == pytest.approx(0.15, rel=0.01), (
        "batches are handed off one after another"
    )


def test_handoff_overlaps_with_host_run_ahead() -> None:
    assert run_simulation(replace(EVEN, workers=8, handoff_s=0.03, run_ahead=1)).step_s == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize(("ranks", "prefetch", "slower"), [(1, 2, 1.25), (8, 2, 1.54), (1, 4, 1.15), (8, 4, 1.22)])
def test_uneven_batches_cost_the_known_slowdown_with_eight_workers(ranks: int, prefetch: int, slower: float) -> None:
    batches = [log_normal(0.8, 0.5, seed=rank) for rank in range(ranks)]
    courses = [run_simulation(replace(UNEVEN, ranks=ranks, prefetch=prefetch, batch_times_s=batches), seed=seed) for seed in range(8)]
    assert fmean(each.step_s for each in courses) / 0.1 == pytest.approx(slower, abs=0.07)


def test_more_workers_or_prefetch_never_slow_down_with_free_cores() -> None:
    by_workers = [run_simulation(replace(UNEVEN, workers=workers)).step_s for workers in (2, 4, 8, 12, 16)]
    by_prefetch = [run_simulation(replace(UNEVEN, prefetch=prefetch)).step_s for prefetch in (1, 2, 4, 8)]
    by_ranks = [run_simulation(replace(UNEVEN, ranks=ranks)).step_s for ranks in (8, 4, 2, 1)]
    for steps in (by_workers, by_prefetch, by_ranks):
        assert steps == sorted(steps, reverse=True)
        assert steps[-1] < steps[0]


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_order_does_not_matter_to_batches_that_take_equally_long(workers: int) -> None:
    ordered, unordered = (run_simulation(replace(EVEN, workers=workers, in_order=in_order)) for in_order in (True, False))
    assert unordered.step_s == pytest.approx(ordered.step_s, rel=0.01)


def test_late_batches_hold_up_no_others_out_of_order() -> None:
    """One batch in 20 takes 2 s; on average four workers load one in 37.5 ms, faster than a step."""
    late = replace(EVEN, workers=4, batch_times_s=[[0.05] * 19 + [2.05]], step_times_s=[0.1])
    ordered, unordered = run_simulation(late), run_simulation(replace(late, in_order=False))
    assert ordered.step_s > 0.13
    assert unordered.step_s == pytest.approx(0.1, rel=0.08)


def test_step_is_limited_by_cpu_time_on_the_cores() -> None:
    """Four ranks per node with 0.5 s of work each on 8 cores: 0.25 s, regardless of the workers."""
    crowded = replace(EVEN, ranks=8, ranks_per_node=4, workers=16, cores=8.0, step_cpu_s=0.5)
    assert run_simulation(crowded) == SimResult(pytest.approx(0.25), pytest.approx(0.6))
    assert run_simulation(replace(crowded, cores=64.0)).step_s == pytest.approx(0.1, rel=0.01)


def test_step_is_limited_by_storage() -> None:
    plenty = replace(EVEN, workers=16, storage_s=0.25)
    assert run_simulation(plenty) == SimResult(pytest.approx(0.25), pytest.approx(0.6))
    assert run_simulation(replace(plenty, storage_s=0.05)).step_s == pytest.approx(0.1, rel=0.01)


def test_slow_batches_on_one_rank_delay_all_ranks() -> None:
    assert run_simulation(replace(EVEN, ranks=3, batch_times_s=[[0.2], [2.0], [0.2]])).step_s == pytest.approx(0.5, rel=0.01)


def test_same_seed_gives_the_same_result() -> None:
    assert run_simulation(UNEVEN, seed=5) == run_simulation(UNEVEN, seed=5) != run_simulation(UNEVEN, seed=6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "workers", "prefetch", "variation", "in_order"),
    [(2, 4, 4, 0.5, True), (1, 4, 2, 0.8, True), (1, 4, 2, 0.8, False)],
)
def test_real_dataloader_matches_simulation(ranks: int, workers: int, prefetch: int, variation: float, in_order: bool) -> None:
    """Samples and steps that sleep, which needs no core; just enough workers; threads stand in for ranks."""
    from torch.utils.data import DataLoader

    step_s, steps = 0.1, 80
    spans = [log_normal(workers * step_s, variation, steps + workers * prefetch, seed=rank) for rank in range(ranks)]
    settings: dict[str, Any] = {"num_workers": workers, "prefetch_factor": prefetch, "in_order": in_order}
    loaders = [iter(DataLoader(Sleeping(each), **settings)) for each in spans]  # type: ignore[arg-type]
    meeting, ends = threading.Barrier(ranks), []

    def train(loader: Iterator[Any]) -> None:
        for _ in range(steps + workers * prefetch):
            next(loader)
            meeting.wait()
            time.sleep(step_s)
            ends.append(time.perf_counter())

    trainers = [threading.Thread(target=train, args=(loader,)) for loader in loaders]
    for trainer in trainers:
        trainer.start()
    for trainer in trainers:
        trainer.join()
    warm = ranks * workers * prefetch
    measured = (ends[-1] - ends[warm - 1]) / steps
    setting = SimParams(
        ranks=ranks,
        workers=workers,
        prefetch=prefetch,
        in_order=in_order,
        batch_times_s=spans,
        step_times_s=[step_s],
        handoff_s=0.0005,
    )
    simulated = fmean(run_simulation(setting, steps, seed).step_s for seed in range(5))
    assert 0.9 < measured / simulated < 1.3  # what else runs here can only delay it


class Sleeping:
    """Dataset whose samples take the given times."""

    def __init__(self, spans: list[float]) -> None:
        self._spans = spans

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, index: int) -> float:
        time.sleep(self._spans[index])
        return self._spans[index]
