"""What a change gains: the same simulation before and after it, many times, each time from rounds that are drawn anew.

The interval has two parts, added in quadrature on a log scale. One is the spread of these replicas. The other is what the model
itself may be off by: the error that was seen of it over many trials, half of what it misses the measured run by, a part of the gain,
others on the cores, who come and go, and every assumption that the change rests on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, hypot, log
from random import Random
from statistics import NormalDist, fmean, stdev

from ddpbench.analysis.simulation.params import Setting
from ddpbench.analysis.simulation.simulate import Simulated, run, shortest_by_cores
from ddpbench.analysis.whatif.assumptions import Assumption, Unmeasured, error_of
from ddpbench.analysis.whatif.state import Situation

CONFIDENCE = 0.9
REPLICAS = 24
TAKEN = 6000
"""Batches that all ranks take in one replica: its mean is then good to about a percent."""

LEAST_STEPS = 300

MODEL_ERROR = 0.03
"""Of a log gain, as a standard deviation, however small the gain."""

OF_THE_GAIN = 0.12
"""The same as a part of the log gain."""

EXPLAINED = 1.5
"""A model that misses the measured run by more than this factor predicts nothing."""

OF_THE_MISS = 0.5
"""The same as a part of the log of how far the model misses the run that was measured."""

OF_OTHERS = 0.25
"""The same as a part of the share of the cores that others kept busy: they come and go."""

STORAGE = "the storage"
NO_MORE_FILES = Assumption("the storage gives what was measured of it, and no more", 0.1)
"""Where that becomes the limit."""


@dataclass(frozen=True)
class Price:
    """``gain`` is in times as many images/s, between ``low`` and ``high`` with 90% confidence."""

    gain: float
    low: float
    high: float
    before: Simulated
    after: Simulated
    miss: float  # how many times as long as measured a step is by the model, before the change; cores that lose no time to turns
    held_by: str  # the part that is the limit then
    assumed: tuple[Assumption, ...]


def price(before: Situation, after: Situation, measured_step_s: float) -> Price:
    """``measured_step_s`` is the step of the run that ``before`` was told from. Raises Unmeasured where the model does not explain it."""
    _refuse_what_it_misses(before, measured_step_s)
    both, ratio = (before.setting(), after.setting()), after.ranks * after.batch / (before.ranks * before.batch)
    first, then = (_course(each, 0) for each in both)
    limits = [held_by(setting, course) for setting, course in zip(both, (first, then), strict=True)]
    assumed = after.all_assumed + ((NO_MORE_FILES,) if [limit.startswith(STORAGE) for limit in limits] == [False, True] else ())
    gains = [_gain(before, after, ratio, measured_step_s, seed) for seed in range(1, REPLICAS + 1)]
    center, miss = exp(fmean(map(log, gains))), _miss(before, measured_step_s)
    error = hypot(
        stdev(map(log, gains)),
        model_error(center, miss),
        error_of(set(assumed) - set(before.all_assumed)),
        OF_OTHERS * before.others / (before.cores or 1.0) * certain(center),
    )
    errors = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    high = min(center * exp(errors * error), _most(both[1], ratio, measured_step_s) * exp(errors * MODEL_ERROR))
    return Price(center, center * exp(-errors * error), high, first, then, miss, limits[1], assumed)


def gain(before: Situation, after: Situation, measured_step_s: float) -> float:
    """The gain alone, from all that was measured. Raises Unmeasured as ``price`` does."""
    _refuse_what_it_misses(before, measured_step_s)
    return _gain(before, after, after.ranks * after.batch / (before.ranks * before.batch), measured_step_s, None)


def model_error(gained: float, miss: float) -> float:
    """As a standard deviation of the log gain; nothing that changes nothing errs by what the model misses."""
    return hypot(MODEL_ERROR, OF_THE_GAIN * log(gained), OF_THE_MISS * log(miss) * certain(gained))


def certain(gained: float) -> float:
    """From 0 for no gain to 1: what the model is off by alike, before and after a change does not matter for one that does nothing."""
    return min(1.0, abs(log(gained)) / MODEL_ERROR)


def held_by(setting: Setting, course: Simulated) -> str:
    """What the step lasts as long as, within a few percent: one part or, where none alone explains it, batches that come unevenly."""
    parts = {
        "the device": fmean(setting.steps),
        "the workers": max(fmean(each) for each in setting.batches) / max(1, setting.workers),
        "the cores": shortest_by_cores(setting),
        STORAGE: setting.storage,
        "handing batches over": setting.hand_over,
    }
    if not setting.workers or not (setting.beside or setting.ahead):
        parts["the device"] += setting.hand_over + (0.0 if setting.workers else parts["the workers"])
        parts["handing batches over"] = 0.0
    name = max(parts, key=lambda part: parts[part])
    return name if course.step <= 1.08 * parts[name] else f"{name}, and batches that come unevenly"


def _miss(before: Situation, measured_step_s: float) -> float:
    return _course(replace(before, lost=0.0).setting(), 0).step / measured_step_s


def _refuse_what_it_misses(before: Situation, measured_step_s: float) -> None:
    miss = _miss(before, measured_step_s)
    if not 1 / EXPLAINED <= miss <= EXPLAINED:
        more = "longer" if miss < 1 else "shorter"
        raise Unmeasured(f"what makes a step {max(miss, 1 / miss):.1f} times {more} than its measured parts would")


def _gain(before: Situation, after: Situation, ratio: float, measured_step_s: float, seed: int | None) -> float:
    """By the same luck before and after. A model whose step is too long before would promise more than there is to be had."""
    chances = [None, None] if seed is None else [Random(seed), Random(seed)]
    settings = [each.setting(chance) for each, chance in zip((before, after), chances, strict=True)]
    steps = [_course(setting, seed or 0).step for setting in settings]
    return min(ratio * steps[0] / steps[1], _most(settings[1], ratio, measured_step_s))


def _most(after: Setting, ratio: float, measured_step_s: float) -> float:
    """What can be gained at most: a step is no shorter than on the device, by the cores, or by the storage."""
    return ratio * max(1.0, measured_step_s / max(fmean(after.steps), shortest_by_cores(after), after.storage))


def _course(setting: Setting, seed: int) -> Simulated:
    return run(setting, max(LEAST_STEPS, TAKEN // setting.ranks), Random(seed))
