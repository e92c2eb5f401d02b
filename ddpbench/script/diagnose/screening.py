"""Screens cures on rank 0: windows with and without each take turns while the script trains on batches that are ready."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from math import ceil
from time import monotonic
from typing import Protocol

from msgspec.structs import replace

from ddpbench.analysis.screening import is_kept, kept_cures, noise_floor, rounding_cures
from ddpbench.record.screening import CHANGES_NUMBERS, NULL, CureCode, Obstacle, ScreenedCure, Screening
from ddpbench.script.diagnose.stage import Stage

PAIRS = 6
WINDOW_S, MIN_STEPS, MIN_SLOW_STEPS, SLOW_STEP_S = 2.0, 30, 10, 0.2
"""Least length of a window: in seconds, and in steps, of which slow ones need fewer."""

FIRST_USE_STEPS, FIRST_USE_S = 10, 10.0
"""Steps in which a cure is on for the first time, and what these may take longer than others: cuDNN looks for algorithms, say."""

COMPARED_UPDATES, MIN_COMPARED_UPDATES, COMPARED_RUNS, MAX_COMPARISON_S = 20, 5, 4, 30.0
"""Updates of the windows whose losses are compared, fewer if all would take longer than ``MAX_COMPARISON_S``."""

MAX_REPEATS = 2
"""Windows of one trial that are measured again because something else disturbed them."""

FORMATS: tuple[CureCode, ...] = ("channels-last", "bf16-autocast")
"""Cures that change what others gain: once one of them is kept, what gained nothing before it is tried once more."""

NEEDS: Mapping[CureCode, CureCode] = {"fused-kernels": "channels-last"}
"""Cures that do nothing without another, which must be kept, or be the script's own."""

NOT_AGAIN: tuple[CureCode, ...] = (NULL, "tf32-products")
"""Cures that gain nothing more on top of others: autocast leaves no products for TF32."""


class MeasuredCures(Protocol):
    """What the windows show, on rank 0."""

    def cures(self) -> Sequence[tuple[CureCode, Obstacle | None]]:
        """All cures in their order, and why they are not tried."""

    def cure_failure(self, code: CureCode) -> str:
        """Why ``code`` could not be switched on; empty if it could."""

    def is_undisturbed(self, first: int, end: int) -> bool:
        """Whether the steps from one batch to another made all of their updates, and the last loss is finite."""

    def keep_screening(self, cures: Sequence[ScreenedCure]) -> None:
        """Record the trials so far."""

    def has_room_for_snapshot(self) -> bool:
        """Whether the host has memory for the snapshots of all its ranks."""

    def keep_loss_comparison(self, cures: Sequence[CureCode], updates: int) -> None:
        """Record the losses of the last three windows from one snapshot, of so many updates, of which the last had ``cures`` on."""

    def proof_s(self, step_s: float) -> float:
        """Seconds that a proof by fresh launches takes, of steps of about ``step_s``; 0 if none follows, or has time."""


