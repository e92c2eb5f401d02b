"""Synthetic jobs of ``ab``, one for each outcome."""

from __future__ import annotations

from typing import Any

from script_diagnoses import rates, window

from ddpbench.analysis.judge import judge_all
from ddpbench.analysis.proof import judged
from ddpbench.record.proof import Proof, SideLaunch
from ddpbench.record.record import Job


def proof_job(plain: tuple[float, ...], changed: tuple[float, ...], compute_only: bool = False, **changes: Any) -> Job:
    """Of launches with these samples/s; ``changes`` are those of the launches with the change."""
    usual: dict[str, Any] = {"samples_per_step": 64.0, "batches": 200, "updates": 200, "first_step_s": 0.412}
    launches = [SideLaunch(is_changed=False, samples_per_s=each, **usual) for each in plain]
    launches += [SideLaunch(is_changed=True, samples_per_s=each, **{**usual, **changes}) for each in changed]
    job = Job(started="2026-11-30T12:00:00+00:00", command=["ddpbench", "ab"], kind="ab", records=[window(rates(plain[0]))])
    judge_all(job)
    job.proof = judged(Proof(diff="faster.diff", steps=200, compute_only=compute_only, launches=launches))
    return job


PROOFS = {
    "ab-proved": lambda: proof_job((1000.0, 1010.0), (1940.0, 1960.0), compute_only=True, peak_bytes=12 * 2**30),
    "ab-refuted": lambda: proof_job((1000.0, 1010.0), (1940.0, 1960.0), has_finite_loss=False, updates=150),
    "ab-cannot-tell": lambda: proof_job((1000.0, 1200.0), (1300.0, 1100.0)),
    "ab-not-decided": lambda: proof_job((1000.0,), ()),
}
