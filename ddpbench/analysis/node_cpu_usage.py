"""Who keeps the cores of a node busy: the job, and others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum

import msgspec

from ddpbench.analysis.ranks import known
from ddpbench.record.loader_stats import CoreUse
from ddpbench.record.record import Record
from ddpbench.record.trace import Trace

ALL_BUSY = 0.9
"""From this fraction of their time on, cores leave none for more work."""

LEAST_OTHERS, LEAST_SHARE = 0.25, 0.1
"""Others are there from so many cores on, and from this fraction of them: below it is what a machine does by itself."""


@dataclass(frozen=True)
class Busy:
    """The cores of one node over all rounds. ``own``, ``others`` and what was ``throttled`` are cores, on the mean."""

    host: str
    cores: int  # that were watched: those that the job may run on
    usable: float  # of them, what a quota leaves
    own: float
    others: float
    throttled: float | None  # cores that the job would have kept busy, had no CPU quota stopped it; None without a quota

    @property
    def share(self) -> float:
        """Of what the job may use, the fraction that is taken: by itself of its quota, by everybody of the cores."""
        return min(1.0, max(self.own / self.usable, (self.own + self.others) / self.cores))

    @property
    def withheld(self) -> float:
        """Of the core time that the job asked for, the fraction that a quota kept from it."""
        return self.throttled / (self.own + self.throttled) if self.throttled else 0.0

    @property
    def shared(self) -> bool:
        """Whether somebody else is there."""
        return self.others >= max(LEAST_OTHERS, LEAST_SHARE * self.cores)

    @property
    def all_of_them(self) -> bool:
        return self.share >= ALL_BUSY


def busiest(record: Record) -> Busy | None:
    """The node whose cores were busiest; None where they were not watched, or the job's own CPU time is not known."""
    nodes = [watched(record, host) for host in dict.fromkeys(place.host for place in record.environment.places)]
    return max((node for node in nodes if node), key=lambda node: node.share, default=None)


def watched(record: Record, host: str) -> Busy | None:
    """That of the node ``host``. Ranks with cores of their own see each a part of it; else each of them sees all of it."""
    places = {place.rank: place for place in record.environment.places if place.host == host}
    rounds = [[trace for trace in timed.traces if trace.rank in places] for timed in record.rounds]
    if not rounds or any(trace.cores is None or trace.cpu_s is None for traces in rounds for trace in traces):
        return None
    apart = record.config.cores is not None
    seen = [_seen(traces, apart) for traces in rounds]
    wall_s = fsum(each.wall_s for each in seen)
    if not wall_s:
        return None
    seen_cores, usable = [use.cores for use in _uses(rounds[-1])], min(place.usable_cores for place in places.values())
    cores, busy_s = sum(seen_cores) if apart else max(seen_cores), fsum(each.busy_s for each in seen)
    own_s = min(busy_s, fsum(trace.cpu_s or 0.0 for traces in rounds for trace in traces))
    throttled = known(each.throttled_s for each in seen)
    return Busy(
        host=host,
        cores=cores,
        usable=min(usable, cores),
        own=own_s / wall_s,
        others=(busy_s - own_s) / wall_s,
        throttled=fsum(throttled) / wall_s if len(throttled) == len(seen) else None,
    )


def _seen(traces: Sequence[Trace], apart: bool) -> CoreUse:
    """What the cores did in a round, by the clock on which they were watched: of all ranks, or of the one that saw most of it.

    A quota is one and the same for all of them.
    """
    uses = _uses(traces)
    most = max(uses, key=lambda use: use.busy_s)
    if not apart:
        return most
    return msgspec.structs.replace(
        most,
        busy_s=fsum(use.busy_s for use in uses),
        wall_s=max(use.wall_s for use in uses),
        throttled_s=max(known(use.throttled_s for use in uses), default=None),
    )


def _uses(traces: Iterable[Trace]) -> list[CoreUse]:
    return [trace.cores for trace in traces if trace.cores is not None]
