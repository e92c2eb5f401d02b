"""A thread that reports while the script runs: steps to rank 0, a first line after half a minute, and the record on disk.

Only this thread waits for the store or a disk, so that neither can hold up the script.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ddpbench.distributed.rank_store import open_store
from ddpbench.machine.rank_env import RankEnv
from ddpbench.machine.step_timer import DATA
from ddpbench.record.record import Record
from ddpbench.record.text import pluralize
from ddpbench.report.format import format_percent, format_rounded
from ddpbench.script.gather import StepCollector, StepSender
from ddpbench.script.observation import Observation
from ddpbench.script.rounds import step_ms
from ddpbench.script.rows import FIRST_PHASE, SAMPLES

SEND_S = 5.0
"""Seconds between two sends of a rank's steps."""

FIRST_LINE_S = 30.0
"""Seconds of training until the first line."""

SAVE_S = 30.0
"""Seconds between two saves of the record."""

CONNECT_TIMEOUT_S = 10.0

COLLECT_TIMEOUT_S, COLLECT_TIMEOUT_AFTER_ERROR_S = 10.0, 2.0
"""Seconds that rank 0 waits at its end for the other ranks to end. After an error they may wait for rank 0 for ever."""


class Reporter:
    """The thread of one rank, from the first step until ``finish``. ``save`` stores the record so far; only rank 0 calls it."""

    def __init__(
        self, observation: Observation, rank_env: RankEnv, print_line: Callable[[str], None], save: Callable[[Record], None]
    ) -> None:
        self._observation, self._rank_env = observation, rank_env
        self._print_line, self._save = print_line, save
        self._sender: StepSender | None = None
        self._collector: StepCollector | None = None
        self._stop = threading.Event()
        self._timeout_s = COLLECT_TIMEOUT_S
        self._record: Record | None = None
        self.problem = ""  # why the thread has ended early, or why ranks are missing
        self._thread = threading.Thread(target=self._run, name="ddpbench-watch", daemon=True)
        self._thread.start()

    def finish(self, after_error: bool) -> Record | None:
        """Stop the thread; returns the final record on rank 0, or what it is without the other ranks if they cannot be reached."""
        if after_error:
            self._timeout_s = COLLECT_TIMEOUT_AFTER_ERROR_S
        self._stop.set()
        self._thread.join(CONNECT_TIMEOUT_S + self._timeout_s)
        if self._rank_env.is_rank0 and self._record is None:
            return self._observation.own_record()
        return self._record

    def _run(self) -> None:
        try:
            self._connect()
            begin_s = last_save_s = time.monotonic()
            has_printed = False
            while not self._stop.wait(SEND_S):
                now_s = time.monotonic()
                self._exchange(has_ended=False)
                if not has_printed and now_s - begin_s >= FIRST_LINE_S:
                    has_printed = self._print_first_line()
                if self._rank_env.is_rank0 and now_s - last_save_s >= SAVE_S:
                    self._save(self._build())
                    last_save_s = now_s
            self._exchange(has_ended=True)
            if self._rank_env.is_rank0:
                self._record = self._build(has_ended=True)
        except Exception as problem:  # whatever it is, the script must not end with it
            self.problem = f"{type(problem).__name__}: {problem}".partition("\n")[0]

    def _connect(self) -> None:
        if self._rank_env.world_size == 1:
            return
        store = open_store(self._rank_env, CONNECT_TIMEOUT_S)
        if self._rank_env.is_rank0:
            self._collector = StepCollector(store, self._rank_env.world_size)
        else:
            self._sender = StepSender(store, self._rank_env.rank)

    def _exchange(self, has_ended: bool) -> None:
        if self._sender:
            self._sender.send(self._observation.take_rows(), self._observation.state(has_ended))
        elif self._collector and has_ended:
            self._collector.collect_all(self._timeout_s)
        elif self._collector:
            self._collector.collect()

    def _build(self, has_ended: bool = False) -> Record:
        """The record of all ranks; of rank 0 alone if a rank has sent nothing."""
        collector, others = self._collector, range(1, self._rank_env.world_size)
        missing = [rank for rank in others if collector is None or rank not in collector.states]
        if collector is None or missing:
            if has_ended and missing:
                self.problem = f"{pluralize(len(missing), 'rank')} sent no measurements"
            return self._observation.own_record()
        states = {0: self._observation.state(has_ended), **collector.states}
        return self._observation.record(states, [self._observation.rows(), *(collector.rows(rank) for rank in others)])

    def _print_first_line(self) -> bool:
        """Print the throughput so far on rank 0. Returns False if there is nothing to print yet."""
        rows, ranks = self._observation.rows(), self._rank_env.world_size
        if not self._rank_env.is_rank0 or not len(rows):
            return not self._rank_env.is_rank0
        total_ms, samples = step_ms(rows), ranks * float(rows[:, SAMPLES].sum())
        wait = format_percent(float(rows[:, FIRST_PHASE + DATA].sum()) / total_ms, 2)
        on = f" on rank 0 of {ranks}" if ranks > 1 else ""
        self._print_line(f"ddpbench watch: {format_rounded(1000 * samples / total_ms)} samples/s so far, data wait {wait} of each step{on}")
        return True
