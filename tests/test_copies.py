"""Copies of a batch to the device."""

from __future__ import annotations

import pytest
from training import world_of_one

from ddpbench.distributed.h2d_bandwidth import copies


def test_a_processor_has_nothing_to_copy_to() -> None:
    assert copies(world_of_one(), 2**20, 8) is None


@pytest.mark.cuda
def test_pinned_memory_is_copied_at_the_speed_of_a_bus() -> None:
    found = copies(world_of_one("cuda"), 64 * 3 * 224 * 224 * 4, 64)
    assert found
    assert found.bytes_per_image == 3 * 224 * 224 * 4
    assert 1e9 < found.pageable < 1e12, "faster than a disk, slower than the GPU's own memory"
    assert 1e9 < found.pinned < 1e12
    assert found.pinned > 0.8 * found.pageable


@pytest.mark.cuda
def test_a_small_batch_is_copied_too() -> None:
    found = copies(world_of_one("cuda"), 4096, 4)
    assert found
    assert found.pinned > 0
    assert found.pageable > 0
