"""One job's shard of a sweep that several jobs share."""

from __future__ import annotations

import msgspec

from ddpbench.record.ranges import AtLeastOne, Parts


class SweepShard(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a sweep that a job measures, numbered from 1. Part K of N is sweep point K and every N-th after it."""

    parts: list[AtLeastOne]
    num_parts: Parts
    num_sweep_points: Parts  # in the full sweep
    sweep_id: str  # equal only for parts of the same sweep

    @property
    def indices(self) -> list[int]:
        """Indices of its sweep points in the full sweep, from 0."""
        return [index for index in range(self.num_sweep_points) if self.part_for(index) in self.parts]

    @property
    def missing_parts(self) -> list[int]:
        """The numbers of the other parts."""
        return [number for number in range(1, self.num_parts + 1) if number not in self.parts]

    def part_for(self, index: int) -> int:
        """The number of the part with sweep point ``index``."""
        return index % self.num_parts + 1
