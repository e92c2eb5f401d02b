"""Rounds of a watched script: cut from the steps of all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ddpbench.machine.step_timer import DATA, FORWARD, OPTIMIZER
from ddpbench.record.record import Round
from ddpbench.record.trace import PHASES, SCRIPT_PHASE, Memory
from ddpbench.script.observe.rounds import MAX_ROUND_STEPS, MAX_ROUNDS, WARMUP_STEPS, Prefetch, batches_per_update, cut_rounds, step_ms
from ddpbench.script.observe.rows import (
    FIRST_PHASE,
    FULL_SEGMENTS,
    NUMBER,
    ROW_LENGTH,
    SAMPLES,
    SEGMENT_STEPS,
    STRETCH,
    UPDATES,
    Rows,
    is_kept,
    to_rows,
)
from ddpbench.script.observe.step_clock import NUM_PHASES, SCRIPT

NO_WORKERS, FOUR_WORKERS = Prefetch(0, 0), Prefetch(4, 8)


def steps(number: int, ms: float, stretch_length: int | None = None, samples: int = 8) -> Rows:
    """Equal steps of ``ms``: half data, half forward."""
    rows = np.zeros((number, ROW_LENGTH))
    rows[:, NUMBER], rows[:, SAMPLES], rows[:, UPDATES] = np.arange(number), samples, 1
    rows[:, STRETCH] = np.arange(number) // (stretch_length or number)
    rows[:, FIRST_PHASE + DATA] = rows[:, FIRST_PHASE + FORWARD] = ms / 2
    return rows


def cut(*ranks: Rows, prefetch: Prefetch = NO_WORKERS, **changes: Any) -> list[Round]:
    return cut_rounds(list(ranks), prefetch, **{"engine": "ddp", "memory": {}, **changes})


def test_a_round_lasts_three_seconds() -> None:
    found = cut(steps(1000, 40.0))
    assert [timed.traces[0].steps for timed in found] == [75] * ((1000 - WARMUP_STEPS) // 75)
    assert found[0].wall_s == pytest.approx(3.0)
    assert found[0].samples == 75 * 8
    assert [timed.index for timed in found] == list(range(len(found)))


def test_a_round_has_four_batches_per_worker() -> None:
    assert {timed.traces[0].steps for timed in cut(steps(100, 2000.0), prefetch=FOUR_WORKERS)} == {16}


def test_short_epochs_are_one_round_each_without_prefetched_batches() -> None:
    found = cut(steps(120, 5.0, stretch_length=30), prefetch=FOUR_WORKERS)
    assert [timed.traces[0].steps for timed in found] == [30 - WARMUP_STEPS, 22, 22, 22]


def test_too_short_epochs_give_no_round() -> None:
    assert cut(steps(200, 5.0, stretch_length=20), prefetch=FOUR_WORKERS) == []
    assert cut(steps(0, 5.0)) == []


def test_phases_of_the_rows_are_those_of_the_trace() -> None:
    assert len((*PHASES, SCRIPT_PHASE)) == NUM_PHASES
    rows = steps(20, 10.0)
    rows[:, FIRST_PHASE + OPTIMIZER], rows[:, FIRST_PHASE + SCRIPT] = 2.0, 3.0
    (trace,) = cut(rows)[0].traces
    assert {name: values[0] for name, values in trace.phases_ms.items() if values[0]} == {
        "data": 5.0,
        "forward": 5.0,
        "optimizer": 2.0,
        "script": 3.0,
    }
    assert trace.wall_s == pytest.approx(0.015 * trace.steps)
    assert trace.host_lead_ms == []


def test_ranks_share_rounds_by_step_number() -> None:
    late = steps(200, 44.0)
    found = cut(steps(200, 40.0), late, memory={1: Memory(host_rss_bytes=5)})
    assert len(found) == 2
    assert [trace.rank for trace in found[0].traces] == [0, 1]
    assert found[0].traces[0].steps == found[0].traces[1].steps == 75
    assert found[0].wall_s == pytest.approx(75 * 0.044)
    assert found[0].samples == 2 * 75 * 8
    assert [trace.memory.host_rss_bytes for trace in found[0].traces] == [None, 5]


def test_steps_that_only_rank_0_has_made_are_in_no_round() -> None:
    (timed,) = cut(steps(60, 10.0), steps(30, 10.0))
    assert [trace.steps for trace in timed.traces] == [30 - WARMUP_STEPS] * 2
    assert cut(steps(60, 10.0), steps(0, 10.0)) == []


def test_round_that_a_rank_lacks_or_paused_in_is_left_out() -> None:
    paused = steps(200, 40.0)
    paused[100:, STRETCH] = 1
    assert len(cut(steps(200, 40.0), paused)) == 1
    assert len(cut(steps(200, 40.0), steps(100, 40.0))) == 1
    assert cut(steps(200, 40.0), steps(0, 40.0)) == []


def test_long_training_keeps_a_sample_of_rounds_and_steps() -> None:
    found = cut(steps(60_000, 2.0))
    assert len(found) == MAX_ROUNDS
    trace = found[-1].traces[0]
    assert trace.steps == 1500
    assert len(trace.phases_ms["data"]) <= MAX_ROUND_STEPS
    assert trace.total_ms("data") == pytest.approx(1500.0)


def test_ever_fewer_steps_of_a_long_training_are_kept() -> None:
    kept = [number // SEGMENT_STEPS for number in range(0, 128 * SEGMENT_STEPS, SEGMENT_STEPS) if is_kept(number)]
    assert kept[:FULL_SEGMENTS] == list(range(FULL_SEGMENTS))
    assert kept[FULL_SEGMENTS:] == [*range(16, 32, 2), *range(32, 64, 4), *range(64, 128, 8)]
    assert is_kept(SEGMENT_STEPS * 18 + 5)
    assert not is_kept(SEGMENT_STEPS * 17 + 5)


def test_gaps_between_kept_steps_are_in_no_round() -> None:
    rows = steps(300, 40.0)
    found = cut(np.concatenate([rows[:100], rows[150:]]))
    assert [timed.traces[0].steps for timed in found] == [75, 75]


def test_batches_per_update_is_the_usual_distance() -> None:
    rows = steps(100, 5.0)
    rows[:, UPDATES] = np.arange(100) % 4 == 3
    rows[7, UPDATES] = 0  # a skipped update
    assert batches_per_update(rows) == 4
    assert batches_per_update(steps(0, 5.0)) == 1


def test_rows_survive_their_transport() -> None:
    rows = steps(3, 7.0)
    assert np.array_equal(to_rows(rows.tobytes()), rows)
    assert step_ms(rows) == 21.0
