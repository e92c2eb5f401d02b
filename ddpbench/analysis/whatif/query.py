"""A question to a diagnosis: what would the training do with this change?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ddpbench.analysis.command import Rerun
from ddpbench.analysis.controls import diagnosed, experiments_of
from ddpbench.analysis.inputs import Case
from ddpbench.analysis.summary import summarise
from ddpbench.analysis.whatif.apply import changed, unchanged
from ddpbench.analysis.whatif.assumptions import Unmeasured
from ddpbench.analysis.whatif.context import Patient
from ddpbench.analysis.whatif.external import Lent, lent, of_itself
from ddpbench.analysis.whatif.gain import Price, gain, price
from ddpbench.analysis.whatif.measured import measured
from ddpbench.analysis.whatif.state import Situation
from ddpbench.record.errors import UsageError
from ddpbench.record.prediction import Change, Prediction
from ddpbench.record.record import Job


@dataclass(frozen=True)
class Answer:
    """``price`` is that of ``change``, from ``before`` to ``after``."""

    change: Change
    price: Price
    before: Situation
    after: Situation
    now_images_per_s: float  # measured, of all ranks
    as_it_is: Change  # what of the change is so already

    @property
    def images_per_s(self) -> float:
        return self.now_images_per_s * self.price.gain

    @property
    def prediction(self) -> Prediction:
        found = self.price
        return Prediction(
            change=self.change,
            gain=found.gain,
            low=found.low,
            high=found.high,
            images_per_s=self.images_per_s,
            assumed=[each.text for each in found.assumed],
        )


def answer(case: Case, run: Rerun, change: Change, more: Lent) -> Answer:
    """Raises Unmeasured for what has to be measured first, UsageError for what cannot be, or is so already."""
    before, patient = measured(case), Patient(run, case, more)
    as_it_is = unchanged(before, change, patient)
    if as_it_is == change:
        raise UsageError(f"{change.words} is the present setting: the run is as it was measured", "another value, or another setting")
    after = changed(before, change, patient)
    found = price(before, after, case.step_ms / 1000)
    return Answer(change, found, before, after, 1000 * before.ranks * before.batch / case.step_ms, as_it_is)


def predicted(case: Case, run: Rerun, change: Change) -> Prediction:
    """The same, from the diagnosis alone and as it is recorded; of what was not measured it says what that is."""
    try:
        return answer(case, run, change, of_itself(case)).prediction
    except Unmeasured as lacking:
        return Prediction(change=change, needs=lacking.what)


def gains(case: Case, run: Rerun) -> Callable[[Change], float | None]:
    """Tells the gain of one change after the other; None of what has to be measured first, or cannot be."""
    with suppress(Unmeasured):
        before, patient = measured(case), Patient(run, case, of_itself(case))

        def told(change: Change) -> float | None:
            try:
                return gain(before, changed(before, change, patient), case.step_ms / 1000)
            except (Unmeasured, UsageError):
                return None

        return told
    return lambda change: None


def asked_of(job: Job) -> tuple[Case, Rerun]:
    """The diagnosed run of ``job`` as a case. Raises UsageError where it is no diagnosis, or its run has no round."""
    record = diagnosed(job)
    if record is None:
        raise UsageError("the record is no diagnosis: nothing around the run was measured", f"'{_diagnose(job)}' measures it")
    summary = summarise(record)
    if summary.step_ms is None:
        raise UsageError("the diagnosed run has no round", f"'{_diagnose(job)}' once more, with a longer --time-limit")
    return Case(record, summary, experiments_of(job)), Rerun.of(record, job)


def ask(job: Job, change: Change, others: Sequence[Job] = ()) -> Answer:
    """What a diagnosis answers, with what ``others`` lend it. Raises UsageError, for what is not measured too: with how to measure it."""
    case, run = asked_of(job)
    try:
        return answer(case, run, change, lent(job, others))
    except Unmeasured as lacking:
        raise UsageError(f"this needs a measurement: {lacking.what}", _measure(lacking)) from lacking


def _measure(lacking: Unmeasured) -> str:
    return f"'{lacking.how}' measures it; name its record behind this one" if lacking.how else "no command here measures it"


def _diagnose(job: Job) -> str:
    return Rerun.of(job.records[0], job).diagnose()
