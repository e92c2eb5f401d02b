"""The state of a pipeline, measured or hypothetical, from which gains are predicted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random

from ddpbench.analysis.simulation.simulator import SimParams
from ddpbench.analysis.whatif.assumptions import Assumption
from ddpbench.analysis.whatif.batches import BatchSeconds, scale_times
from ddpbench.record.loaders import loader_spec

ABOVE_MEASURED_LOAD = Assumption(
    "more threads a core than were measured: an image costs as much of a core as under the heaviest load measured", 0.1
)

BELOW_MEASURED_LOAD = Assumption(
    "fewer threads a core than were measured: an image costs as much of a core as under the lightest load measured", 0.1
)

MIN_STEP_S = 1e-6
"""No step is shorter, whatever is saved of it."""


@dataclass(frozen=True)
class PipelineState:
    """Times are seconds. A load is threads that want a core, a core."""

    loader: str
    precision: str
    compile: str
    batch_size: int  # images a rank a step
    ranks: int
    ranks_per_node: int
    workers: int  # a rank: processes, or threads
    prefetch: int
    batch_times_s: BatchSeconds  # times of batches under ``load``, in the worker or the team of threads that makes them
    step_times_s: Sequence[Sequence[float]]  # round, step: on batches that lie on the device
    interference_s: float  # than those it is for copies, and for what the loader takes of the device
    handoff_s: float
    background_handoff: bool
    run_ahead: int
    cores: float | None  # of a node; None where nothing is known of the work
    other_cores: float  # of them, those that others keep busy
    trainer_threads: int
    image_cpu_curve: LoadCurve | None  # seconds of a core that an image takes in the workers, by load
    trainer_cpu_curve: LoadCurve | None  # that a step takes in a trainer, and handing its batch over
    handoff_cpu_s: float  # of that, what ends with the workers
    measured_load: float  # under which ``made`` was measured
    read_wait_fraction: float | None  # share of a batch's time that its worker waits for a file
    files_per_s: float | None = None  # that the storage gives a node; None where it is not known, or no limit
    cpu_loss: float = 0.0  # share of the cores' time that is lost where all want them
    assumptions: tuple[Assumption, ...] = ()

    def with_assumptions(self, *more: Assumption) -> PipelineState:
        return replace(self, assumptions=(*self.assumptions, *more))

    @property
    def num_producers(self) -> int:
        """A rank: workers, or teams of threads; 0 where the trainer makes its batches itself."""
        return loader_spec(self.loader).num_producers(self.workers)

    @property
    def target_load(self) -> float:
        """The load of these workers and trainers, all of them busy."""
        return self.ranks_per_node * (self.workers + self.trainer_threads) / self.cores if self.cores else 0.0

    @property
    def all_assumptions(self) -> tuple[Assumption, ...]:
        shared = [Assumption(f"others keep {self.other_cores:.2g} cores busy, as they did")] if self.other_cores else []
        return (*self.assumptions, *shared, *self._load_assumptions)

    @property
    def _load_assumptions(self) -> list[Assumption]:
        if self.image_cpu_curve is None:
            return []
        beyond, below = not self.image_cpu_curve.covers(self.target_load), self.image_cpu_curve.starts_above(self.target_load)
        return [ABOVE_MEASURED_LOAD] * beyond + [BELOW_MEASURED_LOAD] * below

    def sim_params(self, rng: Random | None = None) -> SimParams:
        """What is simulated, from all rounds or, by ``rng``, from as many that are drawn anew."""
        rounds, steps = self._batch_times_at_load(), self.step_times_s
        if rng is not None:
            rounds, steps = rng.choices(rounds, k=len(rounds)), rng.choices(steps, k=len(steps))
        measured = len(rounds[0])
        return SimParams(
            ranks=self.ranks,
            workers=self.num_producers,
            prefetch=self.prefetch,
            batch_times_s=[[span for each in rounds for span in each[rank]] for rank in range(min(measured, self.ranks))],
            step_times_s=[max(MIN_STEP_S, span + self.interference_s) for each in steps for span in each],
            handoff_s=self.handoff_s,
            background_handoff=self.background_handoff,
            run_ahead=self.run_ahead,
            cores=self.available_cores(self.cores) * (1 - self.cpu_loss) if self.cores else None,
            ranks_per_node=self.ranks_per_node,
            step_cpu_s=self.step_cpu_s,
            storage_s=self.ranks_per_node * self.batch_size / self.files_per_s if self.files_per_s else 0.0,
        )

    def available_cores(self, cores: float) -> float:
        """What others leave of them: at least what falls to these threads where each on the machine gets as much."""
        threads = self.ranks_per_node * (self.workers + self.trainer_threads)
        return max(cores - self.other_cores, cores * threads / (threads + self.other_cores))

    @property
    def step_cpu_s(self) -> float:
        """Seconds of a core that a step takes on a rank."""
        if self.image_cpu_curve is None or self.trainer_cpu_curve is None:
            return 0.0
        return self.batch_size * self.image_cpu_curve.at(self.target_load) + self.trainer_cpu_curve.at(self.target_load)

    def _batch_times_at_load(self) -> BatchSeconds:
        if self.image_cpu_curve is None:
            return self.batch_times_s
        return scale_times(self.batch_times_s, self.image_cpu_curve.at(self.target_load) / self.image_cpu_curve.at(self.measured_load))


MAX_EXTRAPOLATION = 1.25
"""So many times the greatest load under which it was measured, a value is not known any more."""


@dataclass(frozen=True)
class LoadCurve:
    """``points`` are (load, value), the load in threads that want a core, a core; there is one at least."""

    points: tuple[tuple[float, float], ...]

    @classmethod
    def from_points(cls, points: Iterable[tuple[float, float]]) -> LoadCurve:
        """Of several values under one load the last holds."""
        return cls(tuple(sorted(dict(points).items())))

    def at(self, load: float) -> float:
        """On the line between the two nearest; outside of them as at the nearest."""
        before = [point for point in self.points if point[0] <= load]
        after = [point for point in self.points if point[0] >= load]
        if not before or not after:
            return (before[-1:] or after)[0][1]
        (left, low), (right, high) = before[-1], after[0]
        return low if right == left else low + (high - low) * (load - left) / (right - left)

    def scaled(self, factor: float) -> LoadCurve:
        return LoadCurve(tuple((load, factor * value) for load, value in self.points))

    def shifted(self, more: float) -> LoadCurve:
        return LoadCurve(tuple((load, value + more) for load, value in self.points))

    def covers(self, load: float) -> bool:
        """Whether ``load`` is not far above those that were measured; more cores than threads are like one a thread."""
        return load <= max(1.0, MAX_EXTRAPOLATION * self.points[-1][0])

    def starts_above(self, load: float) -> bool:
        """Whether it was measured only while threads waited for cores, more of them than ``load`` are."""
        return self.points[0][0] > max(1.0, load)
