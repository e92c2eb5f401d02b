"""Compares samples that several workers read at once with those of the script's own way of reading.

A DataLoader with more workers is no cure if it gives other samples. What makes it do so cannot be seen in the code of a dataset: a file
that a library in C has open, a cache that every worker fills, a number of the worker that a transform uses. So both ways are tried.

The own way is that of the script: a dataset without workers is read in this process, where the script reads it, one with workers by a
single worker. The other way is what is to be tried: workers of a DataLoader with the script's start method. They are forked from this
process like those of a trial, so they inherit what those would, need no pickled copy of the dataset, and never run the script again: it
need not be guarded by ``if __name__ == "__main__"``. If workers are spawned, a script without that guard is not compared, nor are other
workers tried. Before each sample the random states are the same, so that random transforms can be compared, too, unless they have a
generator of their own. Then two reads in the script's own way differ, and nothing is claimed.

The samples of a stream, an IterableDataset, have no index. Its workers are compared with each other: they must not yield the same samples.
If they do so only with equal seeds, nothing is claimed either.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from math import inf
from time import monotonic
from typing import Any, TypeVar

import numpy as np
import torch
from msgspec.structs import replace
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from ddpbench.data.loaders.start_workers import is_forked, no_torch_sigchld_handler, suppress_worker_count_warning
from ddpbench.machine.random_states import kept_random_states
from ddpbench.record.script import SampleComparison
from ddpbench.script.diagnose.descriptors import positions
from ddpbench.script.diagnose.main_guard import check_spawned_workers
from ddpbench.script.diagnose.shared_files import SharedFiles
from ddpbench.script.diagnose.stage import first_line
from ddpbench.script.diagnose.trial_loader import EndlessSampler, batch_timeout_s
from ddpbench.script.observe.sample_digest import digest, part_digests

MAX_SAMPLES, WORKERS, STREAM_WORKERS = 300, 3, 2

PROBED_SAMPLES, PROBE_S = 16, 1.0
"""Samples, and seconds after the first, in which a worker shows which files it moves."""

CHUNK = 4
"""Samples that a worker reads at once: with few of them, all workers read at the same time."""

WORKERS_FRACTION, OWN_FRACTION = 0.2, 0.4
"""Fractions of the time in which workers read samples, and in which these are read in the script's own way, once and once more."""

SEEDED_FRACTION = 0.6
"""Fraction of the time in which workers read a stream with seeds of their own; in the rest they have equal ones."""

MIN_COMPARABLE = 0.5
"""Fraction of the samples that must be the same in both reads of the script's own way. Below, its transforms are random."""

MAX_REPEATED, MAX_OWN_REPEATED = 0.1, 0.1
"""Fractions of the samples of one worker: more than the first are also those of another if the stream is not divided, unless more than
the second are the same within one worker.
"""

Sample = TypeVar("Sample")
WorkerInit = Callable[[int], None] | None


def probe_shared_files(loader: DataLoader[Any], files: SharedFiles) -> bool:
    """Let one worker read a few samples, so that ``files`` notices which files it moves that a library has opened.

    Returns whether there was a reason to start it.
    """
    if not is_forked(loader) or files.shared(loader) or not positions():
        return False
    worker_init, dataset = files.worker_init(loader), loader.dataset
    with suppress(Exception), kept_random_states(loader.generator), no_torch_sigchld_handler(), files.watch_positions(loader):
        if isinstance(dataset, IterableDataset):
            stream = DataLoader(dataset, batch_size=None, collate_fn=of_worker, **_arguments(loader, 1, worker_init))
            with iterating(stream) as samples:
                _until(PROBE_S, islice(samples, PROBED_SAMPLES))
        else:
            digested = DigestedSamples(dataset, list(islice(_indices(loader), PROBED_SAMPLES)))
            _until(PROBE_S, _read(loader, digested, len(digested), 1, worker_init))
    return True


