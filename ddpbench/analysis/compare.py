"""Arms of one job side by side: how fast each is, and how many times the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ddpbench.analysis.evidence import Reach, reach
from ddpbench.analysis.ratio import Ratio, ratio_of
from ddpbench.analysis.stats import Interval, log_t_interval
from ddpbench.analysis.summary import summarise
from ddpbench.record.config import Config
from ddpbench.record.findings import Headline
from ddpbench.record.record import Record

FIGURE_STANDS = ("ok", "running", "interrupted")
"""Statuses that leave the rounds of an arm worth comparing: nothing in the arm itself went wrong."""


@dataclass(frozen=True)
class ArmRow:
    """One arm against the first. Where it has no figure, or none to compare, ``state`` says so in a word and ``why`` in a sentence."""

    config: Config
    images_per_s: float | None = None
    reach: Reach | None = None
    speedup: Ratio | None = None
    uneven: bool = False  # the speed-up is of other rounds than the figures of the two arms
    memory_bytes: int | None = None  # peak of a device; of a rank on processors with its workers
    state: str = ""  # a status, "not comparable", or empty
    why: str = ""


def compare(records: Sequence[Record]) -> list[ArmRow]:
    """A row for each of ``records``, the arms that one job interleaved, against the first of them that trains the same model.

    The speed-up is None where the first arm has no figure, or no round is shared.
    """
    firsts: dict[str, Record] = {}
    return [_row(record, firsts.setdefault(record.config.workload, record)) for record in records]


def times_as_fast(record: Record, than: Record, interval: Callable[[Sequence[float]], Interval] = log_t_interval) -> Ratio | None:
    """How many times as fast as ``than`` the other is, by the ``interval`` of the ratios of rounds; None where they share none."""
    ours = {timed.index: timed.images_per_s for timed in record.rounds}
    theirs = {timed.index: timed.images_per_s for timed in than.rounds}
    shared = sorted(ours.keys() & theirs.keys())
    return ratio_of([theirs[index] for index in shared], [ours[index] for index in shared], interval) if shared else None


def figure(record: Record) -> Headline | None:
    """The figure of an arm that may be compared; None where something in the arm itself went wrong."""
    return record.headline if record.status in FIGURE_STANDS else None


def why_no_figure(record: Record) -> str:
    """What went wrong in it, in a sentence."""
    if record.fault is not None:
        return record.fault.message
    blocking = [check.sentence for check in record.checks if check.effect == "blocks"]
    return blocking[0] if blocking else "no round was finished"


def same_devices(record: Record, other: Record) -> bool:
    return _devices(record) == _devices(other)


def _row(record: Record, first: Record) -> ArmRow:
    summary, cuda = summarise(record), record.environment.device_type == "cuda"
    row = ArmRow(record.config, memory_bytes=summary.peak_bytes if cuda else summary.rss_bytes)
    headline = figure(record)
    if headline is None:
        state = "not measured" if record.status == "ok" else record.status
        return replace(row, state=state, why=why_no_figure(record))
    row = replace(row, images_per_s=headline.images_per_s, reach=reach(record))
    if not same_devices(record, first):
        return replace(row, state="not comparable", why=f"other {'GPU' if cuda else 'CPU'}")
    speedup = times_as_fast(record, first) if figure(first) else None
    uneven = speedup is not None and {len(record.rounds), len(first.rounds)} != {speedup.pairs}
    return replace(row, speedup=speedup, uneven=uneven)


def _devices(record: Record) -> Counter[str]:
    return Counter(place.device for place in record.environment.places)
