"""Trials that may not begin, since their workers read other samples."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from steered_loaders import steer
from torch.utils.data import DataLoader, Dataset, get_worker_info

from ddpbench.record.prediction import Scenario
from ddpbench.record.script import SharedHandle
from ddpbench.script.diagnose.shared_files import SharedFiles
from ddpbench.script.diagnose.stage import RankResults
from ddpbench.script.diagnose.trials import Trials
from ddpbench.script.observe.observer import Observer

MORE_WORKERS, PINNED, NO_WORKERS = Scenario(workers=4), Scenario(pin_memory=True), Scenario(workers=0)


class Samples(Dataset[Any]):
    def __init__(self, sample: Callable[[int], Any]) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


def compared(dataset: Dataset[Any], files: SharedFiles | None = None) -> tuple[Trials, RankResults]:
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=4)
    iterator = steer(loader)
    results = RankResults()
    trials = Trials(results, {iterator.source: iterator.steered}, 1, files or SharedFiles())
    trials.candidates = [MORE_WORKERS, PINNED, NO_WORKERS]
    trials.compare_samples(iterator, Observer(), seconds=2.0)
    return trials, results


def test_equal_samples_rule_out_nothing() -> None:
    trials, results = compared(Samples(lambda index: index))
    assert results.has_forked
    assert results.sample_comparison is not None
    assert results.sample_comparison.samples > 64, "of several epochs"
    assert not any(map(trials.has_failed, trials.candidates))


def test_other_samples_rule_out_other_workers() -> None:
    trials, results = compared(Samples(lambda index: get_worker_info() is None))
    assert [trials.has_failed(each) for each in trials.candidates] == [True, False, False]
    (failed,) = results.failed_trials
    assert failed.message.endswith("differ if 3 workers read them at once")


def test_worker_that_dies_rules_out_other_workers() -> None:
    def fatal(index: int) -> int:
        info = get_worker_info()
        if info and info.id == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return index

    trials, results = compared(Samples(fatal))
    assert trials.has_failed(MORE_WORKERS)
    assert results.failed_trials[0].message.startswith("samples of 3 workers could not be compared: DataLoader worker")


def test_nothing_is_read_by_workers_that_would_share_a_file(tmp_path: Any) -> None:
    with (tmp_path / "data").open("w+") as opened:
        dataset = Samples(lambda index: (index, opened.name))
        files = SharedFiles()
        assert files.shared(DataLoader(dataset)) == [SharedHandle(name="Samples.sample.opened", kind="file")]
        _, results = compared(dataset, files)
    assert not results.has_forked
    assert results.sample_comparison is None


@pytest.mark.parametrize("scenario", [MORE_WORKERS, PINNED])
def test_nothing_has_failed_before(scenario: Scenario) -> None:
    assert not Trials(RankResults(), {}, 1, SharedFiles()).has_failed(scenario)