def compare_samples(loader: DataLoader[Any], files: SharedFiles, seconds: float) -> SampleComparison:
    """Read up to ``MAX_SAMPLES`` of ``loader`` in both ways, for about ``seconds``. ``files`` are those that workers must not share."""
    is_stream = isinstance(loader.dataset, IterableDataset)
    workers = STREAM_WORKERS if is_stream else WORKERS
    try:
        check_spawned_workers(loader)
        with kept_random_states(loader.generator), suppress_worker_count_warning(), no_torch_sigchld_handler():
            return _compare_streams(loader, files, seconds) if is_stream else _compare_indexed(loader, files, seconds)
    except Exception as problem:  # of the user's dataset, or of a worker
        return SampleComparison(workers=workers, is_stream=is_stream, not_compared="failed", error=first_line(problem))


def _compare_indexed(loader: DataLoader[Any], files: SharedFiles, seconds: float) -> SampleComparison:
    """The workers come first: forked later, they would inherit what a dataset keeps of the samples that this process reads."""
    samples, worker_init = DigestedSamples(loader.dataset, list(islice(_indices(loader), MAX_SAMPLES))), files.worker_init(loader)
    with files.watch_positions(loader):
        found = _until(WORKERS_FRACTION * seconds, _read(loader, samples, len(samples), WORKERS, worker_init))
    first, second = (_read_own_way(loader, samples, len(found), worker_init, OWN_FRACTION * seconds) for _ in range(2))
    number = min(len(first), len(second))
    same = [position for position in range(number) if first[position] == second[position]]
    if len(same) < max(1, MIN_COMPARABLE * number):
        return SampleComparison(workers=WORKERS, samples=number, not_compared="random")
    different = sum(found[position] != first[position] for position in same)
    return SampleComparison(workers=WORKERS, samples=len(same), different=different, unsteady=number - len(same))


def _read_own_way(loader: DataLoader[Any], samples: DigestedSamples, number: int, worker_init: WorkerInit, seconds: float) -> list[bytes]:
    """The digests of the first ``number`` samples, or of as many as ``seconds`` suffice for."""
    if loader.num_workers:
        return _until(seconds, _read(loader, samples, number, 1, worker_init))
    return _until(seconds, map(samples.__getitem__, range(number)))


def _until(seconds: float, samples: Iterable[Sample]) -> list[Sample]:
    """As many of ``samples`` as come within ``seconds`` of the first: workers need some time to start."""
    found: list[Sample] = []
    end_s = inf
    for each in samples:
        end_s = min(end_s, monotonic() + seconds)
        found.append(each)
        if monotonic() > end_s:
            break
    return found


def _read(loader: DataLoader[Any], samples: DigestedSamples, number: int, workers: int, worker_init: WorkerInit) -> Iterator[bytes]:
    """The digests of the first ``number`` samples, which ``workers`` read at once."""
    chunks = [list(range(begin, min(begin + CHUNK, number))) for begin in range(0, number, CHUNK)]
    arguments = _arguments(loader, workers, InitWithDataset(worker_init))
    with iterating(DataLoader(samples, batch_sampler=chunks, collate_fn=list, **arguments)) as batches:
        for digests in batches:
            yield from digests


@contextmanager
def iterating(loader: DataLoader[Any]) -> Iterator[Iterator[Any]]:
    """An iterator of ``loader``, whose workers end with the block, also after an error."""
    iterator: Any = iter(loader)
    try:
        yield iterator
    finally:
        iterator._shutdown_workers()


def _arguments(loader: DataLoader[Any], workers: int, worker_init: WorkerInit) -> dict[str, Any]:
    return {
        "num_workers": workers,
        "multiprocessing_context": loader.multiprocessing_context,
        "timeout": batch_timeout_s(loader),
        "worker_init_fn": worker_init,
        "generator": torch.Generator(),
    }


class DigestedSamples(Dataset[bytes]):
    """The digests of the samples of a script's dataset at ``indices``. Each is read with random states of its own."""

    def __init__(self, of_script: Any, indices: Sequence[Any]) -> None:
        self.of_script, self._indices = of_script, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, position: int) -> bytes:
        seed_random_states(position)
        index, fetch_batch = self._indices[position], getattr(self.of_script, "__getitems__", None)
        return digest(fetch_batch([index])[0] if fetch_batch and not isinstance(index, list) else self.of_script[index])


