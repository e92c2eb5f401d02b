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
    observed, spec = record.observed_precision, PRECISIONS.get(record.config.precision)
    if observed is None or spec is None:
        return None
    storage_dtypes = {spec.model_dtype, *observed.batch_norm_dtypes}
    scales, static = _wrong_loss_scales(record, observed, spec)
    tf32 = spec.tf32 is not None and (observed.tf32_matmul, observed.tf32_cudnn) != (spec.tf32, spec.tf32)
    found = PrecisionMismatch(
        layer_dtypes=_others([dtype for dtype in (observed.first_layer_dtype, observed.last_layer_dtype) if dtype], [spec.layer_dtype]),
        batch_norm_dtypes=_others(observed.batch_norm_dtypes, [spec.batch_norm_dtype]),
        parameter_dtypes=_others(observed.parameter_dtypes, storage_dtypes),
        gradient_dtypes=_others(observed.gradient_dtypes, storage_dtypes),
        master_weights=_if_other(bool(observed.master_weight_dtype), spec.master_weights),
        loss_scaler=_if_other(observed.loss_scale is not None, spec.scales_loss(record.config.static_loss_scale)),
        loss_scales=scales,
        requested_loss_scale=static if scales else None,
        tf32_matmul=observed.tf32_matmul if tf32 else None,
        tf32_cudnn=observed.tf32_cudnn if tf32 else None,
    )
    return None if found == PrecisionMismatch() else found


def check_loss_scale_used(record: Record) -> UnusedLossScale | None:
    """A note, since scripts pass the same flags for every precision: a static loss scale that is not used does no harm."""
    scale, spec = record.config.static_loss_scale, PRECISIONS.get(record.config.precision)
    if scale is None or scale == 1 or spec is None or spec.static_loss_scale(scale) is not None:  # a scale of 1 changes nothing
        return None
    return UnusedLossScale(loss_scale=scale)


def _wrong_loss_scales(record: Record, observed: ObservedPrecision, spec: PrecisionSpec) -> tuple[list[float], float | None]:
    """The observed loss scales other than the static one, and that one; empty if there is no scaler or no static scale."""
    static = spec.static_loss_scale(record.config.static_loss_scale)
    if static is None or observed.loss_scale is None:
        return [], static
    scales = [observed.loss_scale, *(trace.numerics.loss_scale for trace in record.traces)]
    return _others([scale for scale in scales if scale is not None], [static]), static


def _others(observed: Sequence[Value], expected: Iterable[Value]) -> list[Value]:
    """The values of ``observed`` that are not in ``expected``, each once."""
    return [value for value in dict.fromkeys(observed) if value not in expected]


def _if_other(observed: bool, expected: bool) -> bool | None:
    return None if observed == expected else observed
