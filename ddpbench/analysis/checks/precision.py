"""Checks of precision: whether the observed one is the requested one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from ddpbench.record.checks import PrecisionMismatch, UnusedLossScale
from ddpbench.record.record import ObservedPrecision, Record
from ddpbench.record.registry import PRECISIONS, PrecisionSpec

Value = TypeVar("Value")


def check_precision(record: Record) -> PrecisionMismatch | None:
    """Compares the observed precision, as far as it was observed, with the requested one."""
    seen, asked = record.observed_precision, PRECISIONS.get(record.config.precision)
    if seen is None or asked is None:
        return None
    held = {asked.model_dtype, *seen.batch_norm_dtypes}
    scales, static = _wrong_loss_scales(record, seen, asked)
    tf32 = asked.tf32 is not None and (seen.tf32_matmul, seen.tf32_cudnn) != (asked.tf32, asked.tf32)
    found = PrecisionMismatch(
        layer_dtypes=_others([dtype for dtype in (seen.first_layer_dtype, seen.last_layer_dtype) if dtype], [asked.layer_dtype]),
        batch_norm_dtypes=_others(seen.batch_norm_dtypes, [asked.batch_norm_dtype]),
        parameter_dtypes=_others(seen.parameter_dtypes, held),
        gradient_dtypes=_others(seen.gradient_dtypes, held),
        master_weights=_if_other(bool(seen.master_weight_dtype), asked.master_weights),
        loss_scaler=_if_other(seen.loss_scale is not None, asked.loss_scaling or static is not None),
        loss_scales=scales,
        requested_loss_scale=static if scales else None,
        tf32_matmul=seen.tf32_matmul if tf32 else None,
        tf32_cudnn=seen.tf32_cudnn if tf32 else None,
    )
    return None if found == PrecisionMismatch() else found


def check_loss_scale_used(record: Record) -> UnusedLossScale | None:
    """A note, since scripts pass the same flags for every precision: a static loss scale that is not used does no harm."""
    scale, asked = record.config.static_loss_scale, PRECISIONS.get(record.config.precision)
    if scale is None or scale == 1 or asked is None or asked.static_loss_scale(scale) is not None:  # a scale of 1 changes nothing
        return None
    return UnusedLossScale(loss_scale=scale)


def _wrong_loss_scales(record: Record, seen: ObservedPrecision, asked: PrecisionSpec) -> tuple[list[float], float | None]:
    """The observed loss scales other than the static one, and that one; empty if there is no scaler or no static scale."""
    static = asked.static_loss_scale(record.config.static_loss_scale)
    if static is None or seen.loss_scale is None:
        return [], static
    scales = [seen.loss_scale, *(trace.numerics.loss_scale for trace in record.traces)]
    return _others([scale for scale in scales if scale is not None], [static]), static


def _others(seen: Sequence[Value], right: Iterable[Value]) -> list[Value]:
    """The values of ``seen`` that are not in ``right``, each once."""
    return [value for value in dict.fromkeys(seen) if value not in right]


def _if_other(seen: bool, right: bool) -> bool | None:
    return None if seen == right else seen
