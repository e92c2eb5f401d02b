"""Steps travel from the ranks to rank 0 through the store."""

from __future__ import annotations

import threading
import time

import numpy as np
import records
from torch import distributed as dist

from ddpbench.record.trace import Memory
from ddpbench.script.observe.rows import ROW_LENGTH, Rows
from ddpbench.script.ranks.gather import BEFORE_FIRST_BATCH, SILENT, RankState, StepCollector, StepSender
from ddpbench.script.ranks.link import CoordinatorLink, FollowerLink
from ddpbench.script.ranks.progress import RankProgress


def state(rank: int, has_ended: bool = False) -> RankState:
    return RankState(
        placement=records.environment(4).placements[rank],
        software=records.SOFTWARE,
        memory=Memory(host_rss_bytes=rank),
        has_ended=has_ended,
    )


def rows(first: int, number: int) -> Rows:
    return np.arange(first, first + number * ROW_LENGTH, dtype=np.float64).reshape(number, ROW_LENGTH)


def test_chunks_arrive_in_order_and_leave_the_store() -> None:
    store = dist.HashStore()
    senders = {rank: StepSender(store, rank) for rank in (1, 2)}
    collector = StepCollector(store, 3)
    collector.collect()
    assert collector.states == {}
    senders[1].send(rows(0, 2).tobytes(), state(1))
    collector.collect()
    senders[1].send(b"", state(1))  # no step since then
    senders[1].send(rows(50, 3).tobytes(), state(1, has_ended=True))
    senders[2].send(rows(7, 1).tobytes(), state(2))
    collector.collect()
    assert np.array_equal(collector.rows(1), np.concatenate([rows(0, 2), rows(50, 3)]))
    assert np.array_equal(collector.rows(2), rows(7, 1))
    assert [collector.has_ended(rank) for rank in (1, 2)] == [True, False]
    assert collector.states[1].memory == Memory(host_rss_bytes=1)
    assert store.num_keys() == 2  # the states


def test_rank_0_waits_for_the_others_with_a_deadline() -> None:
    store = dist.HashStore()
    collector, sender = StepCollector(store, 2), StepSender(store, 1)
    begin_s = time.monotonic()
    collector.collect_all(timeout_s=0.2)
    assert time.monotonic() - begin_s >= 0.2
    assert len(collector.rows(1)) == 0
    late = threading.Timer(0.2, lambda: sender.send(rows(0, 1).tobytes(), state(1, has_ended=True)))
    late.start()
    collector.collect_all(timeout_s=60.0)
    late.join()
    assert len(collector.rows(1)) == 1


def test_rank_that_sends_nothing_any_more_stands_still() -> None:
    store = dist.HashStore()
    collector = StepCollector(store, 4, period_s=0.05)
    StepSender(store, 1).send(b"", state(1))
    StepSender(store, 2).send(b"", state(2, has_ended=True))
    collector.collect()
    assert collector.progress()[1].idle_s < 5.0
    time.sleep(0.2)
    collector.collect()
    progress = collector.progress()
    assert set(progress) == {1, 3}, "rank 2 has ended"
    assert progress[1].is_silent
    assert (progress[1].line, progress[3].line) == (SILENT, BEFORE_FIRST_BATCH)
    assert min(each.idle_s for each in progress.values()) >= 0.2


def test_failed_rank_waits_until_rank_0_has_seen_it_but_not_for_ever() -> None:
    store = dist.HashStore()
    rank0, rank1 = CoordinatorLink(store, records.environment(2).placements[0]), FollowerLink(store, period_s=60.0)
    assert not rank0.has_failed_rank()
    rank1.report_failure(timeout_s=0.1)
    assert rank0.has_failed_rank()
    answer = threading.Timer(0.2, rank0.confirm_failure)
    answer.start()
    rank1.report_failure(timeout_s=60.0)
    answer.join()
    assert not rank0.has_failed_rank()


def test_failed_rank_does_not_wait_for_a_rank_0_whose_process_has_ended() -> None:
    rank1 = FollowerLink(dist.HashStore(), period_s=60.0)
    rank1.report_failure(600.0, has_rank0_process_ended=lambda: True)  # else the timeout of the test ends it


def test_other_ranks_know_that_rank_0_has_ended_or_is_silent() -> None:
    store = dist.HashStore()
    rank0, rank1 = CoordinatorLink(store, records.environment(2).placements[0]), FollowerLink(store, period_s=0.05)
    time.sleep(0.2)
    silent = rank1.progress()
    assert silent is not None
    assert (silent.line, silent.is_silent, silent.idle_s >= 0.2) == (BEFORE_FIRST_BATCH, True, True)
    rank0.send(RankProgress(steps=40), "record.json", has_ended=False)
    rank1.receive()
    assert rank1.progress() is None
    assert rank1.state is not None
    assert (rank1.state.record_path, rank1.has_ended) == ("record.json", False)
    time.sleep(0.2)
    silent = rank1.progress()
    assert silent is not None
    assert (silent.steps, silent.line) == (40, SILENT)
    rank0.send(RankProgress(steps=40), "record.json", has_ended=True)
    rank1.receive()
    time.sleep(0.2)
    assert (rank1.has_ended, rank1.progress()) == (True, None)
    assert [FollowerLink(store, 1.0).claim_reporter() for _ in range(3)] == [True, False, False]
