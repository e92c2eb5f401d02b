"""Backward passes stalled by another rank: measured on two H200s, and synthetic."""

from __future__ import annotations

import pytest
import records
from msgspec.structs import replace

from ddpbench.analysis.collective_wait import attribute_backward_stall
from ddpbench.analysis.ranks import own_ms
from ddpbench.analysis.rounds import collect_round
from ddpbench.record.trace import PHASES, Trace

MEASURED_PHASES = (
    {
        "data": [0, 0, 11, 0, 52, 0, 143, 104],
        "broadcast": [0, 0, 1, 0, 1, 0, 0, 0],
        "forward": [17, 17, 17, 27, 17, 17, 17, 17],
        "backward": [27, 27, 27, 29, 27, 384, 27, 27],
    },
    {
        "data": [0, 0, 0, 0, 0, 354, 0, 0],
        "broadcast": [0, 0, 14, 0, 56, 0, 147, 108],
        "forward": [16, 16, 16, 16, 16, 16, 16, 16],
        "backward": [27, 27, 27, 38, 27, 26, 27, 27],
        "sync": [0, 0, 1, 1, 1, 1, 0, 0],
    },
)
"""Steps of ResNet-50 on two H200s, in ms. In one step the second rank's batch was late."""


def make_trace(rank: int, phases: dict[str, list[int]]) -> Trace:
    steps = len(phases["backward"])
    plain = records.trace(rank, 60.0, {}, steps=steps)
    return replace(
        plain, phases_ms={phase: [float(ms) for ms in phases.get(phase, [0] * steps)] for phase in PHASES}, host_lead_ms=[1.0] * steps
    )


def constant_trace(rank: int, steps: int = 8, **phases: int) -> Trace:
    return make_trace(rank, {"backward": [27] * steps, "forward": [16] * steps} | {phase: [ms] * steps for phase, ms in phases.items()})


def test_backward_stall_behind_late_batch_counts_as_sync() -> None:
    first, second = attribute_backward_stall([make_trace(rank, phases) for rank, phases in enumerate(MEASURED_PHASES)])
    assert first.phases_ms["backward"] == [27, 27, 27, 29, 27, 31, 27, 27], "rank 1 started its backward 353 ms later"
    assert first.phases_ms["sync"] == [0, 0, 0, 0, 0, 353, 0, 0]
    assert first.backward_stall_ms == 353
    assert second.phases_ms["backward"] == [27, 27, 27, 27, 27, 26, 27, 27], "in step 4 rank 0 computed 11 ms longer before"


def test_constant_backward_stall_is_measured_by_the_rank_waited_for() -> None:
    held = attribute_backward_stall([constant_trace(0, backward=67), constant_trace(1, data=40)])
    assert [trace.phases_ms["sync"][0] for trace in held] == [40, 0]
    assert [trace.backward_stall_ms for trace in held] == [320, 0]


def test_slow_compute_is_not_counted_as_backward_stall() -> None:
    slow = attribute_backward_stall([constant_trace(0), constant_trace(1, backward=54, forward=32), constant_trace(2)])
    assert [trace.phases_ms["backward"][0] for trace in slow] == [27, 54, 27]


def test_totals_include_moved_stall_if_steps_are_subsampled() -> None:
    kept = attribute_backward_stall([constant_trace(0, backward=67).subsample_steps(2), constant_trace(1, data=40).subsample_steps(2)])
    assert kept[0].total_ms("sync") == pytest.approx(320)
    assert kept[0].total_ms("backward") == pytest.approx(8 * 27)


@pytest.mark.parametrize(("engine", "device", "moved"), [("ddp", "cuda", True), ("no-sync", "cuda", False), ("ddp", "cpu", False)])
def test_backward_stall_is_moved_only_for_ddp_on_gpus(engine: str, device: str, moved: bool) -> None:
    traces = [constant_trace(0, backward=67), constant_trace(1, data=40)]
    if device == "cpu":
        traces = [replace(trace, host_lead_ms=[]) for trace in traces]
    timed = collect_round(0, traces, engine)
    assert (own_ms(timed.traces[0]) < own_ms(traces[0])) == moved
