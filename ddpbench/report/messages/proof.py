"""Sentences about launches of a script with and without a change of its code."""

from __future__ import annotations

from collections.abc import Mapping

from ddpbench.analysis.proof import longer_first_step
from ddpbench.record.proof import Proof, ProofCode, ProofProblem
from ddpbench.report.format import format_rounded
from ddpbench.report.messages.predictions import gain_text

HEADINGS: Mapping[ProofCode | None, str] = {
    "proved": "PROVED",
    "slower": "SLOWER",
    "cannot-tell": "CANNOT TELL",
    "refuted": "REFUTED",
    None: "NOT DECIDED",
}

PROBLEMS: Mapping[ProofProblem, str] = {
    "loss-not-finite": "its loss is not finite",
    "skipped-updates": "it skips more updates",
    "other-batches": "its steps have another number of samples",
}


def proof_claim(proof: Proof) -> str:
    """What the launches show: ``the script trains 1.94 times as fast``."""
    if proof.gain is None:
        return "too few launches"
    verb = "computes" if proof.compute_only else "trains"
    figure = format_rounded(proof.gain.center, 3)
    if proof.code == "cannot-tell":
        return f"the launches vary by more than the change makes: {figure} times as fast"
    problems = " and ".join(PROBLEMS[each] for each in proof.problems)
    return f"with the change the script {verb} {figure} times as fast{f', but {problems}' if problems else ''}"


def proof_gain_text(proof: Proof) -> str:
    """The interval of the gain, and where it comes from; empty without one."""
    if proof.gain is None:
        return ""
    alone = ", computing alone, on batches that are ready" if proof.compute_only else ""
    launches = f"{proof.gain.pairs} launches of each side, {proof.steps} batches each"
    return f"{gain_text(proof.gain.center, proof.gain.low, proof.gain.high)}, 95%, from {launches}{alone}"


def first_step_text(proof: Proof) -> str:
    """How much longer the first step takes, and when that has paid off; empty if it does not."""
    found = longer_first_step(proof)
    if found is None:
        return ""
    return f"takes {format_rounded(found.extra_s, 2)} s longer, which pays off after {format_rounded(found.payback_s, 2)} s of training"


def unchanged_text(proof: Proof) -> str:
    """What the launches have in common; empty if something differs."""
    return "" if proof.problems or proof.code is None else "finite losses, no more skipped updates, as many samples per step as before"
