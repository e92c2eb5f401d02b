"""Loader stats from the times at which batches were requested, made and delivered."""

from __future__ import annotations

import pytest

from ddpbench.data.batch_timing import BatchTiming, head_of_line_fraction, to_stats
from ddpbench.data.loader import WorkerTiming
from ddpbench.record.errors import BenchError


def arrival(asked: float, made: float, arrived: float, began: float = 0.0) -> BatchTiming:
    return BatchTiming(asked, arrived, 8, WorkerTiming(began, made, {"read": 0.1, "decode": 0.4}, {"read": 0.3, "decode": 0.5}))


def test_stages_batches_and_samples_are_summed() -> None:
    left_out = (BenchError("cannot read a"), BenchError("cannot read b"))
    second = BatchTiming(2.0, 3.0, 8, WorkerTiming(0.5, 2.9, {"collate": 0.2}, {"collate": 0.2}, left_out))
    loading = to_stats([arrival(0.0, 1.0, 1.1), second])
    assert (loading.samples, len(loading.skipped_files)) == (16, 2)
    assert loading.cpu_s == {"read": 0.1, "decode": 0.4, "collate": 0.2}
    assert loading.wall_s == {"read": 0.3, "decode": 0.5, "collate": 0.2}
    assert loading.batch_ms == pytest.approx([1000, 2400])
    assert loading.subsample_batches(2).batch_ms == pytest.approx([1000])


@pytest.mark.parametrize(("queued", "sum_s"), [((0.25, 0.5), 0.75), ((0.25, None), None)])
def test_runqueue_wait_is_known_only_if_every_batch_reports_it(queued: tuple[float | None, ...], sum_s: float | None) -> None:
    assert to_stats([BatchTiming(0.0, 1.0, 8, WorkerTiming(0.0, 0.9, runqueue_wait_s=each)) for each in queued]).runqueue_wait_s == sum_s


def test_handoff_is_the_wait_after_the_batch_was_made() -> None:
    made_while_waited_for = arrival(asked=0.0, made=0.9, arrived=1.0)
    made_before = arrival(asked=2.0, made=1.0, arrived=2.3)
    ready = arrival(asked=3.0, made=2.0, arrived=3.0001)
    assert to_stats([made_while_waited_for, made_before, ready]).handoff_ms == pytest.approx((100 + 300) / 2)
    assert to_stats([ready]).handoff_ms is None


def test_head_of_line_is_the_wait_while_a_later_batch_is_ready() -> None:
    awaited, early = arrival(asked=0.0, made=0.9, arrived=1.0), arrival(asked=1.0, made=0.3, arrived=1.0001)
    assert head_of_line_fraction([awaited, early]) == pytest.approx(0.6), "from 0.3 to 0.9, of 1.0"
    assert head_of_line_fraction([awaited, arrival(asked=1.0, made=1.5, arrived=2.0)]) == 0, "the later one was made later"
    assert head_of_line_fraction([arrival(asked=0.0, made=-0.5, arrived=1.0), early]) == 0, "it was ready: that is a wait for its handoff"
    assert head_of_line_fraction([early]) is None


def test_head_of_line_is_unknown_without_completion_times() -> None:
    late, early = (BatchTiming(0.0, 1.0, 8, WorkerTiming(0.0, made)) for made in (1.0, 1.5))
    assert to_stats([late, early]).head_of_line_fraction is None


def test_head_of_line_considers_every_later_batch_per_wait() -> None:
    batches = [arrival(0.0, 1.0, 1.0), arrival(1.0, 3.0, 3.0), arrival(3.0, 0.5, 3.0)]
    assert head_of_line_fraction(batches) == pytest.approx((0.5 + 2.0) / 3.0)
