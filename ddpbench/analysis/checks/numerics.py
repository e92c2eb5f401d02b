"""Checks of numerics: whether every round trained, alike on all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ddpbench.analysis.run_length import timed_steps
from ddpbench.record.checks import FrozenParameters, NonfiniteLoss, ParamsOutOfSync, SkippedSteps
from ddpbench.record.record import Record
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.trace import Trace

MAX_SKIPPED_FRACTION = 0.01


def check_loss_is_finite(record: Record) -> NonfiniteLoss | None:
    bad = [
        (before + trace.numerics.nonfinite_step, trace.rank)
        for before, trace in _timeline(record)
        if trace.numerics.nonfinite_step is not None
    ]
    if not bad:
        return None
    step, rank = min(bad)
    spec = PRECISIONS.get(record.config.precision)
    return NonfiniteLoss(step=step, rank=rank, computes_in_float16=spec is not None and spec.layer_dtype == "float16")


def check_skipped_steps(record: Record) -> SkippedSteps | None:
    """One skip after a growth of the loss scale is healthy; many, or two in a row, mean that the run hardly trains.

    A training from scratch finds its loss scale by skipping: skips before its first update are not counted.
    """
    is_finding_scale = bool(record.config.fresh) and record.config.static_loss_scale is None
    skipped = sorted({before + step for before, trace in _timeline(record) for step in _skipped(trace, is_finding_scale)})
    if not skipped:
        return None
    timed = timed_steps(record)
    in_a_row = any(after - before == 1 for before, after in pairwise(skipped))
    is_harmful = in_a_row or (len(skipped) > 1 and len(skipped) > MAX_SKIPPED_FRACTION * timed)
    return SkippedSteps(severity="error" if is_harmful else "info", skipped=len(skipped), steps=timed, in_a_row=in_a_row)


def check_parameters_change(record: Record) -> FrozenParameters | None:
    """By the checksums of all parameters; a checksum of 0 was not taken."""
    for timed in record.rounds:
        for trace in timed.traces:
            if trace.numerics.params_checksum_before == trace.numerics.params_checksum_after != 0:
                return FrozenParameters(round_index=timed.index, rank=trace.rank)
    return None


def check_params_in_sync(record: Record) -> ParamsOutOfSync | None:
    out_of_sync = [timed.index for timed in record.rounds if not timed.params_in_sync]
    return ParamsOutOfSync(round_index=out_of_sync[0]) if out_of_sync else None


def _skipped(trace: Trace, is_finding_scale: bool) -> list[int]:
    """The skipped steps of a round; if it starts by finding its loss scale, without those before the first update."""
    steps = trace.numerics.skipped_steps
    return [step for index, step in enumerate(steps) if not (is_finding_scale and step == index)]


def _timeline(record: Record) -> Iterator[tuple[int, Trace]]:
    """Every trace with the number of timed steps before its round."""
    before = 0
    for timed in record.rounds:
        yield from ((before, trace) for trace in timed.traces)
        before += timed.traces[0].steps
