"""A pool of DALI pipelines, restarted after an undecodable file."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ddpbench.data.datasets.image_folder import ImageFolderIndex
from ddpbench.data.image_decoding import decode, read_image_bytes
from ddpbench.data.loader import WorkerTiming
from ddpbench.data.loaders.dali.graph import DaliGraph, EncodedPath, Stage, encode_path
from ddpbench.data.loaders.workers import SkippedFiles
from ddpbench.data.sampler import DistributedBatchSampler
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import BenchError
from ddpbench.record.loaders import loader_spec


@dataclass(frozen=True)
class DaliBatch:
    """One batch: DALI's tensor list with a tensor per image, and labels (B,) on the host."""

    images: Any
    labels: Tensor
    worker_timing: WorkerTiming


class PipelinePool:
    """Batches in the order of a rank's sampler.

    They come from one pipeline per thread group of the loader. If a pipeline fails, all are restarted without the files that caused it,
    as far as ``skipped`` allows. A pipeline works on one batch after another and does not report when one is ready: in its WorkerTiming,
    a batch begins when the previous batch of the same pipeline was received. If the trainer is slower than DALI, that is longer than DALI
    took.
    """

    def __init__(
        self,
        graph: DaliGraph,
        index: ImageFolderIndex,
        config: ResolvedConfig,
        rank: int,
        world_size: int,
        skipped: SkippedFiles,
        last_stage: Stage = "augment",
    ) -> None:
        self._graph, self._last_stage, self._config = graph, last_stage, config
        self._threads_per_pipeline = loader_spec(config.loader).thread_group_sizes(config.workers)
        self._seeds = [config.seed + rank + group * world_size for group in range(len(self._threads_per_pipeline))]
        self.max_prefetched = len(self._threads_per_pipeline) * config.prefetch
        self._files, self._labels = index.files, torch.tensor(index.labels)
        sampler = DistributedBatchSampler(len(index.files), config.batch_size, rank, world_size, config.seed, config.shuffle)
        self._feeder = FileFeeder(index.files, sampler)
        self._skipped = skipped
        self._pipelines = self._start()

    def next_batch(self) -> DaliBatch:
        """The next batch, complete.

        Raises BenchError, naming the file, if more files are undecodable than may be skipped.
        """
        new: list[BenchError] = []
        while True:
            try:
                images, timing = self._pipelines.next_output()
            except RuntimeError as problem:
                self._pipelines.close()
                problem.__traceback__ = None  # the traceback would keep the failed pipeline alive
                new += self._skip_undecodable(problem)
            else:
                return DaliBatch(images, self._labels[self._feeder.pop_batch()], replace(timing, skipped_files=tuple(new)))

    def close(self) -> None:
        """End DALI's threads."""
        self._pipelines.close()

    def _start(self) -> RoundRobin:
        return RoundRobin([self._pipeline(group) for group in range(len(self._threads_per_pipeline))], self._threads_per_pipeline)

    def _pipeline(self, group: int) -> Any:
        config = self._config
        positions = (position for position, owner in enumerate(weighted_round_robin(self._threads_per_pipeline)) if owner == group)
        return self._graph.build_pipeline(
            self._feeder.encoded_paths(positions),
            config.batch_size,
            self._threads_per_pipeline[group],
            config.prefetch,
            self._seeds[group],
            self._last_stage,
        )

    def _skip_undecodable(self, problem: RuntimeError) -> list[BenchError]:
        """Restart without the files that a pipeline failed on; returns their errors.

        Raises BenchError if they may not be skipped, or no files are left.
        """
        for batch in self._feeder.pending_batches():
            damaged = dict(find_undecodable([self._files[number] for number in batch], self._graph))
            if damaged:
                break
        else:
            raise BenchError(f"DALI failed: {_first_error_line(problem)}") from problem
        errors = {batch[position]: error for position, error in damaged.items()}  # a batch across epochs may hold a sample twice
        new = self._skipped.add(errors.values())
        if not self._feeder.skip(errors):
            raise self._skipped.too_many_error(list(errors.values())[-1]) from problem
        self._pipelines = self._start()
        return new


def find_undecodable(files: Sequence[str], graph: DaliGraph) -> Iterator[tuple[int, BenchError]]:
    """Indices in ``files`` of those that DALI cannot decode, with the reason.

    DALI decodes one file at a time, completely.
    """
    full_graph = replace(graph, augment=False)
    begin = 0
    while found := _first_undecodable(files[begin:], full_graph):
        position, message = begin + found[0], found[1]
        yield position, _decode_error(files[position], message)
        begin = position + 1


