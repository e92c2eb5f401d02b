"""Messages of a what-if answer: assumptions and required measurements."""

from __future__ import annotations

from typing import get_args

import pytest

from ddpbench.analysis.simulation.simulator import SimResult
from ddpbench.analysis.whatif.gain import GainEstimate, PipelinePart
from ddpbench.record.prediction import Assumption, AssumptionCode, MeasurementCode, MissingMeasurement, Scenario
from ddpbench.report.messages import whatif

ASSUMPTIONS = [
    (
        Assumption(code="above-measured-load"),
        "more threads a core than were measured: an image costs as much of a core as under the heaviest load measured",
    ),
    (
        Assumption(code="below-measured-load"),
        "fewer threads a core than were measured: an image costs as much of a core as under the lightest load measured",
    ),
    (Assumption(code="other-processes", cores=1.62), "others keep 1.6 cores busy, as they did"),
    (Assumption(code="cores-lost", lost_fraction=0.123), "cores that everybody wants lose 12% of their time to turns, as in the run"),
    (Assumption(code="same-cores"), "cores of the same kind, and nobody else on them"),
    (Assumption(code="enough-cores"), "what the run takes of the cores is not known: there are enough"),
    (
        Assumption(code="compute-time-of-run"),
        "a step on batches that are there already was not measured: it takes what computing takes in the run",
    ),
    (Assumption(code="equal-batches"), "nobody told how long single batches take: all as long as their mean"),
    (
        Assumption(code="background-loader", loader="dali-cpu"),
        "dali-cpu gives beside the training what it gave alone, less what the cores take from it",
    ),
    (
        Assumption(code="background-loader", loader="dali-gpu", hw_decoder_load=0.5),
        "dali-gpu --hw-decoder-load 0.5 gives beside the training what it gave alone, less what the cores take from it",
    ),
    (Assumption(code="trainer-loads-as-fast"), "the trainer takes as long for a batch as a worker"),
    (Assumption(code="threads-scale"), "threads share the work on a batch evenly"),
    (Assumption(code="storage-scales"), "the storage answers each of more workers as fast"),
    (Assumption(code="storage-limit"), "the storage gives what was measured of it, and no more"),
    (Assumption(code="no-read-wait"), "a file in memory is not waited for"),
    (Assumption(code="no-overlapped-copy"), "from pageable memory nothing is copied beside the training"),
    (Assumption(code="same-copies"), "copies and interference take as long beside another precision"),
    (Assumption(code="cuda-graphs"), "CUDA graphs leave no pause between kernels, and the kernels as they are"),
    (Assumption(code="same-image-load"), "a worker, and its copy, take as long for an image"),
    (Assumption(code="same-image-time"), "an image takes the device and the workers as long, and gradient sync a step"),
    (Assumption(code="sync-hidden", ranks=4), "gradient sync among 4, of which one has none, is hidden by the backward"),
    (Assumption(code="same-step", ranks=8, measured_ranks=4), "a step among 8 takes as long as among 4"),
]

MEASUREMENTS = [
    (MissingMeasurement(code="loader-benchmark", loader="tensor"), "what tensor gives and costs"),
    (
        MissingMeasurement(code="loader-benchmark", loader="dali-gpu", hw_decoder_load=0.99),
        "what dali-gpu --hw-decoder-load 0.99 gives and costs",
    ),
    (MissingMeasurement(code="loader-in-background", loader="dali-gpu"), "what dali-gpu takes from the training beside it"),
    (MissingMeasurement(code="batch-time", loader="dali-cpu"), "how long dali-cpu takes for a batch"),
    (MissingMeasurement(code="worker-batch-time", loader="torch"), "how long the workers of torch take for a batch"),
    (MissingMeasurement(code="read-wait", loader="torch"), "how long torch waits for files"),
    (MissingMeasurement(code="h2d-bandwidth"), "how fast batches are copied"),
    (MissingMeasurement(code="cpu-usage"), "what the run takes of the cores"),
    (MissingMeasurement(code="compute-only-step"), "a step on batches that are there already"),
    (MissingMeasurement(code="step-without-sync"), "a step without gradient sync"),
    (MissingMeasurement(code="step-in-precision", precision="fp32"), "a step in fp32"),
    (MissingMeasurement(code="step-compiled", compile_mode="default"), "a step compiled by default"),
    (MissingMeasurement(code="step-compiled", compile_mode="off"), "a step that is not compiled"),
    (
        MissingMeasurement(code="unexplained-step", simulated_ratio=0.5),
        "what makes a step 2.0 times longer than its measured parts would",
    ),
    (
        MissingMeasurement(code="unexplained-step", simulated_ratio=1.6),
        "what makes a step 1.6 times shorter than its measured parts would",
    ),
]


@pytest.mark.parametrize(("assumption", "text"), ASSUMPTIONS, ids=[each.code for each, _ in ASSUMPTIONS])
def test_assumption_has_a_message(assumption: Assumption, text: str) -> None:
    assert whatif.assumption_text(assumption) == text


@pytest.mark.parametrize(("missing", "text"), MEASUREMENTS, ids=[each.code for each, _ in MEASUREMENTS])
def test_missing_measurement_has_a_message(missing: MissingMeasurement, text: str) -> None:
    assert whatif.missing_measurement_text(missing) == text


def test_every_code_has_a_message() -> None:
    assert {each.code for each, _ in ASSUMPTIONS} == whatif.ASSUMPTIONS.keys() == {*get_args(AssumptionCode)}
    assert {each.code for each, _ in MEASUREMENTS} == whatif.MEASUREMENTS.keys() == {*get_args(MeasurementCode)}
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
        ("handoff", "handing batches over"),
    ],
)
def test_whatif_bottleneck_has_a_message(part: PipelinePart, text: str) -> None:
    assert whatif.bottleneck_text(estimate(1.5, 1.4, 1.6, part)) == text
    assert whatif.bottleneck_text(estimate(1.5, 1.4, 1.6, part, uneven=True)) == f"{text}, and batches that come unevenly"


def test_gain_is_uncertain_if_its_interval_includes_one() -> None:
    assert whatif.certain_gain_text(estimate(1.5, 1.4, 1.6)) == "1.5x (1.4 to 1.6)"
    assert whatif.certain_gain_text(estimate(1.1, 0.9, 1.3)) == "no gain that is certain: 1.1x (0.9 to 1.3)"


def test_present_setting_and_residual_have_messages() -> None:
    assert whatif.already_set_text(Scenario(prefetch=2)) == "--prefetch 2 is the present setting, and gains nothing"
    assert whatif.residual_text(1.25) == "it makes a step of the run as it was 25% longer than measured"
    assert whatif.residual_text(0.88) == "it makes a step of the run as it was 12% shorter than measured"


def test_hint_names_the_command_that_measures() -> None:
    assert whatif.measurement_hint("ddpbench diagnose mlp") == "'ddpbench diagnose mlp' measures it; name its record behind this one"
    assert whatif.measurement_hint("") == "no command here measures it"
