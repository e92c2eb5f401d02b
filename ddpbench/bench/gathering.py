"""A round as it is kept: what every rank saw of it, put together."""

from __future__ import annotations

from ddpbench.analysis.backward_stall import moved_to_sync
from ddpbench.analysis.collective_wait import thinned
from ddpbench.analysis.straggler import THROTTLING
from ddpbench.record.record import Round
from ddpbench.record.registry import WITHOUT_SYNC
from ddpbench.record.trace import Trace

MOST_RAW = 64
"""Up to this many ranks every step of every rank is kept; above, every rank's sums, and a sample of its steps, the same of all."""


def collect(index: int, traces: list[Trace], engine: str) -> Round:
    """The round that ``traces``, one a rank, make: of more ranks than ``MOST_RAW`` with what all steps tell, and a sample of them.

    Ranks that train for themselves have nothing to agree on, and none holds another.
    """
    apart = engine in WITHOUT_SYNC
    if not apart and traces[0].lead_ms:  # on a CPU the backward computes on while an all-reduce waits
        traces = moved_to_sync(traces)
    whole = Round(
        index=index,
        traces=traces,
        images=sum(trace.images for trace in traces),
        wall_s=max(trace.wall_s for trace in traces),
        digests_agree=apart or len({trace.numerics.parameters_after for trace in traces}) == 1,
    )
    return thinned(whole, -(-len(traces) // MOST_RAW))


def pulled_down(trace: Trace) -> bool:
    """Whether the device of that rank was throttled in the round."""
    return trace.health is not None and bool(THROTTLING & set(trace.health.throttle_reasons))
