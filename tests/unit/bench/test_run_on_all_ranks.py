"""Tasks that succeed on all ranks or fail on all, in a world of one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from open_loaders import CPU, shard
from training import InMemory, config, world_of_one

from ddpbench.data.loaders.open import open_on_all_ranks
from ddpbench.distributed.collectives import run_on_all_ranks, run_on_rank_zero
from ddpbench.record.errors import BenchError, ConfigFailed


class Broken(InMemory):
    """A loader that opens but has no batch."""

    closed = False

    def next_batch(self, on_host_ready: Callable[[], None]) -> tuple[torch.Tensor, torch.Tensor]:
        raise BenchError("the file is gone", "look for it")

    def close(self) -> None:
        Broken.closed = True


def no_space() -> None:
    raise OSError("No space left on device\nand more that nobody reads")


def test_result_is_returned_and_failure_names_reason_and_rank() -> None:
    world = world_of_one()
    assert run_on_all_ranks(world, lambda: 3) == 3
    with pytest.raises(ConfigFailed) as failed:
        run_on_all_ranks(world, no_space)
    assert failed.value.message == "OSError: No space left on device, on rank 0 (here)"


def test_rank_zero_task_fails_on_all_ranks() -> None:
    world = world_of_one()
    assert run_on_rank_zero(world, lambda: 3) == 3
    with pytest.raises(ConfigFailed, match="No space left on device"):
        run_on_rank_zero(world, no_space)


def test_loader_must_deliver_a_batch_or_is_closed() -> None:
    world = world_of_one()
    loader = open_on_all_ranks(lambda *_: InMemory(CPU), world)(config(), shard())
    assert loader.next_batch(lambda: None)[1].shape == (8,)
    with pytest.raises(ConfigFailed, match=r"^the file is gone, on rank 0 \(here\)$"):
        open_on_all_ranks(lambda *_: Broken(CPU), world)(config(), shard())
    assert Broken.closed
