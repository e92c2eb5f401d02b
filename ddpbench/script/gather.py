"""Brings the steps of all ranks to rank 0, through the launcher's store: never by a collective, which the script might be in as well."""

from __future__ import annotations

import time

import msgspec
import numpy as np
from torch import distributed as dist

from ddpbench.record.environment import RankPlacement, Software
from ddpbench.record.io import encode_json
from ddpbench.record.trace import Memory
from ddpbench.script.rows import ROW_LENGTH, Rows, to_rows

POLL_S = 0.05


class RankState(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank publishes besides its steps. Each one replaces the one before."""

    placement: RankPlacement
    software: Software
    memory: Memory = Memory()
    chunks: int = 0  # of steps, that it has sent
    has_ended: bool = False


class StepSender:
    """Sends the steps of this rank, in chunks."""

    def __init__(self, store: dist.Store, rank: int) -> None:
        self._store, self._rank, self._chunks = store, rank, 0

    def send(self, rows: bytes, state: RankState) -> None:
        if rows:
            self._store.set(_chunk_key(self._rank, self._chunks), rows)  # type: ignore[arg-type]  # bytes, too
            self._chunks += 1
        self._store.set(_state_key(self._rank), encode_json(msgspec.structs.replace(state, chunks=self._chunks)).decode())


class StepCollector:
    """On rank 0: the steps and the states of the other ranks, as far as they have arrived."""

    def __init__(self, store: dist.Store, world_size: int) -> None:
        self._store = store
        self.states: dict[int, RankState] = {}
        self._chunks: dict[int, list[Rows]] = {rank: [] for rank in range(1, world_size)}

    def collect(self) -> None:
        """Fetch what has arrived, and delete it from the store."""
        for rank, chunks in self._chunks.items():
            if not self._store.check([_state_key(rank)]):
                continue
            self.states[rank] = state = msgspec.json.decode(self._store.get(_state_key(rank)), type=RankState)
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

    def rows(self, rank: int) -> Rows:
        """The steps of ``rank`` so far."""
        return np.concatenate([np.empty((0, ROW_LENGTH)), *self._chunks[rank]])


def _chunk_key(rank: int, number: int) -> str:
    return f"watch/{rank}/{number}"


def _state_key(rank: int) -> str:
    return f"watch/{rank}/state"
