"""The summary of a job for programs, from what its record holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ddpbench.analysis.compare import compare
from ddpbench.analysis.controls import baseline_of
from ddpbench.analysis.cpu_demand import cpu_demand
from ddpbench.analysis.fastest import find_best_arm
from ddpbench.analysis.summary import Summary, summarize
from ddpbench.analysis.throughput import throughput_interval
from ddpbench.record.flags import flag_fields
from ddpbench.record.job_summary import (
    SUMMARY_VERSION,
    Estimate,
    JobSummary,
    RemedyStatus,
    SummaryAdvice,
    SummaryArm,
    SummaryCheck,
    SummaryFigure,
    SummaryMachine,
    SummaryProof,
    SummaryRemedy,
    SummaryTraining,
    SummaryVerdict,
)
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.prediction import Scenario
from ddpbench.record.proof import Proof
from ddpbench.record.record import Job, Record
from ddpbench.record.remedy import Advice, MeasuredGain, Remedy, ScreenedRemedy, Worth
from ddpbench.record.roles import RUN
from ddpbench.record.screening import CHANGES_NUMBERS
from ddpbench.record.script_diff import ScriptDiff
from ddpbench.record.verdict import NextStep, RunCommand, ScalingVerdict, Verdict
from ddpbench.report.messages.arms import arm_label, arm_name
from ddpbench.report.messages.bottlenecks import Explanation
from ddpbench.report.messages.checks import check_text
from ddpbench.report.messages.predictions import missing_measurement_text
from ddpbench.report.messages.scaling import explain_loss
from ddpbench.report.messages.screening import obstacle_text
from ddpbench.report.messages.verdict import explain_verdict, verdict_sentence
from ddpbench.report.pages.scaling import scaling_points_by_role

MAX_REMEDIES, MAX_CHECKS, DIGITS = 6, 8, 6
"""At most so many of each, and digits of a number: a summary stays small."""


def summarize_job(job: Job, path: Path | None = None, price: float | None = None) -> JobSummary:
    """The summary of ``job``, whose record is at ``path``; with ``price`` per device-hour, the advice has the money that it saves."""
    record = baseline_of(job) or max(job.records, key=lambda each: each.world_size)
    scaling = job.scaling.verdict if job.scaling else None
    verdict = scaling or record.verdict
    has_arms = len(job.records) > 1 and job.diagnosis is None
    advice = job.diagnosis.advice if job.diagnosis else None
    has_next = (advice is None or advice.is_undecided) and not has_arms and job.proof is None
    summary = summarize(record)
    best = find_best_arm(job.records) if has_arms and job.scaling is None else None
    found = JobSummary(
        version=SUMMARY_VERSION,
        ddpbench=record.environment.software.ddpbench,
        job=job.kind,
        started=job.started,
        status=_status(job),
        record=str(path) if path else "",
        message=next((each.fault.message for each in job.records if each.fault), ""),
        command=job.command if not job.redacted else [],
        machine=_machine(record),
        training=_training(record),
        figure=None if has_arms else _figure(record, summary),
        step_shares=_step_shares(summary),
        verdict=_verdict(verdict, job, record) if verdict and not (has_arms and job.scaling is None) else None,
        remedies=[_remedy(each) for each in ((job.diagnosis and job.diagnosis.remedies) or [])[:MAX_REMEDIES]],
        advice=_advice(advice, job.diagnosis.diff or ScriptDiff(), price) if advice and job.diagnosis else None,
        next=_change(verdict.next) if verdict and verdict.next and has_next else {},
        fastest=arm_name(best.best.config, job.swept) if best and best.is_clear else "",
        proof=_proof(job.proof) if job.proof else None,
        arms=[*_arms(job)] if has_arms else [],
        distrust=_checks(job.records if has_arms else [record]),
    )
    return _rounded(found)


def summary_json(summaries: Sequence[JobSummary]) -> str:
    """One summary as an object, several as one object that lists them."""
    if len(summaries) == 1:
        return msgspec.json.encode(summaries[0]).decode()
    return msgspec.json.encode({"summaries": summaries}).decode()


def _status(job: Job) -> str:
    return next((each.status for each in job.records if each.status != "ok"), "ok")


def _machine(record: Record) -> SummaryMachine:
    environment = record.environment
    return SummaryMachine(
        device=environment.placements[0].device_name,
        device_type=environment.device_type,
        ranks=record.world_size,
        hosts=list(dict.fromkeys(place.host for place in environment.placements)),
        usable_cores=cpu_demand(record).usable_cores,
        torch=environment.software.torch,
    )


def _training(record: Record) -> SummaryTraining:
    config, script = record.config, record.script
    return SummaryTraining(
        workload=config.workload,
        is_script=script is not None,
        model=script.model if script else "",
        precision=config.precision,
        batch_size=None if script and script.step == "update" else config.batch_size,
        loader=config.loader,
        workers=None if config.loader == SYNTHETIC else record.workers,
    )


def _figure(record: Record, summary: Summary) -> SummaryFigure | None:
    within = throughput_interval(record)
    if record.throughput is None or within is None:
        return None
    return SummaryFigure(
        samples_per_s=record.throughput.samples_per_s,
        samples_per_s_low=within.low,
        samples_per_s_high=within.high,
        confidence=within.confidence,
        rounds=len(record.rounds),
        step_ms=summary.step_ms,
        sample=record.sample_unit,
    )


def _step_shares(summary: Summary) -> dict[str, float]:
    """The phases as fractions of the step; waits for the data of other ranks are taken out of the phases that contain them."""
    if summary.step_ms is None:
        return {}
    phases, peers = dict(summary.phases_ms), summary.peer_data_wait_ms or 0.0
    sync = phases.pop("sync", 0.0) + phases.pop("broadcast", 0.0) - peers
    return {name: span / summary.step_ms for name, span in {**phases, "peer_data": peers, "exposed_sync": sync}.items()}


def _verdict(verdict: Verdict | ScalingVerdict, job: Job, record: Record) -> SummaryVerdict:
    explanation: Explanation = explain_verdict(verdict, record) if isinstance(verdict, Verdict) else explain_loss(verdict.evidence, job)
    found = SummaryVerdict(
        kind=verdict.kind,
        certainty="inconclusive" if verdict.kind == "inconclusive" else "probable" if verdict.is_probable else "certain",
        share=verdict.repeatability,
        runner_up=verdict.runner_up,
        rank=verdict.rank,
        text=verdict_sentence(verdict, explanation),
        figures=_numbers(verdict.evidence),
    )
    if isinstance(verdict, ScalingVerdict) or verdict.cause_evidence is None:
        return found
    cause = {"cause": verdict.cause, "cause_share": verdict.cause_repeatability, "cause_figures": _numbers(verdict.cause_evidence)}
    return msgspec.structs.replace(found, **cause)


def _numbers(evidence: msgspec.Struct) -> dict[str, Any]:
    """The fields of ``evidence`` that are set."""
    values: dict[str, Any] = msgspec.to_builtins(evidence, str_keys=True)
    return {name: value for name, value in values.items() if value is not None}


def _remedy(remedy: Remedy) -> SummaryRemedy:
    prediction, measured = remedy.prediction, remedy.measured
    is_known = prediction is not None and prediction.gain and prediction.low and prediction.high and not prediction.after_trial
    return SummaryRemedy(
        code=remedy.code,
        status=_remedy_status(remedy),
        change=_change(remedy.change) if remedy.change else _settings(remedy.scenario),
        command=remedy.command,
        predicted=Estimate(center=prediction.gain, low=prediction.low, high=prediction.high) if is_known else None,  # type: ignore[arg-type,union-attr]
        measured=_estimate(measured) if measured else None,
        reason=remedy.failure or _untried_reason(remedy),
        on_top_of=remedy.on_top_of if isinstance(remedy, ScreenedRemedy) else [],
        changes_numbers=remedy.code in CHANGES_NUMBERS,
    )


def _untried_reason(remedy: Remedy) -> str:
    """Why a remedy that was not tried was not, or has no prediction; empty if it only came after others, or after the time."""
    missing = remedy.prediction.missing_measurement if remedy.prediction else None
    if remedy.measured:
        return ""
    if isinstance(remedy, ScreenedRemedy):
        return obstacle_text(remedy)
    if remedy.reads_other_samples:
        return "its workers may read other samples"
    return missing_measurement_text(missing) if missing else ""


def _remedy_status(remedy: Remedy) -> RemedyStatus:
    if remedy.failure:
        return "failed"
    if remedy.measured is None:
        return "not-tried" if remedy.can_be_tried else "cannot-be-tried"
    if isinstance(remedy, ScreenedRemedy):
        return "screened" if remedy.is_kept else "screened-no-gain"
    if remedy.is_wide or not remedy.measured.has_interval:
        return "too-wide"
    if remedy.is_inside is None or (remedy.prediction and remedy.prediction.after_trial):
        return "measured"
    return "as-predicted" if remedy.is_inside else "not-as-predicted"


def _settings(scenario: Scenario | None) -> dict[str, Any]:
    """The flags of ``scenario`` by their names."""
    fields = flag_fields(Scenario) if scenario else ()
    return {field.option: value for field in fields if (value := getattr(scenario, field.name)) is not None}


def _change(step: NextStep) -> dict[str, Any]:
    """What to do, without what stays."""
    values: dict[str, Any] = msgspec.to_builtins(step)
    return {name: value for name, value in values.items() if value not in (None, [], False)}


def _advice(advice: Advice, diff: ScriptDiff, price: float | None) -> SummaryAdvice:
    is_command, worth = isinstance(advice.change, RunCommand), advice.worth
    return SummaryAdvice(
        code=advice.code,
        change=_settings(advice.scenario) if is_command or advice.change is None else _change(advice.change),
        command=advice.change.command if isinstance(advice.change, RunCommand) else "",
        gained_samples_per_s=_gained(worth) if worth else None,
        computing=_change(advice.computing) if advice.computing else {},
        computing_gain=_estimate(advice.computing_gain) if advice.computing_gain else None,
        saved_device_hours_per_day=worth.saved_hours_per_day if worth else None,
        device_hours_per_day=worth.hours_per_day if worth else None,
        saved_money_per_day=worth.saved_hours_per_day * price if worth and price is not None else None,
        diff_file=diff.file if diff.text else "",
        script_arguments=diff.arguments,
        no_diff=None if diff.missing else diff.obstacle,
        proof_command=diff.proof,
    )


def _estimate(gain: MeasuredGain) -> Estimate:
    return Estimate(center=gain.center, low=gain.low, high=gain.high)


def _gained(worth: Worth) -> Estimate:
    return Estimate(center=worth.samples_per_s, low=worth.samples_per_s_low, high=worth.samples_per_s_high)


def _arms(job: Job) -> Iterator[SummaryArm]:
    points = scaling_points_by_role(job)
    for row in compare(job.records):
        record, speedup, point = row.record, row.speedup, points.get(row.record.role)
        efficiency = point.efficiency if point else None
        yield SummaryArm(
            name=arm_label(record, job) or record.config.workload,
            status=record.status,
            samples_per_s=row.samples_per_s,
            samples_per_s_low=row.interval.low if row.interval else None,
            samples_per_s_high=row.interval.high if row.interval else None,
            speedup=Estimate(center=speedup.center, low=speedup.low, high=speedup.high) if speedup and record.role == RUN else None,
            efficiency=Estimate(center=efficiency.center, low=efficiency.low, high=efficiency.high) if efficiency else None,
            kind=record.verdict.kind if record.verdict else "",
        )


def _proof(proof: Proof) -> SummaryProof:
    return SummaryProof(
        code=proof.code,
        gain=_estimate(proof.gain) if proof.gain else None,
        problems=proof.problems,
        launches=len(proof.launches),
        steps=proof.steps,
        compute_only=proof.compute_only,
    )


def _checks(records: Sequence[Record]) -> list[SummaryCheck]:
    """The checks that fired, each once, errors first."""
    found: dict[str, SummaryCheck] = {}
    for record in records:
        for check in record.checks:
            found.setdefault(check.code, SummaryCheck(code=check.code, severity=check.severity, text=check_text(check, record)))
    return sorted(found.values(), key=lambda each: ("error", "warning", "info").index(each.severity))[:MAX_CHECKS]


def _rounded(summary: JobSummary) -> JobSummary:
    """``summary`` with numbers of at most ``DIGITS`` significant digits."""

    def shorter(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.{DIGITS}g}")
        if isinstance(value, dict):
            return {name: shorter(each) for name, each in value.items()}
        return [shorter(each) for each in value] if isinstance(value, list) else value

    return msgspec.convert(shorter(msgspec.to_builtins(summary)), JobSummary)
