"""What an arm needs of every rank: where one of them fails, whatever the reason, the arm is over on all."""

from __future__ import annotations

from collections.abc import Callable

from ddpbench.data.loader import Loader, Opener
from ddpbench.data.shard import Shard
from ddpbench.distributed.agreement import Found, all_or_none
from ddpbench.distributed.world import World
from ddpbench.record.errors import ArmOver, BenchError
from ddpbench.record.resolved import Settled


def on_every_rank(world: World, do: Callable[[], Found], undo: Callable[[Found], object] = lambda found: None) -> Found:
    """What ``do`` gives, which waits for no other rank.

    Where it fails on one, whatever the reason, it is undone on the others, and every rank raises ArmOver: or they would wait for ever.
    """
    return all_or_none(
        world, do, lambda problem: f"{_in_a_line(problem, world)},", lambda told: ArmOver(told or "another rank could not"), undo
    )


def on_rank_zero(world: World, do: Callable[[], Found]) -> Found | None:
    """What ``do`` gives on rank 0, while the others wait; None on them. Every rank raises ArmOver where it fails."""
    return on_every_rank(world, lambda: do() if world.rank == 0 else None)


def opened_by_all(opener: Opener, world: World) -> Opener:
    """The same, for loaders of which nobody knows whether they work here: each gives a batch on every rank before it is used."""

    def opened(config: Settled, shard: Shard) -> Loader:
        def with_a_batch() -> Loader:
            loader = opener(config, shard)
            try:
                loader.next_batch(lambda: None)
            except BaseException:
                loader.close()
                raise
            return loader

        return on_every_rank(world, with_a_batch, lambda loader: loader.close())

    return opened


def _in_a_line(problem: Exception, world: World) -> str:
    if isinstance(problem, BenchError):
        return problem.message
    if short := world.device.shortage(problem):
        return f"out of memory: {short}"
    return f"{type(problem).__name__}: {next(iter(str(problem).strip().splitlines()), 'no message')}"
