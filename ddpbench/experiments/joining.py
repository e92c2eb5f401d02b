"""One Trace of the legs of a round, as if they had been measured in one go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any

import msgspec

from ddpbench.record.loading import CoreUse, Loading, by_stage
from ddpbench.record.trace import Health, Memory, Numerics, Trace


def joined(legs: Sequence[Trace]) -> Trace:
    """The round of one rank that ``legs`` make, in their order."""
    loadings = [leg.loading for leg in legs if leg.loading]
    cores = [leg.cores for leg in legs if leg.cores]
    return Trace(
        rank=legs[0].rank,
        steps=sum(leg.steps for leg in legs),
        images=sum(leg.images for leg in legs),
        wall_s=sum(leg.wall_s for leg in legs),
        phases_ms={phase: list(chain.from_iterable(leg.phases_ms[phase] for leg in legs)) for phase in legs[0].phases_ms},
        host_data_ms=list(chain.from_iterable(leg.host_data_ms for leg in legs)),
        lead_ms=list(chain.from_iterable(leg.lead_ms for leg in legs)),
        issuing_ms=list(chain.from_iterable(leg.issuing_ms for leg in legs)),
        cpu_s=_total(leg.cpu_s for leg in legs),
        thread_cpu_s=_total(leg.thread_cpu_s for leg in legs),
        memory=_memory([leg.memory for leg in legs]),
        numerics=_numerics(legs),
        health=_health([leg.health for leg in legs if leg.health]),
        loading=_loading(loadings, [sum(leg.host_data_ms) for leg in legs if leg.loading]) if len(loadings) == len(legs) else None,
        cores=_cores(cores) if len(cores) == len(legs) else None,
    )


def _memory(legs: Sequence[Memory]) -> Memory:
    peaks = {name: _most(getattr(leg, name) for leg in legs) for name in Memory.__struct_fields__}
    return Memory(**{**peaks, "allocator_retries": sum(leg.allocator_retries for leg in legs)})


def _numerics(legs: Sequence[Trace]) -> Numerics:
    """Steps are counted from the beginning of the round."""
    numerics, begins = [leg.numerics for leg in legs], accumulate((leg.steps for leg in legs), initial=0)
    first, last, dead = numerics[0], numerics[-1], [each.nonfinite_step for each in numerics]
    offsets = list(begins)
    return msgspec.structs.replace(
        last,
        first_loss=first.first_loss,
        mean_loss=_mean((each.mean_loss, leg.steps) for each, leg in zip(numerics, legs, strict=True)),
        nonfinite_step=next((begin + step for begin, step in zip(offsets, dead, strict=False) if step is not None), None),
        skipped_steps=[begin + step for begin, each in zip(offsets, numerics, strict=False) for step in each.skipped_steps],
        parameters_before=first.parameters_before,
    )


def _health(legs: Sequence[Health]) -> Health | None:
    """Means are over all samples; a leg too short for one tells nothing of them."""
    if not legs:
        return None
    sampled = [leg for leg in legs if leg.samples]
    return Health(
        sm_mhz=_mean((leg.sm_mhz, leg.samples) for leg in sampled),
        sm_mhz_min=min((leg.sm_mhz_min for leg in sampled if leg.sm_mhz_min is not None), default=None),
        watts=_mean((leg.watts, leg.samples) for leg in sampled),
        celsius=_most(leg.celsius for leg in sampled),
        energy_j=_total(leg.energy_j for leg in legs),
        throttle_reasons=sorted({reason for leg in legs for reason in leg.throttle_reasons}),
        other_processes=_most(leg.other_processes for leg in legs),
        samples=sum(leg.samples for leg in legs),
    )


def _loading(legs: Sequence[Loading], waited_ms: Sequence[float]) -> Loading:
    """``waited_ms`` is how long the trainer waited in each leg: what is told of waits counts as much."""
    waits = list(zip(legs, waited_ms, strict=True))
    return Loading(
        images=sum(leg.images for leg in legs),
        cpu_s=by_stage(leg.cpu_s for leg in legs),
        wall_s=by_stage(leg.wall_s for leg in legs),
        queued_s=_total(leg.queued_s for leg in legs),
        batch_ms=list(chain.from_iterable(leg.batch_ms for leg in legs)),
        hand_over_ms=_mean((leg.hand_over_ms, waited) for leg, waited in waits if leg.hand_over_ms is not None),
        head_of_line=_mean((leg.head_of_line, waited) for leg, waited in waits if leg.head_of_line is not None),
        left_out=list(chain.from_iterable(leg.left_out for leg in legs)),
    )


def _cores(legs: Sequence[CoreUse]) -> CoreUse:
    return CoreUse(
        cores=max(leg.cores for leg in legs),
        busy_s=sum(leg.busy_s for leg in legs),
        wall_s=sum(leg.wall_s for leg in legs),
        throttled_s=_total(leg.throttled_s for leg in legs),
        pressure=_mean((leg.pressure, leg.wall_s) for leg in legs),
    )


def _total(values: Iterable[float | None]) -> float | None:
    """Their sum; None where one is not known."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _mean(weighted: Iterable[tuple[float | None, float]]) -> float | None:
    """The mean of (value, weight); None where one is not known, or there is none."""
    pairs = list(weighted)
    weight = sum(each for _, each in pairs)
    if not weight or any(value is None for value, _ in pairs):
        return None
    return sum(value * each for value, each in pairs if value is not None) / weight


def _most(values: Iterable[Any]) -> Any:
    """The greatest of those that are known; None where none is."""
    return max((value for value in values if value is not None), default=None)
