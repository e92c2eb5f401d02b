"""Run a function on all ranks, and fail on all of them if one fails."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

from ddpbench.distributed.world import World
from ddpbench.record.errors import BenchError, ConfigFailed, OutOfMemory

Result = TypeVar("Result")


def guard_oom(world: World, context: str, fn: Callable[[], Result]) -> Result:
    """The result of ``fn``, which must not wait for other ranks.

    Raises OutOfMemory on every rank if ``fn`` runs out of memory on one, with ``context`` and the memory in use and requested there.
    """

    def shortage(problem: Exception) -> str:
        return world.device.describe_oom(problem) if isinstance(problem, RuntimeError | MemoryError) else ""

    return all_ranks_or_fail(
        world, fn, shortage, lambda memory_text: OutOfMemory(f"out of memory {context}: {memory_text}", "use a smaller batch: -b N")
    )


def all_ranks_or_fail(
    world: World,
    fn: Callable[[], Result],
    describe_failure: Callable[[Exception], str],
    make_error: Callable[[str], ConfigFailed],
    undo: Callable[[Result], object] = lambda result: None,
) -> Result:
    """The result of ``fn``, which must not wait for other ranks.

    If ``fn`` fails on one rank, the others ``undo`` their results and every rank raises ``make_error(reason)``; otherwise they
    would wait forever. The reason is that of the first failed rank on rank 0, and empty elsewhere. ``describe_failure`` returns
    the reason, to which ``on rank R (host)`` is appended, or an empty string; then this rank alone raises the exception
    unchanged.
    """
    results: list[Result] = []
    reason = ""
    try:
        results.append(fn())
    except Exception as problem:
        if not (reason := describe_failure(problem)):
            raise
        reason = f"{reason} on rank {world.placement.rank} ({world.placement.host})"
    if reason:  # only here: until now the exception kept its frames' tensors alive
        gc.collect()
        world.device.empty_cache()
    if not world.any_rank(bool(reason)):
        return results[0]
    for result in results:
        undo(result)
    raise make_error(next(filter(None, world.gather(reason)), ""))


def run_on_all_ranks(world: World, fn: Callable[[], Result], undo: Callable[[Result], object] = lambda result: None) -> Result:
    """The result of ``fn``, which must not wait for other ranks.

    If it fails on one rank, for any reason, ``undo`` runs on the others, and every rank raises ConfigFailed; otherwise they would hang.
    """
    return all_ranks_or_fail(
        world,
        fn,
        lambda problem: f"{_one_line_reason(problem, world)},",
        lambda reason: ConfigFailed(reason or "another rank failed"),
        undo,
    )


def run_on_rank_zero(world: World, fn: Callable[[], Result]) -> Result | None:
    """The result of ``fn`` on rank 0, while the others wait; None on the others. Every rank raises ConfigFailed if it fails."""
    return run_on_all_ranks(world, lambda: fn() if world.rank == 0 else None)


def _one_line_reason(problem: Exception, world: World) -> str:
    if isinstance(problem, BenchError):
        return problem.message
    if oom_text := world.device.describe_oom(problem):
        return f"out of memory: {oom_text}"
    return f"{type(problem).__name__}: {next(iter(str(problem).strip().splitlines()), 'no message')}"