@dataclass(frozen=True)
class InitWithDataset:
    """The ``worker_init_fn`` of a worker that reads DigestedSamples: that of the user finds the dataset of the script."""

    worker_init: WorkerInit

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.of_script)  # it is read-only
        if self.worker_init:
            self.worker_init(worker)


def _indices(loader: DataLoader[Any]) -> Iterator[Any]:
    """What the sampler of ``loader`` draws; the sampler itself is left alone."""
    if loader.batch_sampler is None:
        yield from EndlessSampler(loader.sampler, max_skip_s=0)
        return
    for batch in EndlessSampler(loader.batch_sampler, max_skip_s=0):
        yield from batch


# streams


def _compare_streams(loader: DataLoader[Any], files: SharedFiles, seconds: float) -> SampleComparison:
    """Whether workers yield each other's samples: with the seeds that the DataLoader gives them, and with equal seeds.

    A stream that is not divided may shuffle itself. Then workers with seeds of their own yield other samples at first, and all of them in
    the end; with equal seeds they yield the same. So do workers that draw samples with replacement, which need not be divided.
    """
    worker_init = files.worker_init(loader)
    with files.watch_positions(loader):
        read = _read_stream(loader, worker_init, SEEDED_FRACTION * seconds)
        comparison = SampleComparison(workers=STREAM_WORKERS, samples=sum(map(len, read)), is_stream=True)
        repeated = _repeated_by_part(read)
        if len(read) < STREAM_WORKERS:  # one worker has all of a short stream
            return comparison
        if not repeated:
            return replace(comparison, not_compared="repetitive")
        if max(repeated) > MAX_REPEATED * min(map(len, read)):
            return replace(comparison, different=max(repeated))
        again = _read_stream(loader, InitWithEqualSeeds(worker_init), (1 - SEEDED_FRACTION) * seconds)
    repeated = _repeated_by_part(again)
    is_shuffled = len(again) == STREAM_WORKERS and repeated and min(repeated) > MAX_REPEATED * min(map(len, again))
    return replace(comparison, not_compared="shuffled") if is_shuffled else comparison


def _read_stream(loader: DataLoader[Any], worker_init: WorkerInit, seconds: float) -> list[list[tuple[bytes, ...]]]:
    """The digests of the parts of each sample, by the worker that has yielded it; of those workers that have yielded any."""
    end_s, read = monotonic() + seconds, defaultdict[int, list[tuple[bytes, ...]]](list)
    stream = DataLoader(loader.dataset, batch_size=None, collate_fn=of_worker, **_arguments(loader, STREAM_WORKERS, worker_init))
    with iterating(stream) as samples:
        for worker, parts in islice(samples, MAX_SAMPLES):
            read[worker].append(parts)
            if monotonic() > end_s and len(read) == STREAM_WORKERS:
                break
    return list(read.values())


def _repeated_by_part(read: Sequence[list[tuple[bytes, ...]]]) -> list[int]:
    """How often workers have yielded the same: one number for each part of a sample that identifies it."""
    sets = [[set(part) for part in zip(*worker, strict=False)] for worker in read]
    fewest = [(1 - MAX_OWN_REPEATED) * len(worker) for worker in read]
    parts = range(min(map(len, sets), default=0))
    identifying = [part for part in parts if all(len(own[part]) >= few for own, few in zip(sets, fewest, strict=True))]
    return [len(set.intersection(*(own[part] for own in sets))) for part in identifying]


@dataclass(frozen=True)
class InitWithEqualSeeds:
    """The ``worker_init_fn`` of workers that all begin with the same random states."""

    worker_init: WorkerInit

    def __call__(self, worker: int) -> None:
        if self.worker_init:
            self.worker_init(worker)
        seed_random_states(0)


def of_worker(sample: Any) -> tuple[int, tuple[bytes, ...]]:
    """The number of the worker that has read ``sample``, and the digests of its parts."""
    info = get_worker_info()
    return info.id if info else 0, part_digests(sample)


# random states


def seed_random_states(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch's CPU."""
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)