class ScreeningSchedule:
    """The stages of all trials.

    Args:
        measured: What the windows show.
        new_window: Makes one from its batches, the cure that is tried, and those that are on.
        new_snapshot_window: Makes one that begins with the snapshot, from its updates and the cures that are on.
        run: Yields a window, and returns its mean step in seconds.
        end_s: By when all trials must have ended, on the clock of time.monotonic.
    """

    def __init__(
        self,
        measured: MeasuredCures,
        new_window: Callable[[int, CureCode, Sequence[CureCode]], Stage],
        new_snapshot_window: Callable[[int, Sequence[CureCode]], Stage],
        run: Callable[[Stage], Generator[Stage, None, float]],
        end_s: float,
    ) -> None:
        self._measured, self._new_window, self._new_snapshot_window = measured, new_window, new_snapshot_window
        self._run, self._end_s = run, end_s
        self._tried: list[ScreenedCure] = []
        self._plain_s = self._step_s = 0.0  # a step without cures, and with those that are kept
        self._own: Sequence[CureCode] = ()  # that the script has already
        self._has_gain = False
        self.round_text = ""  # of the present trial: ``2 of 6``

    def stages(self, step_s: float, has_gain: bool = False) -> Iterator[Stage]:
        """The windows, of a training whose steps take about ``step_s`` on batches that are ready. ``has_gain``: its loader has one."""
        self._plain_s = self._step_s = step_s
        self._has_gain = has_gain
        cures = self._measured.cures()
        applicable = [code for code, obstacle in cures if obstacle is None]
        self._tried = [ScreenedCure(code=code, obstacle=obstacle) for code, obstacle in cures if obstacle]
        self._own = [code for code, obstacle in cures if obstacle == "already-on"]
        kept: list[CureCode] = []
        again: list[CureCode] = []  # gained nothing so far
        for code in applicable if len(applicable) > 1 else ():  # the null cure alone says nothing
            yield from self._try(code, kept)
            if self._is_kept():
                kept.append(code)
                repeated, again = (again, []) if code in FORMATS else ([], again)
                for other in repeated:
                    yield from self._try(other, kept)
                    kept += [other] if self._is_kept() else []
            elif code not in NOT_AGAIN and self._tried[-1].obstacle in (None, "needs-channels-last"):
                again.append(code)
        self.round_text = ""
        self._measured.keep_screening(self._tried)
        yield from self._compare_losses()

    def _compare_losses(self) -> Iterator[Stage]:
        """The same updates from one snapshot: plain, plain again, and with all kept cures that only round.

        A plain run comes first, and does not count: after it, what a script has fetched ahead is the same before each run.
        """
        cures = [each.code for each in rounding_cures(kept_cures(Screening(cures=self._tried)))]
        updates = self._compared_updates
        if not (cures and updates and self._measured.has_room_for_snapshot()) or monotonic() + self._comparison_s > self._end_s:
            return
        runs: Sequence[Sequence[CureCode]] = ([], [], [], cures)
        for each in runs:
            yield from self._run(self._new_snapshot_window(updates, each))
        self._measured.keep_loss_comparison(cures, updates)

    @property
    def _compared_updates(self) -> int:
        """Updates of each run; 0 if they take too long."""
        fitting = int(MAX_COMPARISON_S / COMPARED_RUNS / (self._new_snapshot_window(1, []).batches * self._plain_s))
        return min(COMPARED_UPDATES, fitting) if fitting >= MIN_COMPARED_UPDATES else 0

    @property
    def _comparison_s(self) -> float:
        return COMPARED_RUNS * self._new_snapshot_window(self._compared_updates, []).batches * self._plain_s

    def _is_kept(self) -> bool:
        last = self._tried[-1]
        return last.code != NULL and is_kept(last, noise_floor(self._tried))

    def _try(self, code: CureCode, kept: Sequence[CureCode]) -> Iterator[Stage]:
        """Six pairs of windows, with ``code`` and without, on top of ``kept``, in turns: A B, B A."""
        self.round_text, trial = "", ScreenedCure(code=code, on_top_of=list(kept))
        needed = NEEDS.get(code)
        if needed and needed not in (*kept, *self._own):
            self._tried.append(replace(trial, obstacle="needs-channels-last"))
            return
        needed_s = FIRST_USE_S + 2 * PAIRS * self._batches(self._step_s) * self._step_s
        if kept or code not in (NULL, *CHANGES_NUMBERS):  # what is kept is compared
            needed_s += self._comparison_s
        if monotonic() + needed_s > self._last_s(bool(kept)):
            self._tried.append(replace(trial, obstacle="no-time", needed_s=needed_s))
            return
        begin_s, first = monotonic(), self._new_window(FIRST_USE_STEPS, code, [*kept, code])
        step_s = yield from self._run(first)
        trial = replace(trial, first_use_s=max(0.0, monotonic() - begin_s - first.batches * step_s))
        times: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(PAIRS):
            self.round_text = f"{turn + 1} of {PAIRS}"
            for is_on in (False, True) if turn % 2 == 0 else (True, False):
                expected_s = times[is_on][-1] if times[is_on] else step_s if is_on else self._step_s
                window_s = yield from self._window(self._batches(expected_s), code, [*kept, code] if is_on else kept)
                trial = replace(trial, failure=self._measured.cure_failure(code))
                if trial.failure or window_s is None:
                    self._tried.append(replace(trial, obstacle=None if trial.failure else "disturbed"))
                    return
                times[is_on].append(window_s)
                trial = replace(trial, without_s=times[False][:], with_s=times[True][:])
            self._measured.keep_screening([*self._tried, trial])
        self._tried.append(trial)
        self._step_s = times[self._is_kept()][-1]

    def _last_s(self, has_kept: bool) -> float:
        """By when a trial must have ended: once there is a gain, the time of its proof is set aside, as long as that fits in."""
        proof_s = self._measured.proof_s(self._plain_s) if has_kept or self._has_gain else 0.0
        return self._end_s - proof_s if monotonic() + proof_s <= self._end_s else self._end_s

    def _window(self, batches: int, screened: CureCode, cures: Sequence[CureCode]) -> Generator[Stage, None, float | None]:
        """One window; returns its mean step in seconds, or None if something disturbed it again and again."""
        for _ in range(1 + MAX_REPEATS):
            stage = self._new_window(batches, screened, cures)
            step_s = yield from self._run(stage)
            if self._measured.is_undisturbed(stage.first_measured, stage.end):
                return step_s
        return None

    @staticmethod
    def _batches(step_s: float) -> int:
        return max(MIN_SLOW_STEPS if step_s > SLOW_STEP_S else MIN_STEPS, ceil(WINDOW_S / step_s))
