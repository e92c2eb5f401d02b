"""Sentences about predicted gains: the interval, what is assumed, and which measurement is missing."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import asdict

from ddpbench.record.prediction import Assumption, AssumptionCode, MeasurementCode, MissingMeasurement
from ddpbench.report.format import format_with_interval

ASSUMPTIONS: Mapping[AssumptionCode, str] = {
    "above-measured-load": "more threads per core than measured: CPU time per image as under the heaviest measured load",
    "below-measured-load": "fewer threads per core than measured: CPU time per image as under the lightest measured load",
    "other-processes": "other processes keep {cores:.2g} cores busy, as in the run",
    "cores-lost": "oversubscribed cores lose {lost_fraction:.0%} of their time to context switches, as in the run",
    "same-cores": "cores of the same kind, with no other processes on them",
    "enough-cores": "enough cores: the CPU usage of the run is unknown",
    "compute-time-of-run": "a compute-only step, which was not measured, takes the compute time of the run",
    "equal-batches": "all batches take the mean time: single batches were not timed",
    "background-loader": "{loader} delivers as much during training as alone, up to the limit of the cores",
    "trainer-loads-as-fast": "the trainer process takes as long for a batch as a worker",
    "threads-scale": "threads share the work on a batch evenly",
    "storage-scales": "each added worker gets the same storage throughput",
    "gpu-shared": "decoding slows down training on the same GPU by up to half of the time that it takes alone",
    "kept-workers": "workers that are kept load the first batch of an epoch as fast as any other",
    "storage-limit": "storage delivers at most the measured rate",
    "no-read-wait": "files in memory have no read wait",
    "no-overlapped-copy": "copies from pageable memory do not overlap training",
    "same-copies": "copies and interference take as long in another precision",
    "fused-kernels": "fused kernels move the counted bytes as fast as a copy",
    "cuda-graphs": "CUDA graphs remove the gaps between kernels and do not change the kernels",
    "same-image-load": "worker and copy time per image stay the same",
    "same-image-time": "device and workers take as long per image, gradient sync as long per step",
    "sync-hidden": "gradient sync on {ranks} ranks fully overlaps backward; 1 rank has none to measure",
    "same-step": "a step on {ranks} ranks takes as long as on {measured_ranks}",
}

ALWAYS_ASSUMED = "rounds and batches vary as measured; no more other processes than in the run"
"""The assumption of every prediction."""

MEASUREMENTS: Mapping[MeasurementCode, str] = {
    "loader-benchmark": "throughput and CPU cost of {loader}",
    "loader-in-background": "slowdown of training with {loader} in the background",
    "batch-time": "time per batch of {loader}",
    "worker-batch-time": "worker time per batch of {loader}",
    "read-wait": "read wait of {loader}",
    "h2d-bandwidth": "host-to-device bandwidth",
    "cpu-usage": "CPU usage of the run",
    "compute-only-step": "a compute-only step",
    "step-without-sync": "a step without gradient sync",
    "step-in-precision": "a step in {precision}",
    "step-compiled": "a step compiled with {compile_mode}",
    "step-fast": "a step with --fast",
    "step-fused": "a step with fused kernels",
    "unexplained-step": "why {longer} {times:.1f} times as long as {shorter}",
}


def assumption_text(assumption: Assumption) -> str:
    return ASSUMPTIONS[assumption.code].format(**{**asdict(assumption), "loader": _loader_text(assumption)})


def missing_measurement_text(missing: MissingMeasurement) -> str:
    if missing.code == "step-compiled" and missing.compile_mode == "off":
        return "a step without torch.compile"
    ratio = missing.simulated_ratio or 1.0
    values = {
        **asdict(missing),
        "loader": _loader_text(missing),
        "times": max(ratio, 1 / ratio),
        "longer": "a step takes" if ratio < 1 else "its measured parts take",
        "shorter": "its measured parts" if ratio < 1 else "a step",
    }
    return MEASUREMENTS[missing.code].format(**values)


def _loader_text(item: Assumption | MissingMeasurement) -> str:
    """``dali-gpu``, ``dali-gpu --hw-decoder-load 0.99``."""
    return f"{item.loader}" if item.hw_decoder_load is None else f"{item.loader} --hw-decoder-load {item.hw_decoder_load:g}"


def gain_text(center: float, low: float, high: float) -> str:
    """``1.42x (1.34 to 1.51)``."""
    return format_with_interval(center, low, high, "x", width_digits=1)