def _first_undecodable(files: Sequence[str], graph: DaliGraph) -> tuple[int, str] | None:
    """Index of the first file that DALI fails on, and DALI's message; None if there is none."""
    names = ([encode_path(file)] for file in files)
    one_by_one = graph.build_pipeline(names, batch_size=1, threads=1, prefetch=1, seed=0, last_stage="decode")
    for position in range(len(files)):
        try:
            one_by_one.run()
        except RuntimeError as problem:
            return position, _first_error_line(problem)
    return None


def _decode_error(file: str, message: str) -> BenchError:
    """PIL's error if PIL cannot decode the file either, else DALI's."""
    try:
        decode(read_image_bytes(file), file)
    except BenchError as damaged:
        return damaged
    return BenchError(
        f"DALI cannot decode the image '{file}': {message}", "use --loader torch, which can, or skip up to N files with --skip-bad N"
    )


def _first_error_line(problem: RuntimeError) -> str:
    """The line with the cause in DALI's long message."""
    lines = [line.strip() for line in str(problem).partition("encountered:")[2].splitlines() if line.strip()]
    return lines[0] if lines else str(problem).partition("\n")[0]


def weighted_round_robin(threads: Sequence[int]) -> Iterator[int]:
    """Endless sequence of the pipelines that prepare one batch after another.

    Each occurs in proportion to its ``threads``, spread evenly. In strict turns, pipelines with fewer threads, which take longer per
    batch, would hold up the others.
    """
    counts = [0] * len(threads)
    while True:
        chosen = min(range(len(threads)), key=lambda pipeline: (counts[pipeline] + 1) / threads[pipeline])
        counts[chosen] += 1
        yield chosen


class RoundRobin:
    """Takes batches from ``pipelines``, in turns weighted by their ``threads``.

    A pipeline that has delivered a batch continues at the next request, whichever pipeline serves that request.
    """

    def __init__(self, pipelines: Sequence[Any], threads: Sequence[int]) -> None:
        self._pipelines = self._idle = pipelines
        self._order = weighted_round_robin(threads)
        self._received_s = [perf_counter()] * len(pipelines)

    def next_output(self) -> tuple[Any, WorkerTiming]:
        """The next batch, as DALI's tensor list, and its timing.

        Raises RuntimeError if its pipeline fails.
        """
        for pipeline in self._idle:
            pipeline.schedule_run()
        index = next(self._order)
        self._idle = [self._pipelines[index]]
        (images,) = self._pipelines[index].outputs()
        start_s, self._received_s[index] = self._received_s[index], perf_counter()
        return images, WorkerTiming(start_s, self._received_s[index])

    def close(self) -> None:
        """End the pipelines' threads."""
        self._pipelines = self._idle = ()


class FileFeeder:
    """Batches of sample indices in the sampler's order, whichever pipeline asks first."""

    def __init__(self, files: Sequence[str], sampler: DistributedBatchSampler) -> None:
        self._files, self._sampler = files, sampler
        self._skipped: set[int] = set()
        self._numbers = (number for number in sampler.indices() if number not in self._skipped)
        self._pending: deque[list[int]] = deque()
        self._next = 0  # position of the first pending batch in the sampler's order

    def encoded_paths(self, positions: Iterable[int]) -> Iterator[list[EncodedPath]]:
        """Encoded paths of the files of the batches at ``places``.

        0 is the batch that is returned next.
        """
        start = self._next
        return ([encode_path(self._files[number]) for number in self._batch(start + position)] for position in positions)

    def pop_batch(self) -> list[int]:
        """Sample indices of the batch that has been returned."""
        self._next += 1
        return self._pending.popleft()

    def pending_batches(self) -> list[list[int]]:
        """The batches that have not been returned yet."""
        return list(self._pending)

    def skip(self, numbers: Collection[int]) -> bool:
        """Skip these samples from now on; returns whether others are left.

        In pending batches they are replaced by the sampler's next samples.
        """
        self._skipped.update(numbers)
        if self._skipped.issuperset(self._sampler.all_indices()):
            return False
        for batch in self._pending:
            batch[:] = [next(self._numbers) if number in self._skipped else number for number in batch]
        return True

    def _batch(self, position: int) -> list[int]:
        """The batch at ``place`` in the sampler's order."""
        while position - self._next >= len(self._pending):
            self._pending.append(list(islice(self._numbers, self._sampler.batch_size)))
        return self._pending[position - self._next]
