"""A sweep that several jobs share out: which of its cells one of them has."""

from __future__ import annotations

import msgspec

from ddpbench.record.ranges import AtLeastOne, Parts


class SweepShard(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a sweep that a job has, by their numbers from 1 on. Part K of N is the K-th cell and every N-th behind it."""

    parts: list[AtLeastOne] = msgspec.field(name="numbers")
    num_parts: Parts = msgspec.field(name="of")
    num_sweep_points: Parts = msgspec.field(name="cells")  # of the whole sweep
    sweep_id: str = msgspec.field(name="sweep")  # alike in the parts of one sweep, and in no others

    @property
    def indices(self) -> list[int]:
        """Where its cells stand in the whole sweep, from 0 on."""
        return [place for place in range(self.num_sweep_points) if self.part_for(place) in self.parts]

    @property
    def missing_parts(self) -> list[int]:
        """The numbers of the other parts."""
        return [number for number in range(1, self.num_parts + 1) if number not in self.parts]

    def part_for(self, index: int) -> int:
        """The number of the part that has the cell at ``index``."""
        return index % self.num_parts + 1
