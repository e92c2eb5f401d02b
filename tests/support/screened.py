"""Synthetic diagnoses of a script in which cures of computing were screened, with a known gain of each."""

from __future__ import annotations

from collections.abc import Sequence

from script_diagnoses import rates, script_diagnosis

from ddpbench.analysis.judge import judge_all
from ddpbench.record.prediction import Prediction, Scenario
from ddpbench.record.record import Job
from ddpbench.record.screening import CureCode, Obstacle, ScreenedCure, Screening

NOISE = (1.0, 1.004, 0.997, 1.002, 0.999, 1.003)
STRONG_NOISE = (1.0, 1.2, 0.85, 1.1, 0.9, 1.05)


def cure(code: CureCode, gain: float = 1.0, on_top_of: Sequence[CureCode] = (), noise: Sequence[float] = NOISE) -> ScreenedCure:
    return ScreenedCure(
        code=code, on_top_of=list(on_top_of), without_s=[0.1] * 6, with_s=[0.1 / gain * each for each in noise], first_use_s=1.5
    )


def left_out(code: CureCode, obstacle: Obstacle) -> ScreenedCure:
    return ScreenedCure(code=code, obstacle=obstacle)


def screened_diagnosis(*cures: ScreenedCure, data_bound: bool = False) -> Job:
    """A judged diagnosis in which these cures were screened."""
    more = Scenario(workers=6)
    job = (
        script_diagnosis(
            rates(1000),
            rates(2900),
            wait=0.65,
            trials={more: rates(2000)},
            predictions=[Prediction(scenario=more, gain=2.1, low=1.9, high=2.3)],
        )
        if data_bound
        else script_diagnosis(rates(2500), rates(2520), wait=0.005)
    )
    assert job.diagnosis
    job.diagnosis.screening = Screening(cures=list(cures))
    judge_all(job)
    return job


def computing() -> Job:
    """One cure gains much, one may not be tried with it, and one changes numbers and does not work."""
    return screened_diagnosis(
        cure("null"),
        cure("channels-last", 1.94),
        ScreenedCure(code="fused-optimizer", on_top_of=["channels-last"], obstacle="fused-moments"),
        ScreenedCure(code="bf16-autocast", on_top_of=["channels-last"], failure="RuntimeError: expected scalar type Float"),
    )


def without_time() -> Job:
    """As with a short time limit."""
    return screened_diagnosis(
        *(ScreenedCure(code=each, obstacle="no-time", needed_s=34.0) for each in ("null", "channels-last", "bf16-autocast"))
    )


def waiting() -> Job:
    """Its loader comes first."""
    left = ScreenedCure(code="bf16-autocast", obstacle="no-time", needed_s=64.0)
    cures = cure("null"), cure("channels-last", 1.015), cure("fused-optimizer", 1.08), left
    return screened_diagnosis(*cures, data_bound=True)
