"""A thread that reports while the script runs. Only this thread waits for the store or a disk, so that neither can hold up the script."""

from __future__ import annotations

import threading
from typing import Protocol

from ddpbench.distributed.rank_store import open_store
from ddpbench.machine.rank_env import RankEnv
from ddpbench.record.record import Fault, Record
from ddpbench.record.request import WatchOptions
from ddpbench.script.ranks.coordinator import Coordinator, ReportSink
from ddpbench.script.ranks.follower import Follower
from ddpbench.script.ranks.observation import Observation
from ddpbench.script.ranks.progress import ProgressReader

CONNECT_TIMEOUT_S = 10.0

FINISH_TIMEOUT_S, FINISH_TIMEOUT_AFTER_ERROR_S = 10.0, 2.0
"""Seconds that a rank waits at its end for others. After an error of rank 0 they may wait for it for ever, and send nothing."""


class RankRole(Protocol):
    """What the thread does on one rank."""

    tick_s: float  # between two calls of ``tick``

    def tick(self) -> None: ...

    def finish(self, fault: str, timeout_s: float) -> Record | None:
        """The script has ended, by ``fault`` unless that is empty. Returns the record on rank 0."""


class Reporter:
    """The thread of one rank, from the first batch until ``finish``."""

    def __init__(self, observation: Observation, rank_env: RankEnv, options: WatchOptions, sink: ReportSink) -> None:
        self._observation, self._rank_env, self._options, self._sink = observation, rank_env, options, sink
        self._reader = ProgressReader(observation.observer, options.hang_timeout, shows_code=not sink.is_redacted)
        self._role: RankRole | None = None
        self._wake, self._is_stopped = threading.Event(), False
        self._fault, self._timeout_s = "", FINISH_TIMEOUT_S
        self._record: Record | None = None
        self._problem = ""  # the error that has ended the thread early
        self._thread = threading.Thread(target=self._run, name="ddpbench-watch", daemon=True)
        self._thread.start()

    def finish(self, fault: str) -> Record | None:
        """Stop the thread; returns the final record on rank 0, or what it is without the other ranks if they cannot be reached.

        ``fault`` is what has ended the script, if it has failed.
        """
        self._fault = fault
        if fault:
            self._timeout_s = FINISH_TIMEOUT_AFTER_ERROR_S if self._rank_env.is_rank0 else FINISH_TIMEOUT_S
        elif not self._observation.observer.updates:
            self._timeout_s = 0.0  # nothing is trained: other ranks may do something else
        self._is_stopped = True
        self._wake.set()
        self._thread.join(CONNECT_TIMEOUT_S + self._timeout_s)
        if self._rank_env.is_rank0 and self._record is None:
            return self._observation.own_record()
        return self._record

    @property
    def missing(self) -> Fault | None:
        """Why the record lacks other ranks; None if it does not."""
        role = self._role
        problem = self._problem or (role.problem if isinstance(role, Coordinator) else "")
        return Fault(message=problem, hint="the figures are those of rank 0") if problem else None

    @property
    def peer_fault(self) -> Fault | None:
        """Why another rank has ended before this one, on rank 0."""
        return self._role.peer_fault if isinstance(self._role, Coordinator) else None

    def _run(self) -> None:
        try:
            role = self._role = self._connect()
            role.tick()
            while not self._is_stopped:
                if self._wake.wait(role.tick_s):
                    self._wake.clear()
                if not self._is_stopped:
                    role.tick()
            self._record = role.finish(self._fault, self._timeout_s)
        except Exception as problem:  # whatever it is, the script must not end with it
            self._problem = f"{type(problem).__name__}: {problem}".partition("\n")[0]

    def _connect(self) -> RankRole:
        """Rank 0 or a follower, with a connection to the launcher's store if there are several."""
        rank_env, arguments = self._rank_env, (self._observation, self._rank_env, self._options, self._reader, self._sink, self._wake)
        store = open_store(rank_env, CONNECT_TIMEOUT_S) if rank_env.world_size > 1 else None
        if rank_env.is_rank0:
            return Coordinator(*arguments, store)
        assert store is not None, "a rank above 0 is one of several"
        return Follower(*arguments, store)
