"""The DataLoader of a trial: the script's dataset and samplers, with other workers, prefetching, order or pinned memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice
from time import monotonic
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ddpbench.analysis.worker_memory import memory_limit
from ddpbench.data.loaders.start_workers import is_forked, suppress_worker_count_warning
from ddpbench.loaders.resident import ResidentDataset, collate_resident
from ddpbench.record.diagnosis import WorkerMemory
from ddpbench.record.errors import ConfigFailed
from ddpbench.record.loader_stats import LoaderStats
from ddpbench.record.prediction import Scenario
from ddpbench.report.messages.shared_handles import shared_text
from ddpbench.report.messages.worker_memory import memory_limit_text
from ddpbench.script.diagnose.main_guard import check_spawned_workers
from ddpbench.script.diagnose.shared_files import SharedFiles
from ddpbench.script.observe.source import DEFAULT_PREFETCH

BATCH_TIMEOUT_S, SPAWNED_BATCH_TIMEOUT_S = 20.0, 60.0
"""Seconds after which a batch of a trial is taken to be lost. Only then does a DataLoader with a timeout look for dead workers.

Spawned workers import the script before their first batch.
"""

MAX_SKIP_S = 1.0
"""Seconds that a trial may take to reach the middle of an epoch: some samplers draw slowly."""


MAX_DRAW_S = 2.0
"""Seconds in which indices are drawn before a trial in which they are ready."""


class OpenTrial:
    """The DataLoader of a trial and its present iterator. With ``whole_epochs`` it has epochs, like the script's own."""

    def __init__(self, loader: DataLoader[Any], whole_epochs: bool) -> None:
        self.whole_epochs, self._loader = whole_epochs, loader
        self._batches: Any = None if whole_epochs else iter(loader)  # timed

    def is_between_epochs(self, is_first_batch: bool) -> bool:
        """Whether an epoch is yet to begin, before a batch that may be the first of the script's epoch."""
        return self._batches is None or (self.whole_epochs and is_first_batch)

    def restart(self) -> None:
        """Begin an epoch. Workers that are kept stay."""
        self._batches = iter(self._loader)

    def close(self, may_hang: bool = False) -> None:
        """End its workers, at once if they ``may_hang``."""
        if hasattr(self._batches, "end_workers"):  # not None, and not of another class
            self._batches.end_workers(may_hang)
        self._batches = None

    def __next__(self) -> Any:
        return next(self._batches)

    @property
    def samples(self) -> int | None:
        """Samples in the last batch; None if unknown."""
        return getattr(self._batches, "samples", None)

    @property
    def num_workers(self) -> int:
        return self._loader.num_workers

    @property
    def prefetched(self) -> int:
        """Batches that its workers may have ready."""
        return self._loader.num_workers * (self._loader.prefetch_factor or 0)

    def worker_pids(self) -> list[int]:
        return [] if self._batches is None else self._batches.worker_pids()

    def pop_stats(self) -> LoaderStats | None:
        return None if self._batches is None else self._batches.pop_stats()


def open_trial(
    loader: DataLoader[Any],
    scenario: Scenario,
    memory: WorkerMemory,
    files: SharedFiles,
    is_rebuilt: bool = False,
    whole_epochs: bool = False,
) -> DataLoader[Any]:
    """A copy of ``loader`` with the arguments of ``scenario``. Raises ConfigFailed if it cannot work.

    Unless it has ``whole_epochs``, its batches never end, except those of an IterableDataset, and it begins in the middle of an epoch: what
    ``loader`` has just read is in the page cache. ``files`` are those that its workers must not share with this process. Its workers live
    for longer than an epoch as those of the advised call do, but not if the script creates its loader again for every epoch.
    """
    workers, dataset = loader.num_workers if scenario.workers is None else scenario.workers, loader.dataset
    if workers:
        check_spawned_workers(loader)
    if workers and (shared := files.shared(loader)):
        raise ConfigFailed(shared_text(shared))
    if loader.num_workers and not workers:
        dataset = copy.copy(dataset)  # what it opens with its first sample would be shared by workers that the script forks later
    prefetch = scenario.prefetch or loader.prefetch_factor or DEFAULT_PREFETCH
    if limit := memory_limit(workers, prefetch, memory):
        raise ConfigFailed(memory_limit_text(limit, workers, prefetch, memory))
    worker_arguments: dict[str, Any] = {}
    if workers:
        worker_arguments = {
            "prefetch_factor": prefetch,
            "persistent_workers": not is_rebuilt and (scenario.keeps_workers or loader.persistent_workers),
            "multiprocessing_context": loader.multiprocessing_context,
            "timeout": batch_timeout_s(loader),
            "worker_init_fn": files.worker_init(loader),
            "in_order": loader.in_order if scenario.in_order is None else scenario.in_order,
        }
    with suppress_worker_count_warning():
        return DataLoader(
            dataset,
            num_workers=workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory if scenario.pin_memory is None else scenario.pin_memory,
            generator=_copied(loader.generator),
            **_order(loader, whole_epochs, bool(scenario.ready_indices)),
            **worker_arguments,
        )


