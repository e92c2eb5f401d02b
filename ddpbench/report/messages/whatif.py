"""Sentences about a what-if answer: its gain, its assumptions, and what it requires."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import asdict

from ddpbench.analysis.whatif.gain import GainEstimate, PipelinePart
from ddpbench.record.prediction import Assumption, AssumptionCode, MeasurementCode, MissingMeasurement, Scenario
from ddpbench.report.format import format_percent, format_with_interval

PARTS: Mapping[PipelinePart, str] = {
    "device": "the device",
    "workers": "the workers",
    "cores": "the cores",
    "storage": "the storage",
    "handoff": "handing batches over",
}

ASSUMPTIONS: Mapping[AssumptionCode, str] = {
    "above-measured-load": "more threads a core than were measured: an image costs as much of a core as under the heaviest load measured",
    "below-measured-load": "fewer threads a core than were measured: an image costs as much of a core as under the lightest load measured",
    "other-processes": "others keep {cores:.2g} cores busy, as they did",
    "cores-lost": "cores that everybody wants lose {lost_fraction:.0%} of their time to turns, as in the run",
    "same-cores": "cores of the same kind, and nobody else on them",
    "enough-cores": "what the run takes of the cores is not known: there are enough",
    "compute-time-of-run": "a step on batches that are there already was not measured: it takes what computing takes in the run",
    "equal-batches": "nobody told how long single batches take: all as long as their mean",
    "background-loader": "{loader} gives beside the training what it gave alone, less what the cores take from it",
    "trainer-loads-as-fast": "the trainer takes as long for a batch as a worker",
    "threads-scale": "threads share the work on a batch evenly",
    "storage-scales": "the storage answers each of more workers as fast",
    "storage-limit": "the storage gives what was measured of it, and no more",
    "no-read-wait": "a file in memory is not waited for",
    "no-overlapped-copy": "from pageable memory nothing is copied beside the training",
    "same-copies": "copies and interference take as long beside another precision",
    "cuda-graphs": "CUDA graphs leave no pause between kernels, and the kernels as they are",
    "same-image-load": "a worker, and its copy, take as long for an image",
    "same-image-time": "an image takes the device and the workers as long, and gradient sync a step",
    "sync-hidden": "gradient sync among {ranks}, of which one has none, is hidden by the backward",
    "same-step": "a step among {ranks} takes as long as among {measured_ranks}",
}

ALWAYS_ASSUMED = "rounds and batches as uneven as measured, and nobody else on the machine who was not there"
"""The assumption of every prediction."""

MEASUREMENTS: Mapping[MeasurementCode, str] = {
    "loader-benchmark": "what {loader} gives and costs",
    "loader-in-background": "what {loader} takes from the training beside it",
    "batch-time": "how long {loader} takes for a batch",
    "worker-batch-time": "how long the workers of {loader} take for a batch",
    "read-wait": "how long {loader} waits for files",
    "h2d-bandwidth": "how fast batches are copied",
    "cpu-usage": "what the run takes of the cores",
    "compute-only-step": "a step on batches that are there already",
    "step-without-sync": "a step without gradient sync",
    "step-in-precision": "a step in {precision}",
    "step-compiled": "a step compiled by {compile_mode}",
    "unexplained-step": "what makes a step {times:.1f} times {more} than its measured parts would",
}


def assumption_text(assumption: Assumption) -> str:
    return ASSUMPTIONS[assumption.code].format(**{**asdict(assumption), "loader": _loader_text(assumption)})


def missing_measurement_text(missing: MissingMeasurement) -> str:
    if missing.code == "step-compiled" and missing.compile_mode == "off":
        return "a step that is not compiled"
    ratio = missing.simulated_ratio or 1.0
    values = {
        **asdict(missing),
        "loader": _loader_text(missing),
        "times": max(ratio, 1 / ratio),
        "more": "longer" if ratio < 1 else "shorter",
    }
    return MEASUREMENTS[missing.code].format(**values)


def _loader_text(found: Assumption | MissingMeasurement) -> str:
    """``dali-gpu``, ``dali-gpu --hw-decoder-load 0.99``."""
    return f"{found.loader}" if found.hw_decoder_load is None else f"{found.loader} --hw-decoder-load {found.hw_decoder_load:g}"


def measurement_hint(command: str) -> str:
    """How to measure what is missing; ``command`` is empty if no command does."""
    return f"'{command}' measures it; name its record behind this one" if command else "no command here measures it"


def bottleneck_text(estimate: GainEstimate) -> str:
    """``the workers``, ``the workers, and batches that come unevenly``."""
    return PARTS[estimate.bottleneck] + (", and batches that come unevenly" if estimate.has_uneven_batches else "")


def gain_text(center: float, low: float, high: float) -> str:
    """``1.42x (1.34 to 1.51)``."""
    return format_with_interval(center, low, high, "x", width_digits=1)


def certain_gain_text(estimate: GainEstimate) -> str:
    """The gain; that it is uncertain if its interval includes 1."""
    gain = gain_text(estimate.gain, estimate.low, estimate.high)
    return f"no gain that is certain: {gain}" if estimate.low <= 1 <= estimate.high else gain


def already_set_text(scenario: Scenario) -> str:
    return f"{scenario.flag_text} is the present setting, and gains nothing"


def residual_text(residual: float) -> str:
    """How far the simulated step is from the measured one."""
    off = f"{format_percent(abs(residual - 1), 2)} {'longer' if residual > 1 else 'shorter'}"
    return f"it makes a step of the run as it was {off} than measured"
