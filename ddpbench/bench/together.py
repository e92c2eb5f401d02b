"""Runs one arm's work on all ranks: if it fails on one of them, for any reason, the arm fails on all."""

from __future__ import annotations

from collections.abc import Callable

from ddpbench.data.loader import Loader, LoaderFactory
from ddpbench.data.shard import Shard
from ddpbench.distributed.collectives import Found, all_ranks_or_fail
from ddpbench.distributed.world import World
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import BenchError, ConfigFailed


def run_on_all_ranks(world: World, do: Callable[[], Found], undo: Callable[[Found], object] = lambda found: None) -> Found:
    """What ``do`` returns; ``do`` must not wait for other ranks.

    If it fails on one rank, for any reason, ``undo`` runs on the others, and every rank raises ConfigFailed; otherwise they would hang.
    """
    return all_ranks_or_fail(
        world, do, lambda problem: f"{_one_line_reason(problem, world)},", lambda told: ConfigFailed(told or "another rank could not"), undo
    )


def run_on_rank_zero(world: World, do: Callable[[], Found]) -> Found | None:
    """What ``do`` returns on rank 0, while the others wait; None on the others. Every rank raises ConfigFailed if it fails."""
    return run_on_all_ranks(world, lambda: do() if world.rank == 0 else None)


def open_on_all_ranks(loader_factory: LoaderFactory, world: World) -> LoaderFactory:
    """Wrap ``loader_factory`` for loaders that may not work here: each must deliver a batch on every rank before it is used."""

    def opened(config: ResolvedConfig, shard: Shard) -> Loader:
        def with_a_batch() -> Loader:
            loader = loader_factory(config, shard)
            try:
                loader.next_batch(lambda: None)
            except BaseException:
                loader.close()
                raise
            return loader

        return run_on_all_ranks(world, with_a_batch, lambda loader: loader.close())

    return opened


def _one_line_reason(problem: Exception, world: World) -> str:
    if isinstance(problem, BenchError):
        return problem.message
    if short := world.device.describe_oom(problem):
        return f"out of memory: {short}"
    return f"{type(problem).__name__}: {next(iter(str(problem).strip().splitlines()), 'no message')}"
