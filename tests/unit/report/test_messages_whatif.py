"""Messages of a what-if answer: assumptions and required measurements."""

from __future__ import annotations

from typing import get_args

import pytest

from ddpbench.analysis.simulation.simulator import SimResult
from ddpbench.analysis.whatif.gain import GainEstimate, PipelinePart
from ddpbench.record.prediction import Assumption, AssumptionCode, MeasurementCode, MissingMeasurement, Scenario
from ddpbench.report.messages import predictions, whatif

ASSUMPTIONS = [
    (
        Assumption(code="above-measured-load"),
        "more threads per core than measured: CPU time per image as under the heaviest measured load",
    ),
    (
        Assumption(code="below-measured-load"),
        "fewer threads per core than measured: CPU time per image as under the lightest measured load",
    ),
    (Assumption(code="other-processes", cores=1.62), "other processes keep 1.6 cores busy, as in the run"),
    (Assumption(code="cores-lost", lost_fraction=0.123), "oversubscribed cores lose 12% of their time to context switches, as in the run"),
    (Assumption(code="same-cores"), "cores of the same kind, with no other processes on them"),
    (Assumption(code="enough-cores"), "enough cores: the CPU usage of the run is unknown"),
    (
        Assumption(code="compute-time-of-run"),
        "a compute-only step, which was not measured, takes the compute time of the run",
    ),
    (Assumption(code="equal-batches"), "all batches take the mean time: single batches were not timed"),
    (
        Assumption(code="background-loader", loader="dali-cpu"),
        "dali-cpu delivers as much during training as alone, up to the limit of the cores",
    ),
    (
        Assumption(code="background-loader", loader="dali-gpu", hw_decoder_load=0.5),
        "dali-gpu --hw-decoder-load 0.5 delivers as much during training as alone, up to the limit of the cores",
    ),
    (Assumption(code="trainer-loads-as-fast"), "the trainer process takes as long for a batch as a worker"),
    (Assumption(code="threads-scale"), "threads share the work on a batch evenly"),
    (Assumption(code="storage-scales"), "each added worker gets the same storage throughput"),
    (Assumption(code="gpu-shared"), "decoding slows down training on the same GPU by up to half of the time that it takes alone"),
    (Assumption(code="kept-workers"), "workers that are kept load the first batch of an epoch as fast as any other"),
    (Assumption(code="storage-limit"), "storage delivers at most the measured rate"),
    (Assumption(code="no-read-wait"), "files in memory have no read wait"),
    (Assumption(code="no-overlapped-copy"), "copies from pageable memory do not overlap training"),
    (Assumption(code="same-copies"), "copies and interference take as long in another precision"),
    (Assumption(code="fused-kernels"), "fused kernels move the counted bytes as fast as a copy"),
    (Assumption(code="cuda-graphs"), "CUDA graphs remove the gaps between kernels and do not change the kernels"),
    (Assumption(code="same-image-load"), "worker and copy time per image stay the same"),
    (Assumption(code="same-image-time"), "device and workers take as long per image, gradient sync as long per step"),
    (Assumption(code="sync-hidden", ranks=4), "gradient sync on 4 ranks fully overlaps backward; 1 rank has none to measure"),
    (Assumption(code="same-step", ranks=8, measured_ranks=4), "a step on 8 ranks takes as long as on 4"),
]

