"""Brings the steps of all ranks to rank 0, through the launcher's store: never by a collective, which the script might be in as well."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
import numpy as np
from torch import distributed as dist

from ddpbench.record.environment import RankPlacement, Software
from ddpbench.record.io import encode_json
from ddpbench.record.ranges import Count
from ddpbench.record.request import WatchOptions
from ddpbench.record.trace import Memory
from ddpbench.script.observe.rows import ROW_LENGTH, Rows, to_rows
from ddpbench.script.ranks.progress import RankProgress

POLL_S = 0.02

EXCHANGE_S = 5.0
"""Seconds between two messages of a rank."""

SILENT_PERIODS = 3
"""Messages that may be missing before the process of a rank is taken to stand still as a whole."""

BEFORE_FIRST_BATCH = "its code before the first batch"
SILENT = "a stopped process, or a call that holds Python's lock"


def exchange_period_s(options: WatchOptions) -> float:
    """Seconds between two messages: often enough for the lines and the timeout of ``options``."""
    return min([EXCHANGE_S, *(period_s / 4 for period_s in (options.every_s, options.hang_timeout) if period_s)])


class RankState(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank publishes besides its steps. Each one replaces the one before."""

    placement: RankPlacement
    software: Software
    script: str = ""
    memory: Memory = Memory()
    progress: RankProgress = RankProgress()
    messages: Count = 0  # that it has sent
    chunks: Count = 0  # of steps, that it has sent
    has_ended: bool = False
    fault: str = ""  # what has ended its script, if it has failed


class StepSender:
    """Sends the steps of this rank, in chunks."""

    def __init__(self, store: dist.Store, rank: int) -> None:
        self._store, self._rank, self._chunks, self._messages = store, rank, 0, 0

    def send(self, rows: bytes, state: RankState) -> None:
        if rows:
            self._store.set(_chunk_key(self._rank, self._chunks), rows)  # type: ignore[arg-type]  # bytes, too
            self._chunks += 1
        self._messages += 1
        state = msgspec.structs.replace(state, messages=self._messages, chunks=self._chunks)
        self._store.set(_state_key(self._rank), encode_json(state).decode())


class StepCollector:
    """On rank 0: the steps and the states of the other ranks, as far as they have arrived."""

    def __init__(self, store: dist.Store, world_size: int, period_s: float = EXCHANGE_S) -> None:
        self._store, self._period_s = store, period_s
        self.states: dict[int, RankState] = {}
        self._chunks: dict[int, list[Rows]] = {rank: [] for rank in range(1, world_size)}
        self._heard_s = {rank: time.monotonic() for rank in self._chunks}

    def collect(self) -> None:
        """Fetch what has arrived, and delete it from the store."""
        for rank, chunks in self._chunks.items():
            if not self._store.check([_state_key(rank)]):
                continue
            before, state = self.states.get(rank), msgspec.json.decode(self._store.get(_state_key(rank)), type=RankState)
            if before is None or state.messages != before.messages:
                self._heard_s[rank] = time.monotonic()
            self.states[rank] = state
            for number in range(len(chunks), state.chunks):
                key = _chunk_key(rank, number)
                chunks.append(to_rows(self._store.get(key)))
                self._store.delete_key(key)

    def collect_all(self, timeout_s: float) -> None:
        """Fetch until every rank has ended, at most for ``timeout_s``."""
        end_s = time.monotonic() + timeout_s
        self.collect()
        while not all(self.has_ended(rank) for rank in self._chunks) and time.monotonic() < end_s:
            time.sleep(POLL_S)
            self.collect()

    def has_ended(self, rank: int) -> bool:
        return rank in self.states and self.states[rank].has_ended

    def progress(self) -> Mapping[int, RankProgress]:
        """The progress of the ranks that have not ended. One that sends nothing any more stands still."""
        now_s, found = time.monotonic(), {}
        for rank in self._chunks:
            state, silent_s = self.states.get(rank), now_s - self._heard_s[rank]
            if state is None:
                found[rank] = RankProgress(idle_s=silent_s, line=BEFORE_FIRST_BATCH)
            elif not state.has_ended:
                is_silent, progress = silent_s >= SILENT_PERIODS * self._period_s, state.progress
                line = SILENT if is_silent else progress.line
                found[rank] = msgspec.structs.replace(progress, idle_s=progress.idle_s + silent_s, is_silent=is_silent, line=line)
        return found

    def rows(self, rank: int) -> Rows:
        """The steps of ``rank`` so far."""
        return np.concatenate([np.empty((0, ROW_LENGTH)), *self._chunks[rank]])


def _chunk_key(rank: int, number: int) -> str:
    return f"watch/{rank}/{number}"


def _state_key(rank: int) -> str:
    return f"watch/{rank}/state"
