"""The trials of a diagnosis on one rank: DataLoaders with other arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader

from ddpbench.data.loaders.start_workers import no_torch_sigchld_handler, suppress_worker_count_warning
from ddpbench.record.prediction import Scenario
from ddpbench.report.messages.sample_comparison import comparison_text
from ddpbench.report.messages.shared_handles import shared_text
from ddpbench.script.diagnose.own_loader import SteeredIterator, SteeredLoader
from ddpbench.script.diagnose.sample_comparison import compare_samples
from ddpbench.script.diagnose.shared_files import SharedFiles
from ddpbench.script.diagnose.stage import FailedTrial, RankResults, Stage, first_line
from ddpbench.script.diagnose.trial_loader import OpenTrial, open_decoding, open_resident, open_trial
from ddpbench.script.diagnose.worker_memory import make_room, measure_worker_memory
from ddpbench.script.observe.observer import Observer
from ddpbench.script.observe.source import LoaderSource


class Trials:
    """A trial that does not work is dropped: its windows get batches of the script's own loader."""

    def __init__(
        self, results: RankResults, loaders: Mapping[LoaderSource, SteeredLoader], ranks_per_node: int, files: SharedFiles
    ) -> None:
        self._results, self._loaders, self._ranks_per_node, self._files = results, loaders, ranks_per_node, files
        self.candidates: Sequence[Scenario] = ()
        """On rank 0, the scenarios to try."""
        self._take_turns = False  # the shared memory does not hold the batches of the script's workers and of a trial's

    def has_failed(self, scenario: Scenario) -> bool:
        """Whether the trial of ``scenario`` did not work on this rank."""
        return any(each.scenario == scenario for each in self._results.failed_trials)

    def compare_samples(self, iterator: SteeredIterator, observer: Observer, seconds: float) -> None:
        """On rank 0: see whether other workers read the same samples. If they do not, those of the candidates that have some fail."""
        results, loader = self._results, iterator.loader
        if self._files.shared(loader):
            return
        results.has_forked = True
        with observer.paused():
            results.sample_comparison = compared = compare_samples(loader, self._files, seconds)
        results.shared_handles = self._files.shared(loader)
        problem = shared_text(results.shared_handles) if results.shared_handles else comparison_text(compared)
        if results.shared_handles or compared.changes_samples:
            results.failed_trials += [FailedTrial(each, problem) for each in self.candidates if each.workers]

    def open_loader(self, stage: Stage, iterator: SteeredIterator, observer: Observer) -> OpenTrial | None:
        """The DataLoader with the arguments of the stage's scenario, whose workers live until the last stage; None if it failed."""
        loader, scenario = iterator.steered, stage.scenario
        present = loader.trials.get(scenario)
        if (present is None or present.whole_epochs != stage.whole_epochs) and not self.has_failed(scenario):
            try:
                with _quietly(observer):
                    device = observer.device or torch.device("cpu")
                    if scenario.resident:
                        trial = open_resident(iterator.loader, device, stage.whole_epochs)
                    elif scenario.decode_on_gpu:
                        trial = open_decoding(iterator.loader, device, stage.whole_epochs)
                    else:
                        trial = self._open_copy(iterator, scenario, stage.whole_epochs)
                    loader.trials[scenario] = OpenTrial(trial, stage.whole_epochs)
            except Exception as problem:
                self._fail(scenario, problem)
        return loader.trials.get(scenario)

    def _open_copy(self, iterator: SteeredIterator, scenario: Scenario, whole_epochs: bool) -> DataLoader[Any]:
        memory = measure_worker_memory(iterator.steered, self._ranks_per_node)
        copied = open_trial(iterator.loader, scenario, memory, self._files, iterator.source.is_rebuilt, whole_epochs)
        self._take_turns |= make_room(iterator, copied, memory)
        self._results.has_forked |= copied.num_workers > 0
        return copied

    def leave_room(self, loader: SteeredLoader) -> None:
        """The script's own workers are wanted: end those of trials if both do not fit."""
        if self._take_turns:
            loader.close_trials()

    def next_batch(self, stage: Stage, iterator: SteeredIterator, observer: Observer) -> Any:
        """The next batch of the trial of ``stage``. Raises what the script's own loader raises."""
        trial = self.open_loader(stage, iterator, observer)
        if trial is not None:
            try:
                if trial.is_between_epochs(is_first_batch=iterator.num_given == 0):
                    with _quietly(observer):
                        trial.restart()
                return self._next_of(trial, stage, iterator, observer)
            except Exception as problem:  # of a worker
                self._fail(stage.scenario, problem)
        return iterator.next_own(may_end=False)

    def _next_of(self, trial: OpenTrial, stage: Stage, iterator: SteeredIterator, observer: Observer) -> Any:
        """The next batch; of another pass over the dataset after its end. Raises StopIteration if that is empty."""
        try:
            return next(trial)
        except StopIteration:
            with _quietly(observer):
                trial.restart()
            return next(trial)

    def _fail(self, scenario: Scenario, problem: Exception) -> None:
        self._results.failed_trials.append(FailedTrial(scenario, first_line(problem)))
        for loader in self._loaders.values():
            if trial := loader.trials.pop(scenario, None):
                trial.close(may_hang=True)


@contextmanager
def _quietly(observer: Observer) -> Iterator[None]:
    """Start workers that are not the script's."""
    with observer.paused(), suppress_worker_count_warning(), no_torch_sigchld_handler():
        yield
