"""Control runs that contradict the training, and what pages print of rates that say nothing."""

from __future__ import annotations

import io
import re
from random import Random

import pytest
from script_diagnoses import benchmark, rates, script_diagnosis

from ddpbench.analysis.controls import controls_of
from ddpbench.analysis.pipeline.model import pipeline_model
from ddpbench.analysis.whatif.query import diagnosed_input
from ddpbench.record.bottleneck import DataWait, Undecided
from ddpbench.record.record import Job
from ddpbench.report.console import make_console
from ddpbench.report.messages.causes import cause_text
from ddpbench.report.pages.diagnosis import render_diagnosis


def page(job: Job) -> str:
    stream = io.StringIO()
    render_diagnosis(job, make_console(stream), None, verbose=True)
    return stream.getvalue()


@pytest.mark.parametrize(("computed", "contradicted"), [(974.0, True), (1190.0, False), (1080.0, True), (1240.0, False), (3000.0, False)])
def test_training_faster_than_compute_only_contradicts_it(computed: float, contradicted: bool) -> None:
    job = script_diagnosis(rates(1240.0), rates(computed), background=rates(computed))
    controls = controls_of(job)
    assert controls.is_contradicted == contradicted
    assert (controls.compute_only is None, controls.loader_in_background is None) == (contradicted, contradicted)
    assert ("compute only: no figure" in page(job)) == contradicted
    assert ("\nAU " in page(job)) != contradicted


def test_noise_contradicts_on_the_page_only() -> None:
    """The verdict weighs how much the rounds vary."""
    job = script_diagnosis(rates(1000.0), [700.0, 1300.0, 800.0, 950.0, 600.0, 1250.0])
    assert controls_of(job).compute_only is not None
    assert "compute only: no figure" in page(job)
    assert "of compute only" not in page(job)


def test_contradicted_control_run_does_not_hide_the_wait_for_data() -> None:
    job = script_diagnosis(rates(1240.0), rates(974.0), wait=0.45, loader=benchmark(1250.0))
    verdict = job.records[0].verdict
    assert verdict is not None
    assert verdict.kind == "data-bound"
    inputs, _ = diagnosed_input(job)
    assert pipeline_model(inputs).device_rate == pytest.approx(1240 / 0.54, rel=0.01), "by the phases of the run itself"


def test_no_page_shows_a_run_faster_than_computing_or_a_share_without_bound() -> None:
    random = Random(3)
    for _ in range(60):
        run, spread = 1000.0, random.choice([0.01, 0.3])
        computed = [run * random.uniform(0.3, 3.0) * 2 ** random.gauss(0, spread) for _ in range(8)]
        cost_ms = 10.0 ** random.uniform(-7, 0)
        job = script_diagnosis(
            rates(run), computed, wait=random.choice([0.0, 0.3]), loader=benchmark(10 ** random.uniform(2, 8), cpu_ms=cost_ms)
        )
        text = page(job)
        shares = [float(share.replace(",", "")) for share in re.findall(r"([\d,.]+)%", text)]
        assert max(shares, default=0) <= 10_000
        this_run = re.search(r"this run +[\d,]+ +([\d.,]+)%", text)
        assert this_run is None or float(this_run[1]) <= 100
        rows = dict(re.findall(r"(usable cores|2 busy workers) +([\d,]+)", text))
        assert all(float(rate.replace(",", "")) < 100_000 for rate in rows.values())


def test_verdict_names_no_device_that_is_slower_than_the_run() -> None:
    """By pairs of rounds the run is slower, by their sums it is faster."""
    verdict = script_diagnosis([1000.0] * 5, [2500.0, 500.0, 2500.0, 500.0, 2500.0], wait=0.3, loader=benchmark(1010.0)).records[0].verdict
    assert verdict is not None
    found = verdict.evidence.likely if isinstance(verdict.evidence, Undecided) else verdict.evidence
    assert isinstance(found, DataWait)
    assert found.device_samples_per_s == pytest.approx(1000 * 2.5**0.6 * 0.5**0.4)
    assert found.loader_samples_per_s == pytest.approx(1000)


def test_cause_names_no_rate_that_is_no_limit() -> None:
    job = script_diagnosis(rates(1240.0), rates(2500.0), wait=0.45, loader=benchmark(1250.0, cpu_ms=1e-6))
    verdict = job.records[0].verdict
    assert verdict is not None
    assert verdict.cause_evidence is not None
    assert not re.search(r"\d,\d{3},\d{3}", cause_text(verdict.cause_evidence, job.records[0]))
