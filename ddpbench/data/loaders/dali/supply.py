"""Batches out of DALI's pipelines, each of which dies of the first file that it cannot decode, and does not say which that was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ddpbench.data.datasets.image_folder import ImageTree
from ddpbench.data.images import content_of, decode
from ddpbench.data.loader import Sheet
from ddpbench.data.loaders.dali.feed import Feed
from ddpbench.data.loaders.dali.graph import Graph, Stage, name_of
from ddpbench.data.loaders.dali.turns import Turns, in_turn
from ddpbench.data.loaders.skipped_files import LeftOut
from ddpbench.data.sampler import ShardPlan
from ddpbench.record.errors import BenchError
from ddpbench.record.loaders import spec_of
from ddpbench.record.resolved import Settled


@dataclass(frozen=True)
class Supplied:
    """One batch: DALI's own list of tensors, an image each, and the labels (B,) on the host."""

    images: Any
    labels: Tensor
    sheet: Sheet


class Supply:
    """The batches of a rank's plan, in its order, from a pipeline for each team of the loader's threads.

    Where one dies all are started anew, without the files that it died of, if that may be. A pipeline works on one batch
    after the other, and tells nobody when one is done: on its sheet a batch is begun when the one before it of the same pipeline
    was had. Where the trainer is the slower one, that is longer than DALI took.
    """

    def __init__(
        self,
        graph: Graph,
        tree: ImageTree,
        config: Settled,
        rank: int,
        world_size: int,
        left_out: LeftOut,
        until: Stage = "augment",
    ) -> None:
        self._graph, self._until, self._config = graph, until, config
        self._teams = spec_of(config.loader).teams(config.workers)
        self._seeds = [config.seed + rank + team * world_size for team in range(len(self._teams))]
        self.in_flight = len(self._teams) * config.prefetch
        self._files, self._labels = tree.files, torch.tensor(tree.labels)
        plan = ShardPlan(len(tree.files), config.batch_size, rank, world_size, config.seed, config.shuffle)
        self._feed = Feed(tree.files, plan)
        self._left_out = left_out
        self._turns = self._start()

    def next(self) -> Supplied:
        """The next batch, which is there when this returns. Raises BenchError, naming the file, where one too many cannot be decoded."""
        new: list[BenchError] = []
        while True:
            try:
                images, sheet = self._turns.run()
            except RuntimeError as problem:
                self._turns.end()
                problem.__traceback__ = None  # which keeps the pipeline that died
                new += self._leave_out(problem)
            else:
                return Supplied(images, self._labels[self._feed.handed_over()], replace(sheet, left_out=tuple(new)))

    def close(self) -> None:
        """Ends DALI's threads."""
        self._turns.end()

    def _start(self) -> Turns:
        return Turns([self._pipeline(team) for team in range(len(self._teams))], self._teams)

    def _pipeline(self, team: int) -> Any:
        config = self._config
        places = (place for place, whose in enumerate(in_turn(self._teams)) if whose == team)
        return self._graph.pipeline(
            self._feed.names(places), config.batch_size, self._teams[team], config.prefetch, self._seeds[team], self._until
        )

    def _leave_out(self, problem: RuntimeError) -> list[BenchError]:
        """Starts anew without what a pipeline died of, and returns why. Raises BenchError where that may not be, or nothing is left."""
        for batch in self._feed.on_its_way():
            damaged = dict(undecodable([self._files[number] for number in batch], self._graph))
            if damaged:
                break
        else:
            raise BenchError(f"DALI failed: {_said(problem)}") from problem
        found = {batch[place]: why for place, why in damaged.items()}  # once, also where an epoch's end puts a sample twice into a batch
        new = self._left_out.add(found.values())
        if not self._feed.leave_out(found):
            raise self._left_out.one_too_many(list(found.values())[-1]) from problem
        self._turns = self._start()
        return new


def undecodable(files: Sequence[str], graph: Graph) -> Iterator[tuple[int, BenchError]]:
    """The places in ``files`` of those that DALI cannot decode, each with the reason: DALI is given one at a time, whole."""
    whole = replace(graph, augment=False)
    begin = 0
    while found := _first_undecodable(files[begin:], whole):
        place, said = begin + found[0], found[1]
        yield place, _why(files[place], said)
        begin = place + 1


def _first_undecodable(files: Sequence[str], graph: Graph) -> tuple[int, str] | None:
    """The place of the first that it dies of, and what it says then."""
    names = ([name_of(file)] for file in files)
    one_by_one = graph.pipeline(names, batch_size=1, threads=1, prefetch=1, seed=0, until="decode")
    for place in range(len(files)):
        try:
            one_by_one.run()
        except RuntimeError as problem:
            return place, _said(problem)
    return None


def _why(file: str, said: str) -> BenchError:
    """PIL's reason where it agrees, and else DALI's."""
    try:
        decode(content_of(file), file)
    except BenchError as damaged:
        return damaged
    return BenchError(f"DALI cannot decode the image '{file}': {said}", "--loader torch can, or leave out a few with --skip-bad N")


def _said(problem: RuntimeError) -> str:
    """The one line of DALI's many that tells."""
    lines = [line.strip() for line in str(problem).partition("encountered:")[2].splitlines() if line.strip()]
    return lines[0] if lines else str(problem).partition("\n")[0]
