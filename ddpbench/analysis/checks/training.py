"""Checks of what is trained: its samples, its precision, and whether losses and parameters are sound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import TypeVar

from ddpbench.analysis.run_length import timed_steps
from ddpbench.record.checks import (
    FilesSkipped,
    FrozenParameters,
    NonfiniteLoss,
    NotValidated,
    ParamsOutOfSync,
    PrecisionMismatch,
    RepeatedSamples,
    RereadFiles,
    SharedHandles,
    SkippedSteps,
    UnusedLossScale,
)
from ddpbench.record.record import ObservedPrecision, Record
from ddpbench.record.registry import PRECISIONS, PrecisionSpec
from ddpbench.record.trace import Trace


def check_reread_files(record: Record) -> RereadFiles | None:
    return RereadFiles() if record.data and record.data.reread else None


def check_skipped_files(record: Record) -> FilesSkipped | None:
    skipped = (trace.loader_stats.skipped_files for trace in record.traces if trace.loader_stats)
    files = len(set(chain.from_iterable(skipped)))
    return FilesSkipped(files=files) if files else None


def check_shared_handles(record: Record) -> SharedHandles | None:
    """Of two or more workers: one alone reads what it has sought. A memory map has no position."""
    handles = [each for each in record.script.shared_handles if each.kind != "memory-map"] if record.script else []
    return SharedHandles(workers=record.workers, handles=handles) if handles and record.workers > 1 else None


def check_repeated_samples(record: Record) -> RepeatedSamples | None:
    compared = record.script.sample_comparison if record.script else None
    if compared is None or not compared.repeats_samples or record.workers <= 1:
        return None
    return RepeatedSamples(workers=record.workers)


def check_validation(record: Record) -> NotValidated | None:
    """Only if accuracy was requested, not if it is a by-product of fresh rounds."""
    requested = record.requested
    if not (requested and (requested.validate or requested.epochs)):
        return None
    validated = any(trace.numerics.accuracy is not None for trace in record.traces)
    return None if validated else NotValidated()


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
