"""What helps a run that its loader holds back: which offers answer which verdict, and in what order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ddpbench.analysis.command import Rerun
from ddpbench.analysis.inputs import Case
from ddpbench.analysis.pipeline.model import supply
from ddpbench.analysis.remedies.rules import (
    WORTH_IT,
    Cure,
    FedRun,
    Offer,
    dali_cpu,
    dali_gpu,
    data_in_memory,
    fewer_workers,
    in_the_trainer,
    less_on_the_decoder,
    more_cores,
    more_workers,
    pinned,
    prefetch,
    tensor,
    torch_uint8,
    without_loader,
    workers_ahead,
    workers_that_stay,
)
from ddpbench.analysis.whatif.query import gains
from ddpbench.record.findings import Verdict

GENERAL: tuple[Offer, ...] = (
    tensor,
    less_on_the_decoder,
    workers_ahead,
    more_workers,
    workers_that_stay,
    dali_gpu,
    torch_uint8,
    dali_cpu,
    more_cores,
)
"""What may help whatever the cause."""

SAME_GAIN = 0.98
"""A predicted gain that reaches this fraction of another is the same."""

NEVER_LEFT_OUT: tuple[Offer, ...] = (fewer_workers,)
"""Whatever is predicted: what it costs to take turns is not known before there are fewer who do."""

OF_CAUSE: dict[str, tuple[Offer, ...]] = {
    "too-few-workers": (more_workers,),
    "oversubscribed": (fewer_workers,),
    "storage": (data_in_memory, more_workers, prefetch),
    "hand-over": (tensor, torch_uint8, dali_cpu),
    "head-of-line": (prefetch, more_workers),
}

OF_KIND: dict[str, tuple[Offer, ...]] = {
    "loader-steals-cpu": (tensor, fewer_workers, in_the_trainer, dali_gpu, torch_uint8, more_cores),
    "loader-steals-gpu": (less_on_the_decoder, dali_cpu),
    "host-to-device-bound": (pinned, torch_uint8, without_loader),
}


def loader_cures(run: Rerun, case: Case, found: Verdict) -> list[Cure]:
    """Those that apply: first for the verdict's own cause, then the others by their predicted gain, the greatest first.

    Where that is below ``WORTH_IT`` a cure is left out, unless in ``NEVER_LEFT_OUT``.
    """
    fed, weigh = FedRun(run, case, supply(case)), gains(case, run)

    def worth_it(offers: Iterable[Offer]) -> list[Cure]:
        applying = ((offer, cure) for offer in offers if (cure := offer(fed)))
        weighed = ((offer, replace(cure, gain=weigh(cure.change)) if cure.change else cure) for offer, cure in applying)
        return [cure for offer, cure in weighed if cure.gain is None or cure.gain >= WORTH_IT or offer in NEVER_LEFT_OUT]

    if found.kind != "data-bound":
        return _undominated(worth_it(OF_KIND[found.kind]))
    named = OF_CAUSE.get(found.cause, ())
    others = worth_it(offer for offer in GENERAL if offer not in named)
    return _undominated([*worth_it(named), *sorted(others, key=lambda cure: -(cure.gain or 0.0))])


def _undominated(cures: Sequence[Cure]) -> list[Cure]:
    """Without those that ask for more cores than another of the same gain."""
    return [cure for cure in cures if not any(_dominates(other, cure) for other in cures)]


def _dominates(other: Cure, cure: Cure) -> bool:
    if not (other.change and cure.change and other.gain and cure.gain and cure.change.cores_per_gpu):
        return False
    return other.gain >= SAME_GAIN * cure.gain and (other.change.cores_per_gpu or 0.0) < cure.change.cores_per_gpu


def first_command(cures: Iterable[Cure]) -> str:
    return next((cure.command for cure in cures if cure.command), "")
