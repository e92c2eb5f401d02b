"""Arms of one job side by side: how fast each is, and how many times the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddpbench.analysis.evidence import LEAST_FOR_AN_INTERVAL, Reach, reach
from ddpbench.analysis.stats import paired_ratio
from ddpbench.analysis.summary import summarise
from ddpbench.record.config import Config
from ddpbench.record.record import Record
from ddpbench.record.verdict import Headline

FIGURE_STANDS = ("ok", "running", "interrupted")
"""Statuses that leave the rounds of an arm worth comparing: nothing in the arm itself went wrong."""


@dataclass(frozen=True)
class ArmRow:
    """One arm against the first. Where it has no figure, or none to compare, ``state`` says so in a word and ``why`` in a sentence."""

    config: Config
    images_per_s: float | None = None
    reach: Reach | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    peak_bytes: int | None = None
    state: str = ""  # a status, "not comparable", or empty
    why: str = ""


def compare(records: Sequence[Record]) -> list[ArmRow]:
    """A row for each of ``records``, the arms that one job interleaved, against the first of them.

    The speed-up is the geometric mean of the ratios of rounds with equal index, with a paired 95% t-interval on their logs:
    arms share the process, so the launch's luck cancels. It is None where the first arm has no figure or no round is
    shared, has no interval where one round is, and the range of the ratios where they are too few for an interval.
    """
    return [_row(record, records[0]) for record in records]


def _row(record: Record, first: Record) -> ArmRow:
    row = ArmRow(record.config, peak_bytes=summarise(record).peak_bytes)
    figure = _figure(record)
    if figure is None:
        return replace(row, state=record.status, why=_why_no_figure(record))
    row = replace(row, images_per_s=figure.images_per_s, reach=reach(record))
    if _devices(record) != _devices(first):
        kind = "GPU" if record.environment.device_type == "cuda" else "CPU"
        return replace(row, state="not comparable", why=f"other {kind}")
    if record is first:
        return replace(row, speedup=1.0, speedup_low=1.0, speedup_high=1.0)
    return _with_speedup(row, record, first) if _figure(first) else row


def _with_speedup(row: ArmRow, record: Record, first: Record) -> ArmRow:
    ours = {timed.index: timed.images_per_s for timed in record.rounds}
    theirs = {timed.index: timed.images_per_s for timed in first.rounds}
    shared = sorted(ours.keys() & theirs.keys())
    if len(shared) < 2:
        return replace(row, speedup=ours[shared[0]] / theirs[shared[0]] if shared else None)
    ratio = paired_ratio([theirs[index] for index in shared], [ours[index] for index in shared])
    if len(shared) < LEAST_FOR_AN_INTERVAL:
        ratios = [ours[index] / theirs[index] for index in shared]
        return replace(row, speedup=ratio.center, speedup_low=min(ratios), speedup_high=max(ratios))
    return replace(row, speedup=ratio.center, speedup_low=ratio.low, speedup_high=ratio.high)


def _figure(record: Record) -> Headline | None:
    return record.headline if record.status in FIGURE_STANDS else None


def _why_no_figure(record: Record) -> str:
    if record.fault is not None:
        return record.fault.message
    blocking = [check.sentence for check in record.checks if check.effect == "blocks"]
    return blocking[0] if blocking else "no round was finished"


def _devices(record: Record) -> Counter[str]:
    return Counter(place.device for place in record.environment.places)
