"""Exposed communication and exposed all-reduce: on the rank that waits least in each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import records
from msgspec.structs import replace

from ddpbench.analysis.collective_wait import exposed_allreduce_ms, exposed_comm_ms
from ddpbench.record.record import Round

STEP_MS = 50.0


def timed_round(ranks: Sequence[Mapping[str, float]], steps: int = 10) -> Round:
    traces = [records.trace(rank, STEP_MS, phases, steps=steps) for rank, phases in enumerate(ranks)]
    return Round(index=0, traces=traces, samples=256 * steps * len(traces), wall_s=STEP_MS * steps / 1000)


def test_exposed_communication_includes_the_buffer_broadcast() -> None:
    rounds = [timed_round([{"sync": 3.0, "broadcast": 5.0}, {"sync": 4.0, "broadcast": 2.0}])]
    assert exposed_comm_ms(rounds) == pytest.approx(4.0 + 2.0)
    assert exposed_allreduce_ms(rounds) == pytest.approx(3.0)


def test_waits_for_late_ranks_are_not_exposed_communication() -> None:
    timed, waits_ms = timed_round([{}, {}]), ([1.0, 31.0] * 5, [21.0, 1.0] * 5)  # late in turns
    traces = [replace(trace, phases_ms={**trace.phases_ms, "sync": ms}) for trace, ms in zip(timed.traces, waits_ms, strict=True)]
    rounds = [replace(timed, traces=traces)]
    assert (exposed_comm_ms(rounds), exposed_allreduce_ms(rounds)) == (pytest.approx(1.0), pytest.approx(1.0))


def test_longer_rounds_weigh_more() -> None:
    rounds = [timed_round([{"sync": 1.0}], steps=30), timed_round([{"sync": 5.0}], steps=10)]
    assert exposed_allreduce_ms(rounds) == pytest.approx(2.0)
