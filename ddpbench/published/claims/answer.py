"""The result of a claim check, and helpers that compare with published values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ddpbench.analysis.metrics import SECONDS, Metric
from ddpbench.published.effect_size import PublishedRatio, all_or_unknown, explain_ratio
from ddpbench.published.publications import Publication, PublishedMean, PublishedRow
from ddpbench.record.record import Job, Record


@dataclass(frozen=True)
class ClaimCheck:
    """Whether a claim holds here (None if unknown), why, and the ratios behind it."""

    explanation: str
    holds: bool | None
    ratios: Sequence[PublishedRatio] = ()


ClaimCheckFn = Callable[[Publication, Job], ClaimCheck]


def check_ratios(ratios: Sequence[PublishedRatio], texts: Iterable[str], missing: str) -> ClaimCheck:
    """Check that every ratio shows its published effect.

    ``texts`` describe the measured ratios, ``missing`` the records that are missing.
    """
    return ClaimCheck(
        measured_sentence(texts, missing), all_or_unknown(each.agrees for each in ratios if each.published is not None), ratios
    )


def measured_sentence(texts: Iterable[str], missing: str) -> str:
    """``here O1 1.83 times as fast; missing: O2 (out of memory)``."""
    measured = "; ".join(filter(None, texts))
    return "; ".join(filter(None, [f"here {measured}" if measured else "", missing])) or "nothing was measured"


def format_gain(name: str, speedup: PublishedRatio, memory_ratio: PublishedRatio, record: Record | None) -> str:
    """``o2 1.32 times as fast with 0.56 of the memory`` and the bottleneck, as far as known."""
    speed = f"{speedup.text} times as fast" if speedup.measured else ""
    memory = f"with {memory_ratio.text} of the memory" if memory_ratio.measured else ""
    return f"{name} {' '.join(filter(None, [speed, memory]))}{explain_ratio(speedup.measured, record)}" if speed or memory else ""


def missing_cells(cells: Mapping[str, Record | None], *metrics: Metric) -> str:
    """Name the records without a value of ``metrics``, and why; empty if none.

    ``missing: O0, O1 (not measured), O2 (out of memory)``.
    """
    names_by_reason: dict[str, list[str]] = {}
    for name, record in cells.items():
        names_by_reason.setdefault(_missing_reason(record, metrics or (SECONDS,)), []).append(name)
    parts = [f"{', '.join(names)} ({reason})" for reason, names in names_by_reason.items() if reason]
    return f"missing: {', '.join(parts)}" if parts else ""


def _missing_reason(record: Record | None, metrics: Sequence[Metric]) -> str:
    """Why ``record`` lacks one of ``metrics``; empty if it has all."""
    if record is None:
        return "not measured"
    if all(measure.values(record) for measure in metrics):
        return ""
    if record.out_of_memory:
        return "out of memory"
    if record.status == "invalid":
        return "invalid"
    if not record.rounds:
        return record.status if record.status in ("failed", "hung", "refused") else "no round"
    return "no GPU memory figure"


def find_row(publication: Publication, workload: str, precision: str, batch: int | None = None, gpu: str = "") -> PublishedRow:
    """The published row of ``precision``, spelled as in the source.

    Without ``batch`` or ``gpu``, the first row of any batch size or GPU.
    """
    return next(
        row
        for experiment in publication.experiments
        for row in experiment.rows
        if experiment.workload == workload and row.precision == precision and batch in (None, row.batch_size) and gpu in ("", row.gpu)
    )


def ratio_of_published(numerator: float | PublishedMean | None, denominator: float | PublishedMean | None) -> float | None:
    """The ratio of two published values, or of their means; None if one is missing."""
    if numerator is None or denominator is None:
        return None
    numerator_value, denominator_value = (
        figure.mean if isinstance(figure, PublishedMean) else figure for figure in (numerator, denominator)
    )
    return numerator_value / denominator_value
