"""How a tensor is divided among programs of a kernel: tiles of rows and channels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton

TILE_ELEMENTS, MAX_BLOCK_CHANNELS = 4096, 128
"""Elements of a tile, and the most channels in it: 128 channels of two bytes are two cache lines."""

INTERPRETED_BLOCK_ROWS = 16
"""Rows of a tile in Triton's interpreter, which tests run on a CPU: few, so that small tensors have several tiles."""

TILES_PER_PROGRAM = 4
"""Tiles per program of a kernel that maps elements to elements."""

WAVES = 2
"""Programs per multiprocessor of a kernel that sums: few partial sums, as loads of the next tiles hide the latency."""

SUM_WARPS, MAP_WARPS = 4, 8
"""Warps of a program of a kernel that sums, and of one that maps elements to elements."""

MIN_STAGES, MAX_STAGES = 3, 4
"""Tiles that a program has at once, while it loads the next ones: fewer than MIN_STAGES are slower than one."""


def is_interpreted() -> bool:
    """Whether Triton runs kernels in its interpreter, also on CPU tensors (TRITON_INTERPRET=1)."""
    return bool(triton.knobs.runtime.interpret)


@dataclass(frozen=True)
class Tiles:
    """Tiles of a matrix of ``rows`` pixels by ``channels``: an NHWC tensor."""

    rows: int
    channels: int
    block_rows: int
    block_channels: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Tiles:
        """The tiles of a channels-last tensor (N, C, H, W)."""
        return _tiles(tensor.numel(), tensor.shape[1], is_interpreted())

    @property
    def across(self) -> int:
        """Tiles in a row of tiles."""
        return -(-self.channels // self.block_channels)

    @property
    def down(self) -> int:
        """Tiles in a column of tiles."""
        return -(-self.rows // self.block_rows)

    @property
    def map_grid(self) -> tuple[int, int]:
        """Programs of a kernel that maps elements to elements, each TILES_PER_PROGRAM tiles."""
        return -(-self.down // TILES_PER_PROGRAM), self.across

    def sum_grid(self, device: torch.device) -> tuple[int, int]:
        """Programs of a kernel that sums over rows. Each takes every n-th tile of a column of tiles."""
        return max(1, min(self.down, WAVES * multiprocessors(device) // self.across)), self.across

    def stages(self, tensor: torch.Tensor, inputs: int) -> int:
        """How many tiles of ``inputs`` tensors like ``tensor`` a program has at once in its part of the shared memory."""
        tile_bytes = self.block_rows * self.block_channels * tensor.element_size()
        found = min(MAX_STAGES, 1 + _shared_bytes(tensor.device) // WAVES // (inputs * tile_bytes))
        return found if found >= MIN_STAGES else 1


@cache
def _shared_bytes(device: torch.device) -> int:
    """Shared memory of a multiprocessor of a GPU; 0 in the interpreter. A program reserves 1 KiB."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor) - 1024 * WAVES


@cache
def _tiles(elements: int, channels: int, interpreted: bool) -> Tiles:
    block_channels = min(MAX_BLOCK_CHANNELS, max(16, triton.next_power_of_2(channels)))
    block_rows = INTERPRETED_BLOCK_ROWS if interpreted else TILE_ELEMENTS // block_channels
    return Tiles(elements // channels, channels, block_rows, block_channels)


@cache
def multiprocessors(device: torch.device) -> int:
    """The number of multiprocessors of a GPU; 2 in the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
