"""Rounds of a watched script: cut from the steps of all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ddpbench.analysis.run_length import MIN_ROUNDS
from ddpbench.machine.step_timer import DATA, FORWARD, OPTIMIZER
from ddpbench.record.record import Round
from ddpbench.record.trace import EPOCH_START_PHASE, SCRIPT_PHASE, Memory
from ddpbench.script.observe.rounds import MAX_ROUND_STEPS, MAX_ROUNDS, WARMUP_STEPS, LoaderShape, batches_per_update, cut_rounds, step_ms
from ddpbench.script.observe.rows import (
    ELEMENTS,
    EPOCH_START_MS,
    FIRST_PHASE,
    FULL_SEGMENTS,
    NUMBER,
    PHASE_NAMES,
    ROW_LENGTH,
    SAMPLES,
    SEGMENT_STEPS,
    STRETCH,
    UPDATES,
    Rows,
    is_kept,
    to_rows,
)
from ddpbench.script.observe.step_clock import EPOCH_START, NUM_PHASES, SCRIPT

NO_WORKERS, FOUR_WORKERS = LoaderShape(0, 0), LoaderShape(4, 8)


def steps(number: int, ms: float, stretch_length: int | None = None, samples: int = 8) -> Rows:
    """Equal steps of ``ms``: half data, half forward."""
    rows = np.zeros((number, ROW_LENGTH))
    rows[:, NUMBER], rows[:, SAMPLES], rows[:, UPDATES] = np.arange(number), samples, 1
    rows[:, STRETCH] = np.arange(number) // (stretch_length or number)
    rows[:, FIRST_PHASE + DATA] = rows[:, FIRST_PHASE + FORWARD] = ms / 2
    return rows


def cut(*ranks: Rows, loader: LoaderShape = NO_WORKERS, **changes: Any) -> list[Round]:
    return cut_rounds(list(ranks), loader, **{"engine": "ddp", "memory": {}, **changes})


def test_a_round_lasts_three_seconds() -> None:
    found = cut(steps(1000, 40.0))
    assert [timed.traces[0].steps for timed in found] == [75] * ((1000 - WARMUP_STEPS) // 75)
    assert found[0].wall_s == pytest.approx(3.0)
    assert found[0].samples == 75 * 8
    assert [timed.index for timed in found] == list(range(len(found)))


def test_a_round_has_four_batches_per_worker() -> None:
    assert {timed.traces[0].steps for timed in cut(steps(100, 2000.0), loader=FOUR_WORKERS)} == {16}


def test_short_epochs_are_measured_whole_but_for_the_first() -> None:
    rows = steps(30 * 41, 5.0, stretch_length=30)
    rows[::30, EPOCH_START_MS] = 350.0
    found = cut(rows, loader=FOUR_WORKERS)
    assert {timed.traces[0].steps for timed in found} == {6 * 30}, "six epochs of half a second"
    assert len(found) == 40 // 6
    assert sum(timed.samples for timed in found) / sum(timed.wall_s for timed in found) == pytest.approx(30 * 8 / 0.5)
    assert found[0].traces[0].total_ms("epoch_start") == pytest.approx(6 * 350.0)


def test_a_short_training_without_workers_is_cut_into_enough_rounds_for_a_verdict() -> None:
    """Parts of its epochs: no batch was ready when they began."""
    rows = steps(100, 17.0, stretch_length=40)
    assert len(cut(rows)) >= 3
    assert [timed.traces[0].steps for timed in cut(rows, loader=FOUR_WORKERS)] == [40]


@pytest.mark.parametrize(("turns", "largest"), [(0, 1), (50, None)])
def test_rank_with_the_largest_batches(turns: int, largest: int | None) -> None:
    """In nearly all steps, or in some."""
    small, large = steps(200, 40.0), steps(200, 40.0)
    small[:, ELEMENTS], large[:, ELEMENTS] = 100, 300
    small[:turns, ELEMENTS], large[:turns, ELEMENTS] = 300, 100
    (found,) = {(timed.batch_imbalance, timed.largest_batch_rank) for timed in cut(small, large)[-1:]}
    assert found[0] == pytest.approx(1.5)
    assert {timed.largest_batch_rank for timed in cut(small, large)} == {1} if largest else {0, 1, None}


def test_last_epoch_counts_only_if_it_is_complete() -> None:
    rows = steps(6 * 20, 150.0, stretch_length=20)
    assert [timed.traces[0].steps for timed in cut(rows)] == [20] * 5
    assert [timed.traces[0].steps for timed in cut(rows[:-1])] == [20] * 4


def test_stretches_whose_batches_are_mostly_prefetched_are_measured_whole() -> None:
    """However long they take: 28 batches between two validations, of which 16 workers have 32 ready."""
    found = cut(steps(6 * 28, 500.0, stretch_length=28), loader=LoaderShape(16, 32))
    assert [timed.traces[0].steps for timed in found] == [28] * 5


def test_stretches_between_validations_are_measured_whole() -> None:
    """However few batches they have: what their workers had ready after the validation belongs to them."""
    found = cut(steps(105, 91.0, stretch_length=7), loader=LoaderShape(16, 32, epoch_batches=36))
    assert [timed.traces[0].steps for timed in found] == [21, 21, 21, 21]


def test_start_of_a_long_epoch_is_spread_over_its_steps() -> None:
    rows = steps(1500, 40.0, stretch_length=500)
    rows[::500, EPOCH_START_MS] = 9000.0, 2000.0, 2000.0
    found = cut(rows, loader=FOUR_WORKERS)
    assert {round(timed.wall_s / timed.traces[0].steps, 4) for timed in found} == {0.044}
    in_progress = cut(rows[:300], loader=LoaderShape(4, 8, epoch_batches=500))
    assert {round(timed.wall_s / timed.traces[0].steps, 4) for timed in in_progress} == {0.058}


def test_start_of_an_iterator_for_all_epochs_is_none_of_theirs() -> None:
    rows = steps(1500, 40.0, stretch_length=500)
    rows[0, EPOCH_START_MS] = 9000.0
    found = cut(rows, loader=LoaderShape(4, 8, epoch_batches=500))
    assert {round(timed.wall_s / timed.traces[0].steps, 4) for timed in found} == {0.04}


def test_iterator_per_batch_keeps_its_own_starts() -> None:
    rows = steps(400, 40.0)
    rows[:, EPOCH_START_MS] = 10.0
    assert {round(timed.wall_s / timed.traces[0].steps, 4) for timed in cut(rows, loader=FOUR_WORKERS)} == {0.05}


@pytest.mark.parametrize("stretch_length", [1, 3, 7, 16, 20])
@pytest.mark.parametrize("loader", [NO_WORKERS, LoaderShape(16, 32)])
def test_twenty_steps_are_enough_for_a_round(stretch_length: int, loader: LoaderShape) -> None:
    assert cut(steps(20, 5.0, stretch_length), loader=loader)
    assert cut(steps(3, 5.0, stretch_length), loader=loader) == []


def test_short_training_is_cut_into_enough_rounds_for_a_verdict() -> None:
    assert len(cut(steps(109, 10.0))) == MIN_ROUNDS - 1
    assert cut(steps(0, 5.0)) == []


def test_phases_of_the_rows_are_those_of_the_trace() -> None:
    assert len(PHASE_NAMES) == NUM_PHASES
    assert (PHASE_NAMES[SCRIPT], PHASE_NAMES[EPOCH_START]) == (SCRIPT_PHASE, EPOCH_START_PHASE)
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
    late = steps(400, 44.0)
    found = cut(steps(400, 40.0), late, memory={1: Memory(host_rss_bytes=5)})
    assert len(found) == 5
    assert [trace.rank for trace in found[0].traces] == [0, 1]
    assert found[0].traces[0].steps == found[0].traces[1].steps == 75
    assert found[0].wall_s == pytest.approx(75 * 0.044)
    assert found[0].samples == 2 * 75 * 8
    assert [trace.memory.host_rss_bytes for trace in found[0].traces] == [None, 5]


def test_steps_that_only_rank_0_has_made_are_in_no_round() -> None:
    found = cut(steps(60, 10.0), steps(30, 10.0))
    assert [trace.steps for timed in found for trace in timed.traces] == [5] * 2 * ((30 - WARMUP_STEPS) // 5)
    assert cut(steps(60, 10.0), steps(0, 10.0)) == []


def test_round_that_a_rank_lacks_or_paused_in_is_left_out() -> None:
    paused = steps(400, 40.0)
    paused[100:, STRETCH] = 1
    assert len(cut(steps(400, 40.0), paused)) == 4
    assert cut(steps(400, 40.0), steps(0, 40.0)) == []


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
    rows = steps(600, 40.0)
    found = cut(np.concatenate([rows[:100], rows[150:]]))
    assert [timed.traces[0].steps for timed in found] == [75] * (1 + 450 // 75 - 1)


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
