"""Checks every claim of a published experiment against a job that repeats it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddpbench.published.claims import disc, imagenet, t4, vgg, wrn
from ddpbench.published.claims.answer import ClaimCheck, ClaimCheckFn
from ddpbench.published.effect_size import PublishedRatio
from ddpbench.published.publications import load_publication
from ddpbench.published.sweep_points import is_quick
from ddpbench.record.record import Job


@dataclass(frozen=True)
class ClaimResult:
    """A published claim and what this job shows. ``holds`` is None if unknown.

    ``explanation`` gives the reason in words. ``far_ratios`` are, for a claim that holds, the ratios that show the published effect by a
    factor far from the published one.
    """

    claim: str
    ratios: Sequence[PublishedRatio]
    explanation: str
    holds: bool | None
    far_ratios: Sequence[PublishedRatio] = ()


CLAIM_CHECKS: Mapping[str, Sequence[ClaimCheckFn]] = {
    "t4-tensor-cores": (
        t4.gemm_is_faster,
        t4.gemm_uses_more_memory,
        t4.mnist_takes_the_same_time,
        t4.mnist_takes_less_memory,
        t4.another_bottleneck,
    ),
    "wrn-cifar10-apex-levels": (wrn.levels_on_t4, wrn.levels_on_p100, wrn.o3_does_not_converge, wrn.two_cores_hide_the_level),
    "vgg16-cifar10-batch-sweep": (vgg.half_pays_on_v100, vgg.half_does_not_pay_before),
    "disc-mlp-cpu-vs-gpu": (disc.gpu_wins_from_ten_layers, disc.trains_without_error),
    "imagenet-resnet-slurm-vs-container": (
        imagenet.half_doubles_the_speed,
        imagenet.environments_differ,
        imagenet.only_big_networks_gain,
    ),
}
"""The check of every claim, in the order of the publication."""


def check_claims(name: str, job: Job) -> list[ClaimResult]:
    """Check every claim of the published experiment ``name``, in its order.

    All are unknown for a quick job, which shrinks the protocol. Raises UsageError if there is no experiment ``name``.
    """
    publication = load_publication(name)
    answers = [check(publication, job) for check in CLAIM_CHECKS[publication.id]]
    return [
        _claim_result(claim.statement, answer, settles=not is_quick(job)) for claim, answer in zip(publication.claims, answers, strict=True)
    ]


def _claim_result(claim: str, check: ClaimCheck, settles: bool) -> ClaimResult:
    far = [each for each in check.ratios if each.agrees and each.is_far] if settles and check.holds else []
    return ClaimResult(claim, check.ratios, check.explanation, check.holds if settles else None, far)
