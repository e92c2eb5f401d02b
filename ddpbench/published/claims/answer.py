"""What a check of a claim answers, and the published figures that it compares with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ddpbench.analysis.metrics import SECONDS, Measure
from ddpbench.published.effect_size import PublishedRatio, explained, together
from ddpbench.published.publications import Mean, Publication, Row
from ddpbench.record.record import Job, Record


@dataclass(frozen=True)
class Answer:
    """Whether a claim holds here, None where that cannot be told; in words; with the ratios that it rests on."""

    sentence: str
    holds: bool | None
    ratios: Sequence[PublishedRatio] = ()


Check = Callable[[Publication, Job], Answer]


def of_ratios(ratios: Sequence[PublishedRatio], words: Iterable[str], lacking: str) -> Answer:
    """Holds where every ratio shows its published effect. ``words`` tell those that are known, ``lacking`` the cells of the others."""
    return Answer(sentence(words, lacking), together(each.agrees for each in ratios if each.published is not None), ratios)


def sentence(words: Iterable[str], lacking: str) -> str:
    """``here O1 1.83 times as fast; missing: O2 (out of memory)``."""
    known = "; ".join(filter(None, words))
    return "; ".join(filter(None, [f"here {known}" if known else "", lacking])) or "nothing has been measured"


def gain(name: str, fast: PublishedRatio, held: PublishedRatio, record: Record | None) -> str:
    """``o2 1.32 times as fast with 0.56 of the memory``, as far as either is known; and what the cell is limited by."""
    speed = f"{fast.words} times as fast" if fast.here else ""
    memory = f"with {held.words} of the memory" if held.here else ""
    return f"{name} {' '.join(filter(None, [speed, memory]))}{explained(fast.here, record)}" if speed or memory else ""


def missing(cells: Mapping[str, Record | None], *measures: Measure) -> str:
    """Which cells have no figure of one of ``measures``, and why: ``missing: O0, O1 (not measured), O2 (out of memory)``; or nothing."""
    why: dict[str, list[str]] = {}
    for name, record in cells.items():
        why.setdefault(_why(record, measures or (SECONDS,)), []).append(name)
    told = [f"{', '.join(names)} ({reason})" for reason, names in why.items() if reason]
    return f"missing: {', '.join(told)}" if told else ""


def _why(record: Record | None, measures: Sequence[Measure]) -> str:
    """Empty where the cell lacks nothing."""
    if record is None:
        return "not measured"
    if all(measure.values(record) for measure in measures):
        return ""
    if record.out_of_memory:
        return "out of memory"
    if record.status == "invalid":
        return "invalid"
    if not record.rounds:
        return record.status if record.status in ("failed", "hung", "refused") else "no round"
    return "no memory of a GPU"


def row_of(publication: Publication, workload: str, precision: str, batch: int | None = None, gpu: str = "") -> Row:
    """The published row of a precision, spelled as its source does; the first of any batch or GPU where none is given."""
    return next(
        row
        for experiment in publication.experiments
        for row in experiment.rows
        if experiment.workload == workload and row.precision == precision and batch in (None, row.batch_size) and gpu in ("", row.gpu)
    )


def over(numerator: float | Mean | None, denominator: float | Mean | None) -> float | None:
    """The ratio of two published figures, of their means where they are means."""
    if numerator is None or denominator is None:
        return None
    above, below = (figure.mean if isinstance(figure, Mean) else figure for figure in (numerator, denominator))
    return above / below
