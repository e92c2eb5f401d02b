"""A training as it is measured, or as it would be: all that a prediction of it is made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from ddpbench.analysis.simulation.params import Setting
from ddpbench.analysis.whatif.assumptions import Assumption
from ddpbench.analysis.whatif.batches import Rounds, scaled
from ddpbench.analysis.whatif.curve import Curve
from ddpbench.record.loaders import spec_of

BEYOND = Assumption("more threads a core than were measured: an image costs as much of a core as under the heaviest load measured", 0.1)

BELOW = Assumption("fewer threads a core than were measured: an image costs as much of a core as under the lightest load measured", 0.1)

INSTANT = 1e-6
"""No step is shorter, whatever is saved of it."""


@dataclass(frozen=True)
class Situation:
    """Times are seconds. A load is threads that want a core, a core."""

    loader: str
    precision: str
    compile: str
    batch: int  # images a rank a step
    ranks: int
    ranks_a_node: int
    workers: int  # a rank: processes, or threads
    prefetch: int
    made: Rounds  # times of batches under ``load``, in the worker or the team of threads that makes them
    steps: Sequence[Sequence[float]]  # round, step: on batches that lie on the device
    longer: float  # than those it is for copies, and for what the loader takes of the device
    hand_over: float
    beside: bool
    ahead: int
    cores: float | None  # of a node; None where nothing is known of the work
    others: float  # of them, those that others keep busy
    trainer_threads: int
    image_cpu: Curve | None  # seconds of a core that an image takes in the workers, by load
    trainer_cpu: Curve | None  # that a step takes in a trainer, and handing its batch over
    handing: float  # of that, what ends with the workers
    load: float  # under which ``made`` was measured
    reading: float | None  # share of a batch's time that its worker waits for a file
    files_per_s: float | None = None  # that the storage gives a node; None where it is not known, or no limit
    lost: float = 0.0  # share of the cores' time that is lost where all want them
    assumed: tuple[Assumption, ...] = ()

    def assuming(self, *more: Assumption) -> Situation:
        return replace(self, assumed=(*self.assumed, *more))

    @property
    def makers(self) -> int:
        """A rank: workers, or teams of threads; 0 where the trainer makes its batches itself."""
        return spec_of(self.loader).makers(self.workers)

    @property
    def wanted_load(self) -> float:
        """The load of these workers and trainers, all of them busy."""
        return self.ranks_a_node * (self.workers + self.trainer_threads) / self.cores if self.cores else 0.0

    @property
    def all_assumed(self) -> tuple[Assumption, ...]:
        shared = [Assumption(f"others keep {self.others:.2g} cores busy, as they did")] if self.others else []
        return (*self.assumed, *shared, *self._of_the_load)

    @property
    def _of_the_load(self) -> list[Assumption]:
        if self.image_cpu is None:
            return []
        beyond, below = not self.image_cpu.reaches(self.wanted_load), self.image_cpu.begins_above(self.wanted_load)
        return [BEYOND] * beyond + [BELOW] * below

    def setting(self, chance: Random | None = None) -> Setting:
        """What is simulated, from all rounds or, by ``chance``, from as many that are drawn anew."""
        rounds, steps = self._at_load(), self.steps
        if chance is not None:
            rounds, steps = chance.choices(rounds, k=len(rounds)), chance.choices(steps, k=len(steps))
        measured = len(rounds[0])
        return Setting(
            ranks=self.ranks,
            workers=self.makers,
            prefetch=self.prefetch,
            batches=[[span for each in rounds for span in each[rank]] for rank in range(min(measured, self.ranks))],
            steps=[max(INSTANT, span + self.longer) for each in steps for span in each],
            hand_over=self.hand_over,
            beside=self.beside,
            ahead=self.ahead,
            cores=self.share_of_cores(self.cores) * (1 - self.lost) if self.cores else None,
            ranks_a_node=self.ranks_a_node,
            work=self.work,
            storage=self.ranks_a_node * self.batch / self.files_per_s if self.files_per_s else 0.0,
        )

    def share_of_cores(self, cores: float) -> float:
        """What others leave of them: at least what falls to these threads where each on the machine gets as much."""
        threads = self.ranks_a_node * (self.workers + self.trainer_threads)
        return max(cores - self.others, cores * threads / (threads + self.others))

    @property
    def work(self) -> float:
        """Seconds of a core that a step takes on a rank."""
        if self.image_cpu is None or self.trainer_cpu is None:
            return 0.0
        return self.batch * self.image_cpu.at(self.wanted_load) + self.trainer_cpu.at(self.wanted_load)

    def _at_load(self) -> Rounds:
        if self.image_cpu is None:
            return self.made
        return scaled(self.made, self.image_cpu.at(self.wanted_load) / self.image_cpu.at(self.load))
