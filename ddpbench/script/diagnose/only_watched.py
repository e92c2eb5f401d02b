"""A diagnosis of a script to which no other batches can be given: it is watched until there is enough for a page, then ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic

import msgspec

from ddpbench.record.config import Config
from ddpbench.record.record import Record
from ddpbench.record.roles import BASELINE
from ddpbench.record.script import OnlyWatchedReason
from ddpbench.script.diagnose.stage import Stage, end_stage
from ddpbench.script.observe.rounds import ROUND_MS, WARMUP_STEPS
from ddpbench.script.observe.rows import Rows
from ddpbench.script.ranks.gather import RankState
from ddpbench.script.ranks.observation import Observation

ENOUGH_ROUNDS = 5
CHECK_S = 2.0
"""Seconds between two looks whether that is enough."""

MAX_UPDATES = 50_000
"""Steps of one rank that the launcher's store carries at the end: some megabytes."""


class WatchSchedule:
    """Decides on rank 0 after which update the script ends. The other ranks ask at the same updates.

    ``num_rounds`` returns the number of rounds so far.
    """

    round_text = ""

    def __init__(self, end_s: float, num_rounds: Callable[[], int]) -> None:
        self._end_s, self._num_rounds = end_s, num_rounds
        self._begin_s = monotonic()
        self._last: tuple[int, float] | None = None  # number of updates, and when they had been made

    def next_stage(self, updates: int) -> Stage:
        """The stage that begins after so many updates."""
        now_s, before = monotonic(), self._last
        self._last = updates, now_s
        if before is None:
            return Stage(kind="watch", first=updates, batches=WARMUP_STEPS)
        update_s = (now_s - before[1]) / (updates - before[0])
        if self._has_enough(now_s) or now_s + update_s > self._end_s or updates >= MAX_UPDATES:
            return end_stage(updates, last_update=updates)
        batches = int(min(CHECK_S, self._end_s - now_s) / max(update_s, 1e-6))
        return Stage(kind="watch", first=updates, batches=min(max(1, batches), MAX_UPDATES))

    def _has_enough(self, now_s: float) -> bool:
        """Counting takes some milliseconds: not before there can be so many."""
        return now_s - self._begin_s > ENOUGH_ROUNDS * ROUND_MS / 1000 and self._num_rounds() >= ENOUGH_ROUNDS


def watched_record(
    observation: Observation, states: Mapping[int, RankState], rows_of_rank: Sequence[Rows], requested: Config, reason: OnlyWatchedReason
) -> Record:
    """The record of a script that was only watched, for ``reason``."""
    record = observation.record(states, list(rows_of_rank))
    assert record.script is not None, "a script was observed"
    record.script = msgspec.structs.replace(record.script, only_watched=reason)
    asked = {"time_limit": requested.time_limit, "fail_if_data_wait": requested.fail_if_data_wait}
    record.role, record.config = BASELINE, msgspec.structs.replace(record.config, **asked)
    return record
