"""Batches out of DALI's pipelines, each of which dies of the first file that it cannot decode, and does not say which that was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ddpbench.data.datasets.image_folder import ImageFolderIndex
from ddpbench.data.images import decode, read_image_bytes
from ddpbench.data.loader import WorkerTiming
from ddpbench.data.loaders.dali.feed import FileFeeder
from ddpbench.data.loaders.dali.graph import DaliGraph, Stage, encode_path
from ddpbench.data.loaders.dali.turns import RoundRobin, weighted_round_robin
from ddpbench.data.loaders.skipped_files import SkippedFiles
from ddpbench.data.sampler import DistributedBatchSampler
from ddpbench.record.errors import BenchError
from ddpbench.record.loaders import loader_spec
from ddpbench.record.resolved import ResolvedConfig


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
