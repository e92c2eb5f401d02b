"""A sweep that several jobs share out: which of its cells one of them has."""

from __future__ import annotations

import msgspec

from ddpbench.record.ranges import AtLeastOne, Parts


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a sweep that a job has, by their numbers from 1 on. Part K of N is the K-th cell and every N-th behind it."""

    numbers: list[AtLeastOne]
    of: Parts
    cells: Parts  # of the whole sweep
    sweep: str  # alike in the parts of one sweep, and in no others

    @property
    def places(self) -> list[int]:
        """Where its cells stand in the whole sweep, from 0 on."""
        return [place for place in range(self.cells) if self.part_of(place) in self.numbers]

    @property
    def missing(self) -> list[int]:
        """The numbers of the other parts."""
        return [number for number in range(1, self.of + 1) if number not in self.numbers]

    def part_of(self, place: int) -> int:
        """The number of the part that has the cell at ``place``."""
        return place % self.of + 1
