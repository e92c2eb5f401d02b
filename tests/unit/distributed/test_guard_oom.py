"""Out of memory is reported, and its tensors are released."""

from __future__ import annotations

import weakref

import pytest
import torch
from training import world_of_one

from ddpbench.distributed.collectives import guard_oom
from ddpbench.record.errors import OutOfMemory

held: list[weakref.ref[torch.Tensor]] = []


def exhausted() -> None:
    activations = torch.ones(8)
    held.append(weakref.ref(activations))
    torch.empty(2**50)


def test_memory_is_released_when_oom_is_reported() -> None:
    with pytest.raises(OutOfMemory, match=r"out of memory at batch 8 in round 2: peak .* GiB more requested on rank 0 \(") as short:
        guard_oom(world_of_one(), "at batch 8 in round 2", exhausted)
    assert held[-1]() is None
    assert short.value.__context__ is None, "the context would keep frames and their device tensors alive"


def test_other_exceptions_are_not_changed() -> None:
    with pytest.raises(RuntimeError, match="expected"):
        guard_oom(world_of_one(), "", lambda: torch.ones(2).dot(torch.ones(3)))
