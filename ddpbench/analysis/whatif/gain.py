"""Gain of a scenario, with its interval.

Before and after are simulated in many replicas, each of which resamples the measured rounds. The interval adds in quadrature, on a log
scale, the spread of the replicas and the errors of the model:

- a minimum, as seen over many trials, and a fraction of the gain;
- half of the residual against the measured run;
- other processes on the cores, which come and go;
- every assumption behind the scenario.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, hypot, log
from random import Random
from statistics import NormalDist, fmean, stdev
from typing import Literal

from ddpbench.analysis.simulation.simulator import SimParams, SimResult, core_bound_step_s, simulate
from ddpbench.analysis.whatif.assumptions import MissingMeasurementError, total_log_error
from ddpbench.analysis.whatif.state import PipelineState
from ddpbench.record.prediction import PREDICTION_CONFIDENCE, Assumption, MissingMeasurement

REPLICAS = 24
BATCHES_PER_REPLICA = 6000
"""Batches of all ranks together in one replica, which makes its mean accurate to about 1%."""

MIN_SIMULATED_STEPS = 300

MODEL_ERROR = 0.03
"""Minimum standard deviation of the log gain."""

GAIN_ERROR_FRACTION, BENCHMARKED_GAIN_ERROR_FRACTION = 0.12, 0.06
"""Additional standard deviation, as a fraction of the log gain. It is smaller for workers that mostly wait, if the loader was benchmarked
with about as many.
"""

MAX_RESIDUAL = 1.5
"""If the model misses the measured run by more than this factor, it predicts nothing."""

RESIDUAL_ERROR_FRACTION = 0.5
"""Additional standard deviation, as a fraction of the log of the residual against the measured run."""

OTHER_CORES_ERROR_FRACTION = 0.25
"""Additional standard deviation, as a fraction of the share of cores that other processes kept busy: these come and go."""

MAX_EVEN_STEP_RATIO = 1.08
"""If a step takes longer than this multiple of its slowest part alone, batches come unevenly."""

PipelinePart = Literal["device", "workers", "cores", "storage", "handoff"]


@dataclass(frozen=True)
class GainEstimate:
    """``gain`` is images/s after over before, within ``low`` and ``high`` with 90% confidence."""

    gain: float
    low: float
    high: float
    before: SimResult
    after: SimResult
    residual: float  # step time before the change, simulated without CPU loss, over measured
    bottleneck: PipelinePart  # after the change
    has_uneven_batches: bool  # a step after the change takes longer than the bottleneck alone
    assumptions: tuple[Assumption, ...]


def estimate_gain(before: PipelineState, after: PipelineState, measured_step_s: float) -> GainEstimate:
    """Estimate the gain from ``before`` to ``after``. ``measured_step_s`` is the step time of the run behind ``before``.

    Raises MissingMeasurementError if the model does not explain it.
    """
    _require_explained(before, measured_step_s)
    params, ratio = (before.sim_params(), after.sim_params()), after.ranks * after.batch_size / (before.ranks * before.batch_size)
    sim_before, sim_after = (_simulate(each, 0) for each in params)
    (part_before, _), (part, part_s) = (slowest_part(each) for each in params)
    assumptions = after.all_assumptions
    if part == "storage" and part_before != "storage":
        assumptions += (Assumption(code="storage-limit", log_error=0.1),)
    gains = [_replica_gain(before, after, ratio, measured_step_s, seed) for seed in range(1, REPLICAS + 1)]
    center, residual = exp(fmean(map(log, gains))), _residual(before, measured_step_s)
    error = hypot(
        stdev(map(log, gains)),
        model_error(
            ratio * sim_before.step_s / sim_after.step_s if before.epoch_start_s else center,
            residual,
            BENCHMARKED_GAIN_ERROR_FRACTION if after.has_benchmarked_waits else GAIN_ERROR_FRACTION,
        ),
        total_log_error(set(assumptions) - set(before.all_assumptions)),
        OTHER_CORES_ERROR_FRACTION * before.other_cores / (before.cores or 1.0) * bias_weight(center),
    )
    z = NormalDist().inv_cdf((1 + PREDICTION_CONFIDENCE) / 2)
    high = min(center * exp(z * error), _max_gain(after, params[1], ratio, measured_step_s) * exp(z * MODEL_ERROR))
    return GainEstimate(
        gain=center,
        low=center * exp(-z * error),
        high=high,
        before=sim_before,
        after=sim_after,
        residual=residual,
        bottleneck=part,
        has_uneven_batches=sim_after.step_s > MAX_EVEN_STEP_RATIO * part_s,
        assumptions=assumptions,
    )


def point_gain(before: PipelineState, after: PipelineState, measured_step_s: float) -> float:
    """Return the gain alone, without resampling.

    Raises MissingMeasurementError as ``estimate_gain`` does.
    """
    _require_explained(before, measured_step_s)
    return _replica_gain(before, after, after.ranks * after.batch_size / (before.ranks * before.batch_size), measured_step_s, None)


def model_error(gain: float, residual: float, gain_error_fraction: float = GAIN_ERROR_FRACTION) -> float:
    """Standard deviation of the log gain due to the model.

    The residual has no effect on a change that gains nothing.
    """
    return hypot(MODEL_ERROR, gain_error_fraction * log(gain), RESIDUAL_ERROR_FRACTION * log(residual) * bias_weight(gain))


def bias_weight(gain: float) -> float:
    """Weight of an error that is the same before and after.

    It is 0 for no gain, where the error cancels, and at most 1.
    """
    return min(1.0, abs(log(gain)) / MODEL_ERROR)


def slowest_part(params: SimParams) -> tuple[PipelinePart, float]:
    """The part that takes longest for a step, and its seconds."""
    parts_s: dict[PipelinePart, float] = {
        "device": fmean(params.step_times_s),
        "workers": max(fmean(each) for each in params.batch_times_s) / max(1, params.workers),
        "cores": core_bound_step_s(params),
        "storage": params.storage_s,
        "handoff": params.handoff_s,
    }
    if not params.workers or not (params.background_handoff or params.run_ahead):
        parts_s["device"] += params.handoff_s + (0.0 if params.workers else parts_s["workers"])
        parts_s["handoff"] = 0.0
    return max(parts_s.items(), key=lambda part: part[1])


def _residual(before: PipelineState, measured_step_s: float) -> float:
    return (_simulate(replace(before, cpu_loss=0.0).sim_params(), 0).step_s + before.epoch_start_s) / measured_step_s


def _require_explained(before: PipelineState, measured_step_s: float) -> None:
    residual = _residual(before, measured_step_s)
    if not 1 / MAX_RESIDUAL <= residual <= MAX_RESIDUAL:
        raise MissingMeasurementError(MissingMeasurement(code="unexplained-step", simulated_ratio=residual))


def _replica_gain(before: PipelineState, after: PipelineState, ratio: float, measured_step_s: float, seed: int | None) -> float:
    """Gain of one replica, with the same random draws before and after; no resampling if ``seed`` is None.

    Capped at ``_max_gain``: a model whose step is too long before the change would promise more than can be gained.
    """
    rngs = [None, None] if seed is None else [Random(seed), Random(seed)]
    params = [each.sim_params(rng) for each, rng in zip((before, after), rngs, strict=True)]
    steps = [
        _simulate(each_params, seed or 0).step_s + each.epoch_start_s for each, each_params in zip((before, after), params, strict=True)
    ]
    return min(ratio * steps[0] / steps[1], _max_gain(after, params[1], ratio, measured_step_s))


def _max_gain(after: PipelineState, params: SimParams, ratio: float, measured_step_s: float) -> float:
    """Upper bound of the gain: a step is no shorter than device, cores and storage each allow."""
    shortest_s = max(fmean(params.step_times_s), core_bound_step_s(params), params.storage_s) + after.epoch_start_s
    return ratio * max(1.0, measured_step_s / shortest_s)


def _simulate(params: SimParams, seed: int) -> SimResult:
    return simulate(params, max(MIN_SIMULATED_STEPS, BATCHES_PER_REPLICA // params.ranks), Random(seed))
