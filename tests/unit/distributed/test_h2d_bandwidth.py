"""Host-to-device bandwidth."""

from __future__ import annotations

import pytest
from training import world_of_one

from ddpbench.distributed.bandwidth import measure_h2d_bandwidth


def test_cpu_has_no_h2d_bandwidth() -> None:
    assert measure_h2d_bandwidth(world_of_one(), 2**20, 8) is None


@pytest.mark.cuda
def test_pinned_bandwidth_is_plausible() -> None:
    found = measure_h2d_bandwidth(world_of_one("cuda"), 64 * 3 * 224 * 224 * 4, 64)
    assert found
    assert found.bytes_per_sample == 3 * 224 * 224 * 4
    assert 1e9 < found.pageable_bytes_per_s < 1e12, "faster than a disk, slower than the GPU's own memory"
    assert 1e9 < found.pinned_bytes_per_s < 1e12
    assert found.pinned_bytes_per_s > 0.8 * found.pageable_bytes_per_s


@pytest.mark.cuda
def test_small_batch_is_measured() -> None:
    found = measure_h2d_bandwidth(world_of_one("cuda"), 4096, 4)
    assert found
    assert found.pinned_bytes_per_s > 0
    assert found.pageable_bytes_per_s > 0
