"""A round as it is kept: what every rank saw of it, put together."""

from __future__ import annotations

from ddpbench.analysis.backward_stall import attribute_backward_stall
from ddpbench.analysis.collective_wait import subsample_round
from ddpbench.analysis.straggler import SERIOUS_THROTTLE_REASONS
from ddpbench.record.record import Round
from ddpbench.record.registry import ENGINES_WITHOUT_SYNC
from ddpbench.record.trace import Trace

MAX_FULL_TRACES = 64
"""Up to this many ranks every step of every rank is kept; above, every rank's sums, and a sample of its steps, the same of all."""


def collect_round(index: int, traces: list[Trace], engine: str) -> Round:
    """The round that ``traces``, one a rank, make: of more ranks than ``MOST_RAW`` with what all steps tell, and a sample of them.

    Ranks that train for themselves have nothing to agree on, and none holds another.
    """
    apart = engine in ENGINES_WITHOUT_SYNC
    if not apart and traces[0].host_lead_ms:  # on a CPU the backward computes on while an all-reduce waits
        traces = attribute_backward_stall(traces)
    whole = Round(
        index=index,
        traces=traces,
        images=sum(trace.images for trace in traces),
        wall_s=max(trace.wall_s for trace in traces),
        params_in_sync=apart or len({trace.numerics.params_checksum_after for trace in traces}) == 1,
    )
    return subsample_round(whole, -(-len(traces) // MAX_FULL_TRACES))


def was_throttled(trace: Trace) -> bool:
    """Whether the device of that rank was throttled in the round."""
    return trace.health is not None and bool(SERIOUS_THROTTLE_REASONS & set(trace.health.throttle_reasons))
