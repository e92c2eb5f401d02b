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

from ddpbench.analysis.simulation.simulator import SimParams, SimResult, core_bound_step_s, simulate
from ddpbench.analysis.whatif.assumptions import Assumption, MissingMeasurement, total_log_error
from ddpbench.analysis.whatif.state import PipelineState

CONFIDENCE = 0.9
REPLICAS = 24
BATCHES_PER_REPLICA = 6000
"""Batches that all ranks take in one replica: its mean is then good to about a percent."""

MIN_SIMULATED_STEPS = 300

MODEL_ERROR = 0.03
"""Of a log gain, as a standard deviation, however small the gain."""

GAIN_ERROR_FRACTION = 0.12
"""The same as a part of the log gain."""

MAX_RESIDUAL = 1.5
"""A model that misses the measured run by more than this factor predicts nothing."""

RESIDUAL_ERROR_FRACTION = 0.5
"""The same as a part of the log of how far the model misses the run that was measured."""

OTHER_CORES_ERROR_FRACTION = 0.25
"""The same as a part of the share of the cores that others kept busy: they come and go."""

STORAGE = "the storage"
STORAGE_LIMIT_ASSUMPTION = Assumption("the storage gives what was measured of it, and no more", 0.1)
"""Where that becomes the limit."""


@dataclass(frozen=True)
class GainEstimate:
    """``gain`` is in times as many images/s, between ``low`` and ``high`` with 90% confidence."""

    gain: float
    low: float
    high: float
    before: SimResult
    after: SimResult
    residual: float  # how many times as long as measured a step is by the model, before the change; cores that lose no time to turns
    bottleneck: str  # the part that is the limit then
    assumptions: tuple[Assumption, ...]


def estimate_gain(before: PipelineState, after: PipelineState, measured_step_s: float) -> GainEstimate:
    """``measured_step_s`` is the step of the run that ``before`` was told from. Raises Unmeasured where the model does not explain it."""
    _require_explained(before, measured_step_s)
    both, ratio = (before.sim_params(), after.sim_params()), after.ranks * after.batch_size / (before.ranks * before.batch_size)
    first, then = (_simulate(each, 0) for each in both)
    limits = [bottleneck_of(setting, course) for setting, course in zip(both, (first, then), strict=True)]
    assumed = after.all_assumptions + (
        (STORAGE_LIMIT_ASSUMPTION,) if [limit.startswith(STORAGE) for limit in limits] == [False, True] else ()
    )
    gains = [_replica_gain(before, after, ratio, measured_step_s, seed) for seed in range(1, REPLICAS + 1)]
    center, miss = exp(fmean(map(log, gains))), _residual(before, measured_step_s)
    error = hypot(
        stdev(map(log, gains)),
        model_error(center, miss),
        total_log_error(set(assumed) - set(before.all_assumptions)),
        OTHER_CORES_ERROR_FRACTION * before.other_cores / (before.cores or 1.0) * bias_weight(center),
    )
    errors = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    high = min(center * exp(errors * error), _max_gain(both[1], ratio, measured_step_s) * exp(errors * MODEL_ERROR))
    return GainEstimate(center, center * exp(-errors * error), high, first, then, miss, limits[1], assumed)


def point_gain(before: PipelineState, after: PipelineState, measured_step_s: float) -> float:
    """The gain alone, from all that was measured. Raises Unmeasured as ``price`` does."""
    _require_explained(before, measured_step_s)
    return _replica_gain(before, after, after.ranks * after.batch_size / (before.ranks * before.batch_size), measured_step_s, None)


def model_error(gain: float, residual: float) -> float:
    """As a standard deviation of the log gain; nothing that changes nothing errs by what the model misses."""
    return hypot(MODEL_ERROR, GAIN_ERROR_FRACTION * log(gain), RESIDUAL_ERROR_FRACTION * log(residual) * bias_weight(gain))


def bias_weight(gain: float) -> float:
    """From 0 for no gain to 1: what the model is off by alike, before and after a change does not matter for one that does nothing."""
    return min(1.0, abs(log(gain)) / MODEL_ERROR)


def bottleneck_of(params: SimParams, result: SimResult) -> str:
    """What the step lasts as long as, within a few percent: one part or, where none alone explains it, batches that come unevenly."""
    parts = {
        "the device": fmean(params.step_times_s),
        "the workers": max(fmean(each) for each in params.batch_times_s) / max(1, params.workers),
        "the cores": core_bound_step_s(params),
        STORAGE: params.storage_s,
        "handing batches over": params.handoff_s,
    }
    if not params.workers or not (params.background_handoff or params.run_ahead):
        parts["the device"] += params.handoff_s + (0.0 if params.workers else parts["the workers"])
        parts["handing batches over"] = 0.0
    name = max(parts, key=lambda part: parts[part])
    return name if result.step_s <= 1.08 * parts[name] else f"{name}, and batches that come unevenly"


def _residual(before: PipelineState, measured_step_s: float) -> float:
    return _simulate(replace(before, cpu_loss=0.0).sim_params(), 0).step_s / measured_step_s


def _require_explained(before: PipelineState, measured_step_s: float) -> None:
    miss = _residual(before, measured_step_s)
    if not 1 / MAX_RESIDUAL <= miss <= MAX_RESIDUAL:
        more = "longer" if miss < 1 else "shorter"
        raise MissingMeasurement(f"what makes a step {max(miss, 1 / miss):.1f} times {more} than its measured parts would")


def _replica_gain(before: PipelineState, after: PipelineState, ratio: float, measured_step_s: float, seed: int | None) -> float:
    """By the same luck before and after. A model whose step is too long before would promise more than there is to be had."""
    chances = [None, None] if seed is None else [Random(seed), Random(seed)]
    settings = [each.sim_params(chance) for each, chance in zip((before, after), chances, strict=True)]
    steps = [_simulate(setting, seed or 0).step_s for setting in settings]
    return min(ratio * steps[0] / steps[1], _max_gain(settings[1], ratio, measured_step_s))


def _max_gain(params: SimParams, ratio: float, measured_step_s: float) -> float:
    """What can be gained at most: a step is no shorter than on the device, by the cores, or by the storage."""
    return ratio * max(1.0, measured_step_s / max(fmean(params.step_times_s), core_bound_step_s(params), params.storage_s))


def _simulate(params: SimParams, seed: int) -> SimResult:
    return simulate(params, max(MIN_SIMULATED_STEPS, BATCHES_PER_REPLICA // params.ranks), Random(seed))
