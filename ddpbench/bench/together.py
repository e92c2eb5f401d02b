"""What an arm needs of every rank: where one of them fails, whatever the reason, the arm is over on all."""

from __future__ import annotations

from collections.abc import Callable

from ddpbench.data.loader import Loader, LoaderFactory
from ddpbench.data.shard import Shard
from ddpbench.distributed.collectives import Found, all_ranks_or_fail
from ddpbench.distributed.world import World
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import BenchError, ConfigFailed


def run_on_all_ranks(world: World, do: Callable[[], Found], undo: Callable[[Found], object] = lambda found: None) -> Found:
    """What ``do`` gives, which waits for no other rank.

    Where it fails on one, whatever the reason, it is undone on the others, and every rank raises ArmOver: or they would wait for ever.
    """
    return all_ranks_or_fail(
        world, do, lambda problem: f"{_one_line_reason(problem, world)},", lambda told: ConfigFailed(told or "another rank could not"), undo
    )


def run_on_rank_zero(world: World, do: Callable[[], Found]) -> Found | None:
    """What ``do`` gives on rank 0, while the others wait; None on them. Every rank raises ArmOver where it fails."""
    return run_on_all_ranks(world, lambda: do() if world.rank == 0 else None)


def open_on_all_ranks(loader_factory: LoaderFactory, world: World) -> LoaderFactory:
    """The same, for loaders of which nobody knows whether they work here: each gives a batch on every rank before it is used."""

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