MEASUREMENTS = [
    (MissingMeasurement(code="step-fast"), "a step with --fast"),
    (MissingMeasurement(code="step-fused"), "a step with fused kernels"),
    (MissingMeasurement(code="loader-benchmark", loader="tensor"), "throughput and CPU cost of tensor"),
    (
        MissingMeasurement(code="loader-benchmark", loader="dali-gpu", hw_decoder_load=0.99),
        "throughput and CPU cost of dali-gpu --hw-decoder-load 0.99",
    ),
    (MissingMeasurement(code="loader-in-background", loader="dali-gpu"), "slowdown of training with dali-gpu in the background"),
    (MissingMeasurement(code="batch-time", loader="dali-cpu"), "time per batch of dali-cpu"),
    (MissingMeasurement(code="worker-batch-time", loader="torch"), "worker time per batch of torch"),
    (MissingMeasurement(code="read-wait", loader="torch"), "read wait of torch"),
    (MissingMeasurement(code="h2d-bandwidth"), "host-to-device bandwidth"),
    (MissingMeasurement(code="cpu-usage"), "CPU usage of the run"),
    (MissingMeasurement(code="compute-only-step"), "a compute-only step"),
    (MissingMeasurement(code="step-without-sync"), "a step without gradient sync"),
    (MissingMeasurement(code="step-in-precision", precision="fp32"), "a step in fp32"),
    (MissingMeasurement(code="step-compiled", compile_mode="default"), "a step compiled with default"),
    (MissingMeasurement(code="step-compiled", compile_mode="off"), "a step without torch.compile"),
    (
        MissingMeasurement(code="unexplained-step", simulated_ratio=0.5),
        "why a step takes 2.0 times as long as its measured parts",
    ),
    (
        MissingMeasurement(code="unexplained-step", simulated_ratio=1.6),
        "why its measured parts take 1.6 times as long as a step",
    ),
]


@pytest.mark.parametrize(("assumption", "text"), ASSUMPTIONS, ids=[each.code for each, _ in ASSUMPTIONS])
def test_assumption_has_a_message(assumption: Assumption, text: str) -> None:
    assert predictions.assumption_text(assumption) == text


@pytest.mark.parametrize(("missing", "text"), MEASUREMENTS, ids=[each.code for each, _ in MEASUREMENTS])
def test_missing_measurement_has_a_message(missing: MissingMeasurement, text: str) -> None:
    assert predictions.missing_measurement_text(missing) == text


def test_every_code_has_a_message() -> None:
    assert {each.code for each, _ in ASSUMPTIONS} == predictions.ASSUMPTIONS.keys() == {*get_args(AssumptionCode)}
    assert {each.code for each, _ in MEASUREMENTS} == predictions.MEASUREMENTS.keys() == {*get_args(MeasurementCode)}
    assert whatif.PARTS.keys() == {*get_args(PipelinePart)}


def estimate(gain: float, low: float, high: float, bottleneck: PipelinePart = "workers", uneven: bool = False) -> GainEstimate:
    course = SimResult(step_s=0.1, data_wait_fraction=0.0)
    return GainEstimate(gain, low, high, course, course, 1.0, bottleneck, uneven, ())


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("device", "the device"),
        ("workers", "the workers"),
        ("cores", "the cores"),
        ("storage", "the storage"),
        ("handoff", "the handoff"),
    ],
)
def test_whatif_bottleneck_has_a_message(part: PipelinePart, text: str) -> None:
    assert whatif.bottleneck_text(estimate(1.5, 1.4, 1.6, part)) == text
    assert whatif.bottleneck_text(estimate(1.5, 1.4, 1.6, part, uneven=True)) == f"{text} and uneven batches"


def test_gain_is_uncertain_if_its_interval_includes_one() -> None:
    assert whatif.certain_gain_text(estimate(1.5, 1.4, 1.6)) == "1.5x (1.4 to 1.6)"
    assert whatif.certain_gain_text(estimate(1.1, 0.9, 1.3)) == "no significant gain: 1.1x (0.9 to 1.3)"


def test_present_setting_and_residual_have_messages() -> None:
    assert whatif.already_set_text(Scenario(prefetch=2)) == "--prefetch 2 is already set and gains nothing"
    assert whatif.residual_text(1.25) == "the simulated step of this run is 25% longer than measured"
    assert whatif.residual_text(0.88) == "the simulated step of this run is 12% shorter than measured"


def test_hint_names_the_command_that_measures() -> None:
    assert whatif.measurement_hint("ddpbench diagnose mlp") == "'ddpbench diagnose mlp' measures it; add its record after this one"
    assert whatif.measurement_hint("") == "no command measures it here"
