"""Backwards that another rank holds: seen on two H200s, and made up."""

from __future__ import annotations

import pytest
import records
from msgspec.structs import replace

from ddpbench.analysis.collective_wait import attribute_backward_stall, collect_round
from ddpbench.analysis.ranks import own_ms
from ddpbench.record.trace import PHASES, Trace

SEEN = (
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
"""Steps of ResNet-50 on two H200s, in ms, in one of which the second rank's batch was late."""


def traced(rank: int, phases: dict[str, list[int]]) -> Trace:
    steps = len(phases["backward"])
    plain = records.trace(rank, 60.0, {}, steps=steps)
    return replace(
        plain, phases_ms={phase: [float(ms) for ms in phases.get(phase, [0] * steps)] for phase in PHASES}, host_lead_ms=[1.0] * steps
    )


def steady(rank: int, steps: int = 8, **phases: int) -> Trace:
    return traced(rank, {"backward": [27] * steps, "forward": [16] * steps} | {phase: [ms] * steps for phase, ms in phases.items()})


def test_a_late_batch_is_waited_for_by_the_other_rank_and_not_computed_with() -> None:
    first, second = attribute_backward_stall([traced(rank, phases) for rank, phases in enumerate(SEEN)])
    assert first.phases_ms["backward"] == [27, 27, 27, 29, 27, 31, 27, 27], "the second began its own 353 ms later"
    assert first.phases_ms["sync"] == [0, 0, 0, 0, 0, 353, 0, 0]
    assert first.backward_stall_ms == 353
    assert second.phases_ms["backward"] == [27, 27, 27, 27, 27, 26, 27, 27], "in the fourth step the first computed 11 ms longer before"


def test_a_rank_that_always_waits_is_measured_by_the_one_it_waits_for() -> None:
    held = attribute_backward_stall([steady(0, backward=67), steady(1, data=40)])
    assert [trace.phases_ms["sync"][0] for trace in held] == [40, 0]
    assert [trace.backward_stall_ms for trace in held] == [320, 0]


def test_a_rank_that_computes_slowly_has_only_itself_to_blame() -> None:
    slow = attribute_backward_stall([steady(0), steady(1, backward=54, forward=32), steady(2)])
    assert [trace.phases_ms["backward"][0] for trace in slow] == [27, 54, 27]


def test_sums_follow_where_only_some_steps_are_kept() -> None:
    kept = attribute_backward_stall([steady(0, backward=67).subsample_steps(2), steady(1, data=40).subsample_steps(2)])
    assert kept[0].total_ms("sync") == pytest.approx(320)
    assert kept[0].total_ms("backward") == pytest.approx(8 * 27)


@pytest.mark.parametrize(("engine", "device", "moved"), [("ddp", "cuda", True), ("no-sync", "cuda", False), ("ddp", "cpu", False)])
def test_only_an_all_reduce_on_gpus_holds(engine: str, device: str, moved: bool) -> None:
    traces = [steady(0, backward=67), steady(1, data=40)]
    if device == "cpu":
        traces = [replace(trace, host_lead_ms=[]) for trace in traces]
    timed = collect_round(0, traces, engine)
    assert (own_ms(timed.traces[0]) < own_ms(traces[0])) == moved