def open_resident(loader: DataLoader[Any], device: torch.device, whole_epochs: bool = False) -> DataLoader[Any]:
    """The data of ``loader`` on ``device``, as ``ddpbench.loaders.resident`` reads them, in an order as of ``open_trial``."""
    dataset = ResidentDataset(loader.dataset, device, falls_back=False)
    return DataLoader(dataset, collate_fn=collate_resident, generator=_copied(loader.generator), **_order(loader, whole_epochs))


def open_decoding(loader: DataLoader[Any], device: torch.device, whole_epochs: bool = False) -> DataLoader[Any]:
    """The images of ``loader``, as ``ddpbench.loaders.decode_on_gpu`` decodes them, in an order as of ``open_trial``.

    Raises NotSupportedError where it does not.
    """
    from ddpbench.loaders.gpu_decoding import DecodingLoader, check_decode_on_gpu, check_gpu  # torchvision takes a second

    check_decode_on_gpu(loader)
    check_gpu(device)
    return DecodingLoader(DataLoader(loader.dataset, generator=_copied(loader.generator), **_order(loader, whole_epochs)), device)


def batch_timeout_s(loader: DataLoader[Any]) -> float:
    """Seconds that workers like those of ``loader`` may take for a batch."""
    timeout_s = BATCH_TIMEOUT_S if is_forked(loader) else SPAWNED_BATCH_TIMEOUT_S
    return min(loader.timeout or timeout_s, timeout_s)


def _order(loader: DataLoader[Any], whole_epochs: bool, is_ready: bool = False) -> dict[str, Any]:
    """The arguments that set which samples are in a batch. If it ``is_ready``, their indices are drawn here."""
    copied: Callable[[Any], Any] = _copied_sampler if whole_epochs else EndlessSampler
    if is_ready:
        copied = partial(ReadyIndices, num_samples=_length(loader.dataset))
    if isinstance(loader.dataset, IterableDataset):
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if loader.batch_sampler is None:
        return {"batch_size": None, "sampler": copied(loader.sampler)}
    return {"batch_sampler": copied(loader.batch_sampler)}


def _copied_sampler(sampler: Any) -> Any:
    """A copy, since the script goes on to set the epoch of ``sampler``, or of the one in a BatchSampler."""
    new = copy.copy(sampler)
    if hasattr(sampler, "sampler"):
        new.sampler = copy.copy(sampler.sampler)
    return new


class EndlessSampler:
    """The batches, or samples, of a copy of ``sampler``, without end: from the middle of an epoch on, or from what is drawn in time."""

    def __init__(self, sampler: Any, max_skip_s: float = MAX_SKIP_S) -> None:
        self._sampler, self._max_skip_s = _copied_sampler(sampler), max_skip_s

    def __iter__(self) -> Iterator[Any]:
        num_skipped, end_s = _length(self._sampler) // 2, monotonic() + self._max_skip_s
        is_first_epoch = True
        while True:
            is_empty = True
            for number, each in enumerate(iter(self._sampler)):
                if is_first_epoch and number < num_skipped and monotonic() < end_s:
                    continue
                is_first_epoch = is_empty = False
                yield each
            if is_empty and not is_first_epoch:
                return  # a sampler that can be used once
            is_first_epoch = False


class ReadyIndices:
    """Batches, or samples, that a copy of ``sampler`` has drawn in ``MAX_DRAW_S``, and then others like them; in epochs if it has a length.

    The others are batches of the same sizes with any of ``num_samples``: those that were drawn lie in the page cache by then.
    """

    def __init__(self, sampler: Any, num_samples: int) -> None:
        end_s = monotonic() + MAX_DRAW_S
        self._drawn = []
        for each in _copied_sampler(sampler):
            self._drawn.append(each)
            if monotonic() > end_s:
                break
        self._length, self._num_samples = _length(sampler), num_samples
        self._generator = torch.Generator().manual_seed(0)
        self._is_used = False

    def __iter__(self) -> Iterator[Any]:
        return islice(self._endless(), self._length or None)

    def _endless(self) -> Iterator[Any]:
        if not self._is_used:
            self._is_used = True
            yield from self._drawn
        yield from map(self._like, cycle(self._drawn))

    def _like(self, batch: Any) -> Any:
        """A batch of that size, if it consists of numbers of samples."""
        if not self._num_samples or not isinstance(batch, list) or not all(type(each) is int for each in batch):
            return batch
        return torch.randint(self._num_samples, (len(batch),), generator=self._generator).tolist()

    def __len__(self) -> int:
        return self._length


def _length(sized: Any) -> int:
    try:
        return len(sized)
    except TypeError:
        return 0


def _copied(generator: torch.Generator | None) -> torch.Generator | None:
    if generator is None:
        return None
    new = torch.Generator(generator.device)
    new.set_state(generator.get_state())
    return new
