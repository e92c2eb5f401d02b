"""Decides the stages of a diagnosis on rank 0, from what the stages before have shown and the time that is left."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from time import monotonic
from typing import Protocol

from ddpbench.analysis.remedies.training_rules import DIAGNOSIS_S, VERIFY_S
from ddpbench.analysis.run_length import MIN_BATCHES_PER_PRODUCER, are_mostly_prefetched
from ddpbench.record.loaders import DECODED_AHEAD
from ddpbench.record.prediction import Scenario
from ddpbench.record.roles import BASELINE, BASELINE_REPEAT, COMPUTE_ONLY, LOADER_IN_BACKGROUND, REPLAY, Role, trial_role
from ddpbench.record.screening import CureCode
from ddpbench.script.diagnose.screening import MeasuredCures, ScreeningSchedule
from ddpbench.script.diagnose.stage import BatchSource, Stage, end_stage
from ddpbench.training.drain import DATA_WAIT_FRACTION, MAX_DRAINS

BENCHMARK_S, DECODING_S, STORAGE_S, ROUND_S, SETTLE_S = 3.0, 1.0, 3.0, 2.0, 4.0
"""Approximate seconds of the benchmarks of loader, decoding on the GPU and storage, of a round, and of what precedes it, under the usual
time limit.
"""

SAMPLES_S, MIN_SAMPLES_S = 5.0, 2.0
"""Seconds for a comparison of samples under the usual time limit, and under any. That of fast samples ends sooner."""

MIN_ROUND_STEPS = MIN_PROFILED_STEPS = 5
MAX_REPEATED_STEPS = 100
"""Steps of a round on repeated batches if steps mostly wait for data: they count as the script's own, and use up its epochs."""

MIN_TURNS, MAX_TURNS = 3, 8
MAX_EPOCH_S, MIN_EPOCH_START_FRACTION = 4.0, 0.05
"""Epochs with steps of up to these seconds are measured whole if their start takes at least this fraction.

Shorter ones under a short time limit. The start may take ``MAX_START_FACTOR`` times as long.
"""

MAX_START_FACTOR = 3.0

MIN_SCALE = 0.25
"""Least factor of that length."""

MIN_TRIAL_TURNS, MAX_TRIAL_TURNS = 3, 6
"""Rounds per record: without the smaller numbers there is no verdict, and no interval of a gain."""

DEFAULT_LIMIT_S = DIAGNOSIS_S + VERIFY_S

TRIALS_FRACTION = 0.4
"""Fraction of the time that is kept for trials."""

FIRST_VERDICT_S = 30.0
"""Seconds after which a verdict is printed once there are ``MIN_TURNS`` rounds: more of them take a while."""

MAX_MORE_WORKERS_FRACTION = 0.25
"""Fraction of the time left that the loader benchmark with more workers may take."""

OVERTIME_FRACTION = 0.5
"""Fraction of the time limit that the first two turns, without which there is no verdict, may take on top of it."""

MIN_STEP_S = 1e-3


Arm = tuple[Role, BatchSource]
"""What a window is for, and the batches that it hands out."""


@dataclass(frozen=True)
class WindowPace:
    """Rank 0's steps of one window."""

    step_s: float
    data_wait_s: float  # mean
    max_data_wait_s: float
    epoch_start_s: float = 0.0  # mean, the part of a step in which workers start

    @property
    def has_waited(self) -> bool:
        return self.max_data_wait_s > DATA_WAIT_FRACTION * self.step_s


@dataclass(frozen=True)
class ScriptFacts:
    """What the schedule needs to know of the script."""

    ranks: int
    workers: int
    prefetch: int  # batches per worker
    batches_per_update: int
    look_ahead: int  # batches that it takes before it trains on the first of them
    epoch_batches: int | None  # None if unknown
    epoch_start_s: float  # until its workers have loaded a batch; 0 without workers
    on_gpu: bool
    reads_files: bool  # and their paths are known
    is_stream: bool  # its dataset is iterable


