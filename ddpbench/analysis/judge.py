"""Judge a record: its checks, its throughput estimate and its verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from ddpbench.analysis.bottleneck.verdict import find_bottleneck
from ddpbench.analysis.checks.rules import run_checks
from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.controls import NO_CONTROLS, ControlRuns, baseline_of, controls_of
from ddpbench.analysis.disturbance import CONTROL_ROLES, without_disturbed
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.remedies.next_step import recommended_and_next
from ddpbench.analysis.remedies.outcomes import advise, judged_remedies
from ddpbench.analysis.remedies.recommend import recommend
from ddpbench.analysis.scaling.runs import scaling_runs
from ddpbench.analysis.scaling.verdict import judge_scaling
from ddpbench.analysis.summary import summarize
from ddpbench.analysis.throughput import estimate_control_run, estimate_throughput
from ddpbench.analysis.whatif.query import diagnosed_input
from ddpbench.record.config import measurement_config
from ddpbench.record.diagnosis import Diagnosis
from ddpbench.record.record import Job, Record
from ddpbench.record.remedy import AnyRemedy
from ddpbench.record.roles import ALLREDUCE_ONLY
from ddpbench.record.verdict import Verdict


def judge_all(job: Job, history: Callable[[Record], Sequence[float]] = lambda record: ()) -> None:
    """Judge every record of ``job``: a diagnosed run with its control runs and remedies, the points of a scaling job together.

    Control runs and scaling points get no verdict of their own. ``history`` returns the images/s of earlier runs of the same Config on the
    same machine.
    """
    baseline, recommended = baseline_of(job), None
    for record in job.records:
        if record is baseline:
            recommended = judge(record, history(record), controls=controls_of(job))
        elif baseline is None and job.scaling is None:
            judge(record, history(record), job.swept)
        else:
            judge_throughput(record, history(record))
            record.verdict = None
            if baseline is not None and record.throughput is not None and record.role in CONTROL_ROLES:
                record.throughput = estimate_control_run(without_disturbed(record).rounds)
    if job.diagnosis:
        judge_remedies(job, job.diagnosis, recommended)
    if runs := scaling_runs(job):
        judge_scaling(job, runs)


def judge_remedies(job: Job, diagnosis: Diagnosis, recommended: Sequence[AnyRemedy] | None = None) -> None:
    """Fill in the remedies of ``job``, whose verdict is known, and what to use in the end. ``recommended`` is None if it is not known."""
    baseline = baseline_of(job)
    diagnosis.remedies, diagnosis.advice = [], None
    if baseline is not None and baseline.verdict and baseline.rounds:
        inputs, builder = diagnosed_input(job)
        found = recommend(builder, inputs, baseline.verdict) if recommended is None else recommended
        diagnosis.remedies = judged_remedies(job, found, inputs, builder)
        diagnosis.advice = advise(job)


def judge(record: Record, history: Sequence[float] = (), swept: Sequence[str] = (), controls: ControlRuns = NO_CONTROLS) -> list[AnyRemedy]:
    """Fill in ``checks``, ``throughput`` and ``verdict`` of ``record`` from its rounds, whatever its status; return the remedies.

    ``history`` holds the images/s of earlier runs, ``swept`` the fields that the job compares, and ``controls`` the control runs.
    """
    judge_throughput(record, history)
    has_error = any(check.severity == "error" for check in record.checks)
    record.verdict, recommended = (None, []) if has_error or record.role == ALLREDUCE_ONLY else find_verdict(record, swept, controls)
    return recommended


def find_verdict(record: Record, swept: Sequence[str] = (), controls: ControlRuns = NO_CONTROLS) -> tuple[Verdict | None, list[AnyRemedy]]:
    """The verdict on ``record`` with its next step, None without rounds; and the remedies that the step was chosen from."""
    summary = summarize(record)
    found = find_bottleneck(record, summary, controls)
    if found is None:
        return None, []
    builder = CommandBuilder(record, "diagnose" if controls.diagnosis else "run", swept)
    recommended, step = recommended_and_next(builder, AnalysisInput(record, summary, controls), found)
    return replace(found, next=step), recommended


def judge_throughput(record: Record, history: Sequence[float] = ()) -> None:
    """Fill in ``checks`` and ``throughput`` of ``record``.

    A check of severity "error" leaves the figure None, and changes the status "ok" to "invalid". ``history`` holds the images/s of earlier
    runs of the same Config on the same machine.
    """
    record.checks = [] if record.role == ALLREDUCE_ONLY else run_checks(record)  # an all-reduce benchmark trains nothing
    has_error = any(check.severity == "error" for check in record.checks)
    if has_error and record.status == "ok":
        record.status = "invalid"
    record.throughput = (
        None if has_error or not record.rounds else estimate_throughput([timed.samples_per_s for timed in record.rounds], history)
    )


def previous_figures(record: Record, previous: Sequence[Record]) -> list[float]:
    """The images/s of the valid ones among ``previous`` with the same Config, hosts, devices and software as ``record``.

    ``record`` itself is excluded.
    """
    return [other.throughput.samples_per_s for other in previous if other.throughput and _is_repeat(other, record)]


def _is_repeat(other: Record, record: Record) -> bool:
    """Whether ``other`` is another valid launch of the same Config on the same machine.

    Records with the same process ids are of one launch. A merged record is of several, and does not count; nor does a watched script, which
    may have been edited since.
    """
    if (
        other.status != "ok"
        or other.script is not None
        or any(check.severity != "info" for check in other.checks)
        or (other.throughput and other.throughput.launch_samples_per_s)
    ):
        return False
    environment, other_environment = record.environment, other.environment
    same_machine = [(place.host, place.device_name) for place in other_environment.placements] == [
        (place.host, place.device_name) for place in environment.placements
    ]
    same_launch = [(place.host, place.pid) for place in other_environment.placements] == [
        (place.host, place.pid) for place in environment.placements
    ]
    same_config = measurement_config(other.config) == measurement_config(record.config) and other.role == record.role
    return same_config and other_environment.software == environment.software and same_machine and not same_launch
