"""Carries stages from rank 0 to the other ranks, and their measurements back, through the launcher's store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
from torch import distributed as dist

from ddpbench.distributed.rank_store import RankStore
from ddpbench.machine.rank_env import RankEnv
from ddpbench.record.environment import RankPlacement
from ddpbench.record.errors import BenchError
from ddpbench.record.io import encode_json
from ddpbench.record.text import numbered
from ddpbench.script.diagnose.stage import RankResults, Stage

Found = TypeVar("Found")

POLL_S = 0.002

DEADLINE_S = 60.0
"""How much longer than expected a rank may take to reach the end of a stage, before every rank gives up."""


class StageChannel:
    """The connection of one rank. No wait in it is endless, since the script's own collectives may wait for the rank that waits here."""

    def __init__(self, store: dist.Store, rank_env: RankEnv) -> None:
        self._store, self._rank_env = RankStore(store, rank_env), rank_env

    def publish_placement(self, placement: RankPlacement) -> None:
        """Publish where this rank runs."""
        self._store.set(f"placement/{placement.rank}", encode_json(placement).decode())

    def placements(self) -> list[RankPlacement]:
        """Where the ranks run, as far as they have published it."""
        texts = (self._store.try_get(f"placement/{rank}") for rank in range(self._rank_env.world_size))
        return [msgspec.json.decode(text, type=RankPlacement) for text in texts if text]

    def publish(self, number: int, stage: Stage) -> None:
        """Publish stage ``number``; only rank 0 calls this."""
        self._store.set(f"stage/{number}", encode_json(stage).decode())

    def receive(self, number: int, expected_s: float) -> Stage:
        """Stage ``number``, which rank 0 publishes when it gets there. Raises BenchError after a deadline."""
        text = self._wait_for(lambda: self._store.try_get(f"stage/{number}"), DEADLINE_S + expected_s)
        if text is None:
            raise BenchError(f"rank 0 did not end stage {number - 1} of the diagnosis within {DEADLINE_S:.0f} s of this rank")
        return msgspec.json.decode(text, type=Stage)

    def report_problem(self, problem: str) -> None:
        """Tell rank 0 that this rank gives up, so that it ends the diagnosis on all ranks."""
        self._store.set("problem", problem)

    @property
    def problem(self) -> str:
        """Why a rank has given up; empty if none has."""
        return self._store.try_get("problem") or ""

    def send_results(self, results: RankResults) -> None:
        """Publish what this rank has measured so far, in place of what it published before."""
        self._store.set(f"results/{self._rank_env.rank}", encode_json(results).decode())

    def receive_results(self, stage: int, timeout_s: float = DEADLINE_S) -> dict[int, RankResults]:
        """What every other rank has measured until ``stage``. Raises BenchError, which names missing ranks, after a deadline."""
        found: dict[int, RankResults] = {}
        others = range(1, self._rank_env.world_size)

        def all_results() -> dict[int, RankResults] | None:
            for rank in others:
                if rank not in found and (text := self._store.try_get(f"results/{rank}")):
                    results = msgspec.json.decode(text, type=RankResults)
                    if results.stage >= stage:
                        found[rank] = results
            return found if len(found) == len(others) else None

        if self._wait_for(all_results, timeout_s) is None:
            missing = numbered("rank", [rank for rank in others if rank not in found])
            raise BenchError(f"{missing} did not reach stage {stage} of the diagnosis within {timeout_s:.0f} s of rank 0")
        return found

    def _wait_for(self, poll: Callable[[], Found | None], timeout_s: float) -> Found | None:
        end_s = time.monotonic() + timeout_s
        while (found := poll()) is None and time.monotonic() < end_s:
            time.sleep(POLL_S)
        return found