def unsteady_batches(prefetched: int, epoch_batches: int, batches_per_update: int) -> int:
    """Batches at the start of an epoch that do not count: the first, and those that workers load at once, without a step between them.

    In whole updates, and at most half of an epoch; 0 if that leaves none.
    """
    unsteady = batches_per_update * ceil(min(max(1, prefetched), epoch_batches // 2) / batches_per_update)
    return unsteady if unsteady < epoch_batches else 0


class Measured(MeasuredCures, Protocol):
    """What rank 0 has measured so far, and what follows from it."""

    def step_times(self, first: int, end: int) -> WindowPace:
        """The times of the steps from one batch to another."""

    def is_ahead(self, pace: WindowPace) -> bool:
        """After the loader benchmark: whether the loader alone is much faster than steps of that pace."""

    def more_workers(self, pace: WindowPace) -> int | None:
        """With how many workers per rank to benchmark the loader once more; None if nothing is learned from that."""

    def print_verdict(self) -> None:
        """Print the verdict so far, once. All ranks have sent their measurements."""

    def candidates(self, whole_epochs: bool) -> Sequence[Scenario]:
        """The scenarios to try, in windows of whole epochs or not. All ranks have sent their measurements."""

    def needs_limits(self) -> bool:
        """Whether computing is the limit, and no setting makes it faster: then the limits of the device are worth measuring."""

    def has_gain(self) -> bool:
        """Whether a trial has gained. All ranks have sent their measurements."""

    def has_failed(self, scenario: Scenario) -> bool:
        """Whether a trial of it has failed, and is not continued."""

    def num_updates(self) -> int:
        """Updates of rank 0 so far."""

    def epoch_position(self) -> int:
        """Batches of the present epoch that rank 0 has taken."""


class Schedule:
    """The stages in their order, each of which begins where the one before ended. The last one begins about at ``last_s``.

    Until ``end_s`` the loader and its remedies have the time, and the cures of computing until ``last_s``.
    """

    def __init__(self, facts: ScriptFacts, end_s: float, measured: Measured, last_s: float | None = None) -> None:
        self._facts, self._end_s, self._measured = facts, end_s, measured
        self._begin_s = monotonic()
        self._screening = ScreeningSchedule(
            measured, self._cure_window, self._snapshot_window, self._timed, end_s if last_s is None else last_s
        )
        self._last_end_s = end_s + OVERTIME_FRACTION * (end_s - self._begin_s)
        self._round_text = ""
        self._first = 0  # batch at which the next stage begins
        self._last: WindowPace | None = None  # of the last window
        self._pace_s: dict[Role, float] = {}  # step of the last window of each role
        self._whole_epoch_step_s = MIN_STEP_S  # a step, and its share of the start of an epoch
        self._has_short_epochs = False  # a window of the script's own loader, or of a trial, consists of whole epochs
        self._mostly_waits = False  # the step, for a batch of the loader
        self._own_outpaces = False  # the loader was ready before every step
        self._loads_ahead = False  # alone, the loader is much faster than the script trains
        self._stages = self._all_stages()

    @property
    def round_text(self) -> str:
        """The round of the present stage: ``2 of 8``, the last of which may not take place; empty between rounds."""
        return self._screening.round_text or self._round_text

    def next_stage(self, number: int) -> Stage:
        """The stage that begins at batch ``number``."""
        self._first = number
        return next(self._stages)

    def end(self, number: int) -> Stage:
        """The last stage, from batch ``number`` on. All ranks end after the same update, which none of them has made yet."""
        return end_stage(number, self._measured.num_updates() + 2 * (self._facts.look_ahead + 2))

    # the order

    def _all_stages(self) -> Iterator[Stage]:
        yield from self._settle("own", BASELINE)
        self._has_short_epochs = self._are_epochs_short(self._last)
        own = {"kind": "benchmark", "seconds": BENCHMARK_S * self._scale, "whole_epochs": self._has_short_epochs}
        yield self._at_once(**own)
        if self._facts.ranks > 1:
            yield self._at_once(**own, single_rank=True)
        self._loads_ahead = self._last is not None and self._measured.is_ahead(self._last)
        workers = self._measured.more_workers(self._last) if self._last else None
        if workers and self._has_time_for(workers):
            yield self._at_once(kind="benchmark", seconds=BENCHMARK_S * self._scale, workers=workers)
        trials_s = TRIALS_FRACTION * (self._end_s - self._begin_s)
        yield from self._turns(self._controls(), MIN_TURNS, MAX_TURNS, self._end_s - trials_s)
        if self._facts.on_gpu:
            yield self._at_once(kind="copies")
            if self._facts.reads_files:
                yield self._at_once(kind="decoding", seconds=DECODING_S * self._scale)
        if self._facts.reads_files:
            yield self._at_once(kind="storage", seconds=STORAGE_S * self._scale)
        if self._facts.is_stream:  # whether its workers yield the same samples decides what to suggest
            yield self._compare_samples()
        self._round_text = ""
        yield self._at_once(kind="collect")
        self._measured.print_verdict()
        scenarios = self._measured.candidates(self._has_short_epochs)
        if not self._facts.is_stream and any(each.workers for each in scenarios):
            yield self._compare_samples()
        if scenarios := [each for each in scenarios if not self._measured.has_failed(each)]:
            trials: list[Arm] = [(BASELINE_REPEAT, "own")]
            trials += [(trial_role(each), "trial") for each in scenarios]
            yield from self._turns(trials, MIN_TRIAL_TURNS, MAX_TRIAL_TURNS, self._end_s)
        self._round_text = ""
        has_gain = False
        if scenarios and self._measured.proof_s(self._expected_step_s("own", BASELINE)):
            yield self._at_once(kind="collect")
            has_gain = self._measured.has_gain()
        yield from self._screening.stages(self._expected_step_s("repeated", COMPUTE_ONLY), has_gain)
        if self._facts.on_gpu:  # last, since a profiler slows down all launches that follow
            batches, times_layers = self._rounded(MIN_PROFILED_STEPS), self._measured.needs_limits()
            yield Stage(kind="window", first=self._first, batches=batches, source="repeated", is_profiled=True, times_layers=times_layers)
        yield self.end(self._first)

    def _controls(self) -> list[Arm]:
        """The present training and its control runs."""
        found: list[Arm] = [(BASELINE, "own"), (COMPUTE_ONLY, "repeated")]
        if self._facts.workers:
            found.append((LOADER_IN_BACKGROUND, "background"))
        if self._facts.on_gpu:
            found.append((REPLAY, "replayed"))
        return found

    def _turns(self, arms: Sequence[Arm], min_turns: int, max_turns: int, end_s: float) -> Iterator[Stage]:
        """One window of every arm per turn, in the order of the turn before reversed, as long as there is time for a whole turn.

        If the time is too short for ``min_turns``, the first two arms go on, or fewer as in ``_affordable``.
        """
        longest_s, decides_verdict, has_verdict = 0.0, arms[0][0] == BASELINE, False
        arms = self._affordable(arms, min_turns, end_s)
        for turn in range(max_turns):
            begin_s = monotonic()
            if (turn >= min_turns and begin_s + longest_s > end_s) or begin_s > self._end_s:
                return
            if decides_verdict and not has_verdict and turn >= min_turns and begin_s >= self._begin_s + FIRST_VERDICT_S:
                has_verdict = True
                yield self._at_once(kind="collect")
                self._measured.print_verdict()
            planned = turn + int((end_s - begin_s) / longest_s) if longest_s else max_turns
            self._round_text = f"{turn + 1} of {min(max_turns, max(min_turns, planned))}"
            if begin_s + (min_turns - turn) * longest_s > end_s:
                arms = self._affordable(arms[:2], min_turns - turn, end_s)
            for role, source in arms if turn % 2 == 0 else reversed(arms):
                if monotonic() > (self._last_end_s if turn < 2 and decides_verdict else self._end_s):
                    return
                yield from self._settle(source, role)
                if role.scenario is None or not self._measured.has_failed(role.scenario):
                    yield from self._run(self._planned_window(source, role, turn))
                    if self._last:
                        self._pace_s[role] = self._last.step_s
            arms = [(role, source) for role, source in arms if role.scenario is None or not self._measured.has_failed(role.scenario)]
            if all(role == BASELINE_REPEAT for role, _ in arms):
                return
            longest_s = max(longest_s, monotonic() - begin_s)

    def _affordable(self, arms: Sequence[Arm], turns: int, end_s: float) -> Sequence[Arm]:
        """As many of ``arms`` as can take ``turns`` until ``end_s``. At least two: without compute-only windows, waits are not explained.

        At least one if the loader is far ahead of the steps: then a diagnosis of slow steps needs its time for these.
        """
        least = 1 if arms[0][0] == BASELINE and self._loads_ahead else 2
        for number in range(len(arms), least, -1):
            planned = [self._planned_window(source, role, turn=1) for role, source in arms[:number]]
            turn_s = sum(each.batches * self._expected_step_s(each.source, role) for each, (role, _) in zip(planned, arms, strict=False))
            if monotonic() + turns * turn_s <= end_s:
                return arms[:number]
        return arms[:least]

    # one window

    def _settle(self, source: BatchSource, role: Role) -> Iterator[Stage]:
        """Hand out what has been prefetched meanwhile, until a step waits; a loader that never keeps a step waiting is drained once."""
        if source not in ("own", "trial") or self._has_short_epochs or (role == BASELINE and self._loads_ahead):
            return
        workers, prefetch = self._loading(role)
        batches = self._rounded(workers * prefetch + self._unmeasured)
        end_s = monotonic() + SETTLE_S * self._scale
        for _ in range(1 if source == "own" and self._own_outpaces else MAX_DRAINS):
            yield from self._run(Stage(kind="window", first=self._first, batches=batches, source=source, role=role))
            if (self._last and self._last.has_waited) or monotonic() > end_s:
                return
        self._own_outpaces = self._own_outpaces or source == "own"

    def _planned_window(self, source: BatchSource, role: Role, turn: int) -> Stage:
        """The timed window of one arm."""
        workers, prefetch = self._loading(role) if source in ("own", "trial", "background") else (0, 0)
        wanted = ceil(ROUND_S * self._scale / self._expected_step_s(source, role))
        if source not in ("own", "trial") and self._mostly_waits:
            wanted = min(wanted, MAX_REPEATED_STEPS)
        whole_epochs = source in ("own", "trial") and self._has_short_epochs
        if whole_epochs and self._facts.epoch_batches:
            epoch = self._facts.epoch_batches
            starts = epoch if role.scenario and turn == 0 else 0  # its first epoch starts workers that the later ones keep
            unmeasured, batches = -self._measured.epoch_position() % epoch or starts, epoch * ceil(max(MIN_ROUND_STEPS, wanted) / epoch)
        else:
            if role == BASELINE and self._loads_ahead:  # no bursts: only the first step after an epoch or a validation does not count
                prefetch, least = 0, MIN_ROUND_STEPS + 2
            else:
                least = max(MIN_ROUND_STEPS, MIN_BATCHES_PER_PRODUCER * workers)
            measured = max(least, wanted)
            unmeasured, batches = self._unmeasured, self._rounded(self._with_unsteady(measured, workers * prefetch))
        return Stage(
            kind="window",
            first=self._first,
            batches=unmeasured + batches,
            source=source,
            role=role,
            is_timed=True,
            turn=turn,
            unmeasured=unmeasured,
            workers=workers,
            prefetched=workers * prefetch,
            whole_epochs=whole_epochs,
        )

    def _are_epochs_short(self, pace: WindowPace | None) -> bool:
        """Whether epochs are measured whole, by the first steps of the script: with the starts of workers they may take longer."""
        if pace is None or not self._facts.epoch_batches:
            return False
        steps_s, start_s = self._facts.epoch_batches * (pace.step_s - pace.epoch_start_s), self._facts.epoch_start_s
        self._whole_epoch_step_s = (steps_s + start_s) / self._facts.epoch_batches
        longest_s, prefetched = MAX_EPOCH_S * max(MIN_SCALE, self._scale), self._facts.workers * self._facts.prefetch
        has_costly_start = start_s >= MIN_EPOCH_START_FRACTION * (start_s + steps_s)
        is_short = steps_s <= longest_s and start_s <= MAX_START_FACTOR * longest_s
        return is_short and (has_costly_start or are_mostly_prefetched(self._facts.epoch_batches, prefetched))

    def _with_unsteady(self, measured: int, prefetched: int) -> int:
        """Batches of a window of which ``measured`` count, since epochs end meanwhile."""
        epoch_batches, position = self._facts.epoch_batches, self._measured.epoch_position() + self._unmeasured
        if not epoch_batches:
            return measured
        unsteady, batches = unsteady_batches(prefetched, epoch_batches, self._facts.batches_per_update), 0
        while measured:
            measured -= (position + batches) % epoch_batches >= unsteady
            batches += 1
        return batches

    def _expected_step_s(self, source: BatchSource, role: Role) -> float:
        """As in the last window of ``role``; before its first, as in the window before, without the wait for data if there is none.

        In windows of whole epochs, with the start of an epoch.
        """
        if self._last is None:
            return 1.0
        if source in ("own", "trial"):
            before_s = self._pace_s.get(role, self._pace_s.get(BASELINE, self._whole_epoch_step_s))
            return before_s if self._has_short_epochs else self._last.step_s
        return self._pace_s.get(role, max(MIN_STEP_S, self._last.step_s - self._last.data_wait_s))

    def _loading(self, role: Role) -> tuple[int, int]:
        """Workers of the loader in that window, and the batches that each prefetches."""
        scenario = role.scenario or Scenario()
        if scenario.resident:
            return 0, 0
        if scenario.decode_on_gpu:
            return 1, DECODED_AHEAD
        workers = self._facts.workers if scenario.workers is None else scenario.workers
        return workers, scenario.prefetch or self._facts.prefetch

    def _cure_window(self, batches: int, screened: CureCode, cures: Sequence[CureCode]) -> Stage:
        """A window of about so many batches that are ready, with ``cures`` on."""
        return Stage(
            kind="window",
            first=self._first,
            batches=self._unmeasured + self._rounded(batches),
            source="repeated",
            unmeasured=self._unmeasured,
            screened=screened,
            cures=list(cures),
        )

    def _snapshot_window(self, updates: int, cures: Sequence[CureCode]) -> Stage:
        """A window from the snapshot on, on batches that are ready, with ``cures`` on."""
        batches = updates * self._facts.batches_per_update
        return Stage(kind="window", first=self._first, batches=batches, source="repeated", cures=list(cures), from_snapshot=True)

    def _timed(self, stage: Stage) -> Generator[Stage, None, float]:
        """One window; returns its mean step in seconds."""
        yield from self._run(stage)
        assert self._last is not None, "it has just been measured"
        return max(1e-6, self._last.step_s)

    def _run(self, stage: Stage) -> Iterator[Stage]:
        """One window, and then its times."""
        yield stage
        unmeasured = stage.unmeasured if stage.is_timed else self._unmeasured
        self._last = self._measured.step_times(stage.first + min(unmeasured, stage.batches - 1), stage.end)
        if stage.source == "own":
            self._mostly_waits = self._last.data_wait_s > self._last.step_s / 2

    def _has_time_for(self, workers: int) -> bool:
        """Whether a benchmark with so many is short: their start and about four batches of each, besides its usual time."""
        own = max(1, self._facts.workers)
        start_s, batch_s = workers / own * self._facts.epoch_start_s, own * (self._last.step_s if self._last else 0.0)
        return start_s + 4 * batch_s + 2 * BENCHMARK_S * self._scale < MAX_MORE_WORKERS_FRACTION * (self._end_s - monotonic())

    def _compare_samples(self) -> Stage:
        return self._at_once(kind="samples", seconds=max(MIN_SAMPLES_S, SAMPLES_S * self._scale))

    def _at_once(self, **fields: object) -> Stage:
        return Stage(first=self._first, **fields)  # type: ignore[arg-type]

    @property
    def _unmeasured(self) -> int:
        """Batches after a change that are left out: those fetched before it, and the one that waited for it."""
        return self._rounded(self._facts.look_ahead + 2)

    def _rounded(self, batches: int) -> int:
        """At least ``batches``, in whole updates."""
        group = self._facts.batches_per_update
        return group * ceil(batches / group)

    @property
    def _scale(self) -> float:
        """Factor for the length of windows: shorter under a short time limit."""
        return min(1.0, (self._end_s - self._begin_s) / DEFAULT_LIMIT_S)
