"""The state of a pipeline, measured or hypothetical, from which gains are predicted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random

from ddpbench.analysis.simulation.simulator import SimParams
from ddpbench.analysis.whatif.batches import BatchSeconds, scale_times
from ddpbench.record.loaders import loader_spec
from ddpbench.record.prediction import Assumption

MIN_STEP_S = 1e-6
"""Lower bound of a step, whatever a scenario saves."""


@dataclass(frozen=True)
class PipelineState:
    """Times are seconds. A load is runnable threads per core."""

    loader: str
    precision: str
    compile: str
    fast: bool
    fused: bool  # runs fused kernels
    batch_size: int  # images per rank and step
    ranks: int
    ranks_per_node: int
    workers: int  # processes or threads per rank
    prefetch: int
    batch_times_s: BatchSeconds  # under ``measured_load``, in the worker or thread group that loads the batch
    step_times_s: Sequence[Sequence[float]]  # by round and step, on batches that are already on the device
    interference_s: float  # added to ``step_times_s`` by copies, and by the loader's use of the device
    handoff_s: float
    background_handoff: bool
    run_ahead: int
    cores: float | None  # of a node; None if the CPU time of the work is unknown
    other_cores: float  # part of ``cores`` that other processes keep busy
    trainer_threads: int
    sample_cpu_curve: LoadCurve | None  # CPU seconds per image in the workers, by load
    trainer_cpu_curve: LoadCurve | None  # CPU seconds per step in a trainer, handoff included, by load
    blocked_curve: LoadCurve | None  # seconds per image for which workers that mostly wait are blocked, by workers of a node; else None
    handoff_cpu_s: float  # part of the trainer's CPU time that disappears without workers
    measured_load: float  # load at which ``batch_times_s`` was measured
    measured_workers: int  # processes of a node that loaded them
    read_wait_fraction: float | None  # fraction of a batch's time in which its worker waits for files
    files_per_s: float | None = None  # of a node's storage; None if unknown or no limit
    in_order: bool = True  # a batch is handed out after those before it
    epoch_start_s: float = 0.0  # per step, what the starts of epochs take; a simulation has none
    cpu_loss: float = 0.0  # fraction of the cores' time lost to oversubscription
    assumptions: tuple[Assumption, ...] = ()

    def with_assumptions(self, *more: Assumption) -> PipelineState:
        return replace(self, assumptions=(*self.assumptions, *more))

    @property
    def num_producers(self) -> int:
        """Workers or thread groups per rank; 0 if the trainer loads its own batches."""
        return loader_spec(self.loader).num_producers(self.workers)

    @property
    def target_load(self) -> float:
        """Load with all workers and trainers busy; 0 if the cores are unknown."""
        return self.ranks_per_node * (self.workers + self.trainer_threads) / self.cores if self.cores else 0.0

    @property
    def all_assumptions(self) -> tuple[Assumption, ...]:
        shared = [Assumption(code="other-processes", cores=self.other_cores)] if self.other_cores else []
        return (*self.assumptions, *shared, *self._load_assumptions)

    @property
    def _loading_processes(self) -> int:
        """Of a node: its workers, or trainers that load themselves."""
        return self.ranks_per_node * max(1, self.workers)

    @property
    def has_benchmarked_waits(self) -> bool:
        """Whether there are more workers than measured in training, and a benchmark with about as many or more shows how long they wait."""
        added = self._loading_processes > self.measured_workers
        return added and self.blocked_curve is not None and self.blocked_curve.covers(self._loading_processes)

    @property
    def _load_assumptions(self) -> list[Assumption]:
        if self.sample_cpu_curve is None:
            return []
        if not self.sample_cpu_curve.covers(self.target_load):
            return [Assumption(code="above-measured-load", log_error=0.1)]
        if self.sample_cpu_curve.starts_above(self.target_load):
            return [Assumption(code="below-measured-load", log_error=0.1)]
        return []

    def sim_params(self, rng: Random | None = None) -> SimParams:
        """Return simulation parameters from all rounds or, with ``rng``, from a bootstrap resample of them."""
        rounds, steps = self._batch_times_at_load(), self.step_times_s
        if rng is not None:
            rounds, steps = rng.choices(rounds, k=len(rounds)), rng.choices(steps, k=len(steps))
        measured = len(rounds[0])
        return SimParams(
            ranks=self.ranks,
            workers=self.num_producers,
            prefetch=self.prefetch,
            in_order=self.in_order,
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
        """Cores that other processes leave.

        It is at least the fair share of these threads among all on the machine.
        """
        threads = self.ranks_per_node * (self.workers + self.trainer_threads)
        return max(cores - self.other_cores, cores * threads / (threads + self.other_cores))

    @property
    def step_cpu_s(self) -> float:
        """CPU seconds per step and rank; 0 if unknown."""
        if self.sample_cpu_curve is None or self.trainer_cpu_curve is None:
            return 0.0
        return self.batch_size * self.sample_cpu_curve.at(self.target_load) + self.trainer_cpu_curve.at(self.target_load)

    def _batch_times_at_load(self) -> BatchSeconds:
        if self.sample_cpu_curve is None:
            return self.batch_times_s
        target_s, measured_s = self.sample_cpu_curve.at(self.target_load), self.sample_cpu_curve.at(self.measured_load)
        if self.blocked_curve:
            target_s += self.blocked_curve.at(self._loading_processes)
            measured_s += self.blocked_curve.at(self.measured_workers)
        return scale_times(self.batch_times_s, target_s / measured_s)


MAX_EXTRAPOLATION = 1.25
"""Beyond this multiple of the highest measured load, a value is unknown."""


@dataclass(frozen=True)
class LoadCurve:
    """A value as a function of load.

    ``points`` are (load, value), sorted, at least one; the load is in runnable threads per core.
    """

    points: tuple[tuple[float, float], ...]

    @classmethod
    def from_points(cls, points: Iterable[tuple[float, float]]) -> LoadCurve:
        """Build a curve from (load, value) pairs; of several values at one load the last wins."""
        return cls(tuple(sorted(dict(points).items())))

    def at(self, load: float) -> float:
        """Interpolate linearly between the two nearest points; constant outside of them."""
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
        """Whether ``load`` is at most MAX_EXTRAPOLATION times the highest measured."""
        return load <= MAX_EXTRAPOLATION * self.points[-1][0]

    def starts_above(self, load: float) -> bool:
        """Whether all measured loads were oversubscribed and above ``load``."""
        return self.points[0][0] > max(1.0, load)
