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

WAVES = 4
"""Programs per multiprocessor of a kernel that sums: enough to hide latency, and few partial sums."""

NUM_WARPS = 8


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
        channels = tensor.shape[1]
        block_channels = min(MAX_BLOCK_CHANNELS, max(16, triton.next_power_of_2(channels)))
        block_rows = INTERPRETED_BLOCK_ROWS if is_interpreted() else TILE_ELEMENTS // block_channels
        return cls(tensor.numel() // channels, channels, block_rows, block_channels)

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


@cache
def multiprocessors(device: torch.device) -> int:
    """The number of multiprocessors of a GPU; 2 in the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
