"""Batches from a pool of DALI pipelines, which restarts one after an undecodable file."""

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
    """One batch: DALI's own list of tensors, an image each, and the labels (B,) on the host."""

    images: Any
    labels: Tensor
    worker_timing: WorkerTiming


class PipelinePool:
    """The batches of a rank's plan, in its order, from a pipeline for each team of the loader's threads.

    Where one dies all are started anew, without the files that it died of, if that may be. A pipeline works on one batch
    after the other, and tells nobody when one is done: on its sheet a batch is begun when the one before it of the same pipeline
    was had. Where the trainer is the slower one, that is longer than DALI took.
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
        self._seeds = [config.seed + rank + team * world_size for team in range(len(self._threads_per_pipeline))]
        self.max_prefetched = len(self._threads_per_pipeline) * config.prefetch
        self._files, self._labels = index.files, torch.tensor(index.labels)
        plan = DistributedBatchSampler(len(index.files), config.batch_size, rank, world_size, config.seed, config.shuffle)
        self._feeder = FileFeeder(index.files, plan)
        self._skipped = skipped
        self._pipelines = self._start()

    def next_batch(self) -> DaliBatch:
        """The next batch, which is there when this returns. Raises BenchError, naming the file, where one too many cannot be decoded."""
        new: list[BenchError] = []
        while True:
            try:
                images, sheet = self._pipelines.next_output()
            except RuntimeError as problem:
                self._pipelines.close()
                problem.__traceback__ = None  # which keeps the pipeline that died
                new += self._skip_undecodable(problem)
            else:
                return DaliBatch(images, self._labels[self._feeder.pop_batch()], replace(sheet, skipped_files=tuple(new)))

    def close(self) -> None:
        """Ends DALI's threads."""
        self._pipelines.close()

    def _start(self) -> RoundRobin:
        return RoundRobin([self._pipeline(team) for team in range(len(self._threads_per_pipeline))], self._threads_per_pipeline)

    def _pipeline(self, team: int) -> Any:
        config = self._config
        places = (place for place, whose in enumerate(weighted_round_robin(self._threads_per_pipeline)) if whose == team)
        return self._graph.build_pipeline(
            self._feeder.encoded_paths(places),
            config.batch_size,
            self._threads_per_pipeline[team],
            config.prefetch,
            self._seeds[team],
            self._last_stage,
        )

    def _skip_undecodable(self, problem: RuntimeError) -> list[BenchError]:
        """Starts anew without what a pipeline died of, and returns why. Raises BenchError where that may not be, or nothing is left."""
        for batch in self._feeder.pending_batches():
            damaged = dict(find_undecodable([self._files[number] for number in batch], self._graph))
            if damaged:
                break
        else:
            raise BenchError(f"DALI failed: {_first_error_line(problem)}") from problem
        found = {batch[place]: why for place, why in damaged.items()}  # once, also where an epoch's end puts a sample twice into a batch
        new = self._skipped.add(found.values())
        if not self._feeder.skip(found):
            raise self._skipped.too_many_error(list(found.values())[-1]) from problem
        self._pipelines = self._start()
        return new


def find_undecodable(files: Sequence[str], graph: DaliGraph) -> Iterator[tuple[int, BenchError]]:
    """The places in ``files`` of those that DALI cannot decode, each with the reason: DALI is given one at a time, whole."""
    whole = replace(graph, augment=False)
    begin = 0
    while found := _first_undecodable(files[begin:], whole):
        place, said = begin + found[0], found[1]
        yield place, _decode_error(files[place], said)
        begin = place + 1


def _first_undecodable(files: Sequence[str], graph: DaliGraph) -> tuple[int, str] | None:
    """The place of the first that it dies of, and what it says then."""
    names = ([encode_path(file)] for file in files)
    one_by_one = graph.build_pipeline(names, batch_size=1, threads=1, prefetch=1, seed=0, last_stage="decode")
    for place in range(len(files)):
        try:
            one_by_one.run()
        except RuntimeError as problem:
            return place, _first_error_line(problem)
    return None


def _decode_error(file: str, said: str) -> BenchError:
    """PIL's reason where it agrees, and else DALI's."""
    try:
        decode(read_image_bytes(file), file)
    except BenchError as damaged:
        return damaged
    return BenchError(f"DALI cannot decode the image '{file}': {said}", "--loader torch can, or leave out a few with --skip-bad N")


def _first_error_line(problem: RuntimeError) -> str:
    """The one line of DALI's many that tells."""
    lines = [line.strip() for line in str(problem).partition("encountered:")[2].splitlines() if line.strip()]
    return lines[0] if lines else str(problem).partition("\n")[0]


def weighted_round_robin(threads: Sequence[int]) -> Iterator[int]:
    """Which of several pipelines makes one batch after the other, without end: each as often as it has ``threads``, spread evenly.

    Those with fewer threads take longer for a batch, and strictly by turns they would hold up the others.
    """
    made = [0] * len(threads)
    while True:
        first = min(range(len(threads)), key=lambda place: (made[place] + 1) / threads[place])
        made[first] += 1
        yield first


class RoundRobin:
    """Pipelines of so many ``threads``. One that gave its batch goes on when the next batch is asked for, from whichever that comes."""

    def __init__(self, pipelines: Sequence[Any], threads: Sequence[int]) -> None:
        self._pipelines = self._idle = pipelines
        self._order = weighted_round_robin(threads)
        self._received_s = [perf_counter()] * len(pipelines)

    def next_output(self) -> tuple[Any, WorkerTiming]:
        """The next batch, DALI's own list of tensors, and since when it was made. Raises RuntimeError where its pipeline dies of it."""
        for rested in self._idle:
            rested.schedule_run()
        place = next(self._order)
        self._idle = [self._pipelines[place]]
        (images,) = self._pipelines[place].outputs()
        began, self._received_s[place] = self._received_s[place], perf_counter()
        return images, WorkerTiming(began, self._received_s[place])

    def close(self) -> None:
        """Ends their threads."""
        self._pipelines = self._idle = ()


class FileFeeder:
    """Batches of sample numbers, handed over in the plan's order, whichever pipeline asks for its names first."""

    def __init__(self, files: Sequence[str], sampler: DistributedBatchSampler) -> None:
        self._files, self._sampler = files, sampler
        self._skipped: set[int] = set()
        self._numbers = (number for number in sampler.indices() if number not in self._skipped)
        self._pending: deque[list[int]] = deque()
        self._next = 0  # the place in the plan of the first of them

    def encoded_paths(self, places: Iterable[int]) -> Iterator[list[EncodedPath]]:
        """Of the files of the batches at these ``places``, 0 for the one that is handed over next."""
        begin = self._next
        return ([encode_path(self._files[number]) for number in self._batch(begin + place)] for place in places)

    def pop_batch(self) -> list[int]:
        """The numbers of the samples of the batch that has come back."""
        self._next += 1
        return self._pending.popleft()

    def pending_batches(self) -> list[list[int]]:
        """The batches that have not come back."""
        return list(self._pending)

    def skip(self, numbers: Collection[int]) -> bool:
        """None of these samples comes any more, and on its way the plan's next ones are in their place; whether there are any others."""
        self._skipped.update(numbers)
        if self._skipped.issuperset(self._sampler.all_indices()):
            return False
        for batch in self._pending:
            batch[:] = [next(self._numbers) if number in self._skipped else number for number in batch]
        return True

    def _batch(self, place: int) -> list[int]:
        """By its place in the plan."""
        while place - self._next >= len(self._pending):
            self._pending.append(list(islice(self._numbers, self._sampler.batch_size)))
        return self._pending[place - self._next]
