"""What-if queries: the predicted throughput of a diagnosed run in a scenario."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.controls import baseline_of, controls_of
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.summary import samples_per_step, summarize
from ddpbench.analysis.whatif.apply import already_set, apply_scenario
from ddpbench.analysis.whatif.assumptions import MissingMeasurementError
from ddpbench.analysis.whatif.context import WhatIfContext
from ddpbench.analysis.whatif.external import ExternalMeasurements, collect_measurements, own_measurements
from ddpbench.analysis.whatif.gain import GainEstimate, estimate_gain, point_gain
from ddpbench.analysis.whatif.measured import measured_state
from ddpbench.analysis.whatif.state import PipelineState
from ddpbench.record.errors import UsageError
from ddpbench.record.prediction import Prediction, Scenario
from ddpbench.record.record import Job


@dataclass(frozen=True)
class WhatIfAnswer:
    """``estimate`` is the gain of ``scenario``, from ``before`` to ``after``."""

    scenario: Scenario
    estimate: GainEstimate
    before: PipelineState
    after: PipelineState
    measured_samples_per_s: float  # of all ranks
    already_set: Scenario  # the part of ``scenario`` that is set already

    @property
    def samples_per_s(self) -> float:
        return self.measured_samples_per_s * self.estimate.gain

    @property
    def prediction(self) -> Prediction:
        estimate = self.estimate
        return Prediction(
            scenario=self.scenario,
            gain=estimate.gain,
            low=estimate.low,
            high=estimate.high,
            samples_per_s=self.samples_per_s,
            assumptions=[*estimate.assumptions],
        )


def evaluate_scenario(inputs: AnalysisInput, builder: CommandBuilder, scenario: Scenario, external: ExternalMeasurements) -> WhatIfAnswer:
    """Answer a what-if query.

    Raises MissingMeasurementError if a measurement is missing, UsageError if ``scenario`` is impossible or set already.
    """
    before, context = measured_state(inputs), WhatIfContext(builder, inputs, external)
    present = already_set(before, scenario, context)
    if present == scenario:
        raise UsageError(f"{scenario.flag_text} is already set in the measured run", "choose another value or another setting")
    after = apply_scenario(before, scenario, context)
    estimate = estimate_gain(before, after, inputs.step_ms / 1000)
    return WhatIfAnswer(scenario, estimate, before, after, 1000 * before.ranks * samples_per_step(inputs.record) / inputs.step_ms, present)


def predict_gain(inputs: AnalysisInput, builder: CommandBuilder, scenario: Scenario) -> Prediction:
    """Return the prediction of ``scenario`` from the diagnosis alone.

    It names the measurement that is missing, if any.
    """
    try:
        return evaluate_scenario(inputs, builder, scenario, own_measurements(inputs)).prediction
    except MissingMeasurementError as error:
        return Prediction(scenario=scenario, missing_measurement=error.missing)


def gain_predictor(inputs: AnalysisInput, builder: CommandBuilder) -> Callable[[Scenario], float | None]:
    """Return a function from scenario to gain.

    The gain is None if a measurement is missing or the scenario is impossible.
    """
    with suppress(MissingMeasurementError):
        before, context = measured_state(inputs), WhatIfContext(builder, inputs, own_measurements(inputs))

        def predict(scenario: Scenario) -> float | None:
            try:
                return point_gain(before, apply_scenario(before, scenario, context), inputs.step_ms / 1000)
            except (MissingMeasurementError, UsageError):
                return None

        return predict
    return lambda scenario: None


def diagnosed_input(job: Job) -> tuple[AnalysisInput, CommandBuilder]:
    """Return the analysis input and command builder of the diagnosed run.

    Raises UsageError if ``job`` is no diagnosis, or its run has no round.
    """
    record = baseline_of(job)
    if record is None:
        raise UsageError("the record is not a diagnosis: it has no control runs", f"run '{_diagnose_command(job)}'")
    summary = summarize(record)
    if summary.step_ms is None:
        raise UsageError("the diagnosed run has no round", f"run '{_diagnose_command(job)}' again with a longer --time-limit")
    return AnalysisInput(record, summary, controls_of(job)), CommandBuilder.of(record, job)


def answer_whatif(job: Job, scenario: Scenario, others: Sequence[Job] = ()) -> WhatIfAnswer:
    """Answer a what-if query from a diagnosis and the measurements of ``others``.

    Raises as ``evaluate_scenario`` does, and UsageError if ``job`` or one of ``others`` cannot be used.
    """
    inputs, builder = diagnosed_input(job)
    return evaluate_scenario(inputs, builder, scenario, collect_measurements(job, others))


def _diagnose_command(job: Job) -> str:
    return CommandBuilder.of(job.records[0], job).diagnose_command()
