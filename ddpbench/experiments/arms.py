"""The interleaver: several arms in one job, alternating, so that they share the launch's luck and the machine's mood."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter

import msgspec
import torch

from ddpbench.analysis.straggler import THROTTLING
from ddpbench.data.open import open_loader
from ddpbench.experiments.trial import agree_that_it_fits
from ddpbench.machine.pulse import Pulse
from ddpbench.machine.world import World
from ddpbench.record.config import Config
from ddpbench.record.errors import DoesNotFit
from ddpbench.record.names import resolve
from ddpbench.record.record import Attestation, Data, Preparation, Round
from ddpbench.record.trace import Trace
from ddpbench.training.profile import kernel_ms
from ddpbench.training.session import Parked, Session
from ddpbench.workloads import catalogue as workloads

ROUND_S = 3.0
LEAST_STEPS_CUDA = 10
CPU_JOB_S = 55.0
"""Without ``--steps``, all rounds of a job on CPU ranks together last about this long, so that the whole stays under 90 s."""

MOST_RAW = 64
"""Up to this many ranks every step of every rank is kept; above, every rank's sums, and a sample of its steps."""


def schedule(arms: int, rounds: int) -> Iterator[tuple[int, int]]:
    """(arm, round) in ABBA order: every second round runs backwards, so that a steady drift favours no arm."""
    for turn in range(rounds):
        order = range(arms) if turn % 2 == 0 else reversed(range(arms))
        yield from ((arm, turn) for arm in order)


def interleave(arms: Sequence[Arm], rounds: int, in_time: Callable[[], bool]) -> Iterator[tuple[int, Round | DoesNotFit | None]]:
    """Runs all rounds of all arms, one arm on the device at a time; yields (arm, round) as each ends, the round on rank 0 alone.

    An arm whose numbers died is not continued, and one of several that does not fit the device gives the reason in place of a
    round. ``in_time()`` is asked before every round, on every rank. The arm of the last round is left on the device.
    """
    for index, turn in schedule(len(arms), rounds):
        arm = arms[index]
        if arm.over:
            continue
        if not in_time():
            break
        try:
            enter_alone(arm, arms)
        except DoesNotFit as problem:
            arm.over = True
            yield index, problem
        else:
            yield index, arm.round(turn)


def enter_alone(arm: Arm, arms: Sequence[Arm]) -> None:
    """Puts ``arm`` on the device, and every other off it first, so that none is charged for another's memory."""
    for other in arms:
        if other is not arm:
            other.leave()
    arm.enter()


class Arm:
    """One Config's training through its turns. Between them it holds nothing on the device."""

    def __init__(self, config: Config, arms: int, world: World, pulse: Pulse, trace_file: Path | None = None) -> None:
        self.config = config
        self.over = False  # more rounds would tell nothing: its numbers are dead, or it does not fit
        self.attestation: Attestation | None = None
        self.preparation: Preparation | None = None
        self.data: Data | None = None
        self._arms, self._world, self._pulse, self._trace_file = arms, world, pulse, trace_file
        self._session: Session | None = None
        self._parked: Parked | None = None
        self._steps = 0
        self._steps_before = 0  # in earlier sessions, each of which reads the files from the first on

    def enter(self) -> None:
        """Puts the arm on the device and warms it up; nothing to do where it is there already."""
        if self._session is not None:
            return
        self._pulse.enter("building the model")
        begin = perf_counter()
        spec = workloads.find(self.config.workload)
        torch.manual_seed(self.config.seed)
        image_size = self.config.image_size or spec.image_size
        model = resolve(spec.model)(image_size, spec.classes)
        if self._arms > 1 and not self._steps:
            self._pulse.enter("trying a step alone")
            agree_that_it_fits(self.config, spec, model, self._world)
        self._pulse.enter("opening the loader")
        loader = open_loader(self.config, spec.dataset, spec.classes, self._world.rank, self._world.size, self._world.device.torch)
        self.data = self.data or loader.data
        self._session = Session(self.config, model, loader, self._world, self._pulse, self._parked)
        if self._steps:
            self._session.settle()
        else:
            self.preparation, self.attestation, step_s = self._session.warm_up(perf_counter() - begin)
            self._steps = self._steps_a_round(self._world.most(step_s))

    def leave(self) -> None:
        """Parks the training on the host and frees the device."""
        if self._session is not None:
            self._steps_before += self._session.steps_trained
            self._parked = self._session.close()
            self._session = None

    def round(self, index: int) -> Round | None:
        """One timed round of all ranks, gathered off the clock; ``None`` on every rank but 0. A throttled round is tried once more."""
        assert self._session is not None, "a round between enter and leave"
        trace = self._session.round(self._steps)
        if self._world.most(float(_pulled_down(trace))):
            trace = msgspec.structs.replace(self._session.round(self._steps), retried_for="throttle")
        self._note_rereading()
        dead = trace.numerics.nonfinite_step is not None
        self.over = bool(self._world.most(float(dead)))
        self._pulse.enter("gathering the round")
        told = self._world.gather(msgspec.json.encode(thinned(trace, self._world.size)))
        traces = [msgspec.json.decode(message, type=Trace) for message in told]
        return collect(index, traces) if traces else None

    def _note_rereading(self) -> None:
        """Files that were read before come from the page cache: the figure says nothing of the storage."""
        assert self._session is not None
        read = (self._steps_before + self._session.steps_trained) * (self.config.batch_size or 0) * self._world.size
        if self.data and self.data.images and read > self.data.images:
            self.data = msgspec.structs.replace(self.data, recycled=True)

    @property
    def can_look_inside(self) -> bool:
        """Whether the profiler has something to tell: of kernels on a GPU, or to who asked for its trace."""
        return not self.over and (self._world.device.cuda or self._trace_file is not None)

    def look_inside(self) -> float | None:
        """Milliseconds of kernels a step, from the profiler; None on a CPU. Only when every timed round of every arm is over:

        once the profiler has run, every launch of this process is slower.
        """
        assert self._session is not None, "between enter and leave"
        self._pulse.enter("profiling")
        return kernel_ms(self._session, self._trace_file)

    def _steps_a_round(self, step_s: float) -> int:
        if self.config.steps:
            return self.config.steps
        workers = 4 * (self.config.workers or 0) if self.data and self.data.images else 0
        if self._world.device.cuda:
            return max(LEAST_STEPS_CUDA, workers, round(ROUND_S / step_s))
        affordable = int(CPU_JOB_S / self._arms / self.config.rounds / step_s)
        return max(1, min(affordable, max(workers, round(ROUND_S / step_s))))


def collect(index: int, traces: list[Trace]) -> Round:
    """The round that ``traces``, one a rank, make."""
    return Round(
        index=index,
        traces=traces,
        images=sum(trace.images for trace in traces),
        wall_s=max(trace.wall_s for trace in traces),
        digests_agree=len({trace.numerics.parameters_after for trace in traces}) == 1,
    )


def thinned(trace: Trace, ranks: int) -> Trace:
    """The trace as it is kept with that many ranks. All ranks keep the same steps, so that these can still be compared."""
    every = -(-ranks // MOST_RAW)
    if every == 1:
        return trace
    return msgspec.structs.replace(
        trace,
        totals_ms={phase: trace.total_ms(phase) for phase in trace.phases_ms},
        phases_ms={phase: durations[::every] for phase, durations in trace.phases_ms.items()},
        host_data_ms=trace.host_data_ms[::every],
        lead_ms=trace.lead_ms[::every],
    )


def _pulled_down(trace: Trace) -> bool:
    return trace.health is not None and bool(THROTTLING & set(trace.health.throttle_reasons))
