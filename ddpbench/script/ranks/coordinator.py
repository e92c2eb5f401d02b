"""What rank 0 does while the script runs: it collects, prints, saves, and looks for ranks that stand still, fail or die."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Protocol

from torch import distributed as dist

from ddpbench.bench.terminator import exit_at_once
from ddpbench.machine.rank_env import RankEnv
from ddpbench.record.errors import BenchError
from ddpbench.record.record import Fault, Record
from ddpbench.record.request import WatchOptions
from ddpbench.record.text import numbered, pluralize
from ddpbench.script.ranks.deaths import kill_process, wait_for_death, watch_processes
from ddpbench.script.ranks.gather import RankState, StepCollector, exchange_period_s
from ddpbench.script.ranks.link import CoordinatorLink
from ddpbench.script.ranks.observation import Observation
from ddpbench.script.ranks.progress import ProgressReader, Totals
from ddpbench.script.ranks.standstill import Standstill, dead_rank, find_standstill
from ddpbench.script.ranks.state_line import state_line

FAILURE_S = 0.5
"""Seconds between two looks for a rank that has failed."""

FIRST_LINE_S = 30.0
"""Seconds until the first line."""

SAVE_S = 30.0
"""Seconds between two saves of the record. The first is after the first exchange."""

ABORT_TIMEOUT_S = 3.0
"""Seconds that the other ranks get to prepare their end."""


class ReportSink(Protocol):
    """Where the reports of a rank go."""

    record_path: str  # empty until the record is saved
    is_quiet: bool  # no first line
    is_redacted: bool  # no lines of the script's code

    def print_line(self, text: str) -> None: ...

    def print_error(self, error: BenchError) -> None: ...

    def save(self, record: Record, fault: Fault | None = None) -> None:
        """Save the record so far; with ``fault`` as one that has failed."""

    def mark_failed(self, fault: Fault) -> None:
        """Give the last saved record ``fault``, at once: a launcher may be about to end this process."""

    def abort(self, record: Record, error: BenchError, fault: Fault) -> bool:
        """Print ``error`` and the page, and save the record. Returns False if the script is at its end already, and does nothing then."""


class Coordinator:
    """Rank 0, also of a script with a single rank: then ``store`` is None."""

    def __init__(
        self,
        observation: Observation,
        rank_env: RankEnv,
        options: WatchOptions,
        reader: ProgressReader,
        sink: ReportSink,
        wake: threading.Event,
        store: dist.Store | None,
    ) -> None:
        self._observation, self._world_size, self._options = observation, rank_env.world_size, options
        self._reader, self._sink, self._wake = reader, sink, wake
        self._placement = observation.state(reader.read()).placement
        exchange_s = exchange_period_s(options)
        self._collector = StepCollector(store, rank_env.world_size, exchange_s) if store else None
        self._link = CoordinatorLink(store, self._placement) if store else None
        self.tick_s = min(FAILURE_S, exchange_s) if store else exchange_s
        self._exchange_timer, self._line_timer = Timer(exchange_s, first_s=0.0), Timer(options.every_s or FIRST_LINE_S)
        self._save_timer = Timer(SAVE_S, first_s=exchange_s)
        self._totals_at_line: dict[int, Totals] = {}
        self._has_printed = sink.is_quiet
        self._watched_processes: set[int] = set()  # ranks on this host
        self._ended_processes: set[int] = set()
        self._has_new_end = False  # of a process
        self._reported_standstill: tuple[int, tuple[int, int]] | None = None
        self.peer_fault: Fault | None = None
        self.problem = ""  # why the record lacks other ranks

    def tick(self) -> None:
        if self._link and (self._has_new_end or self._link.has_failed_rank()):
            self._exchange(has_ended=False)
            self._report_failures()
        if self._exchange_timer.is_due():
            self._exchange(has_ended=False)
            self._report_standstill()
        if (self._options.every or not self._has_printed) and self._line_timer.is_due():
            self._print_state()
        if self._save_timer.is_due():
            self._sink.save(self._build(), self.peer_fault)

    def finish(self, fault: str, timeout_s: float) -> Record:
        if self._collector and self._link:
            self._link.send(self._reader.read(), self._sink.record_path, has_ended=True)
            if fault and not self.peer_fault:
                self._report_death_of_peer()
            self._collector.collect_all(timeout_s)
            if not fault and not self.peer_fault:
                self.peer_fault = self._find_failure()
            self.problem = self._missing_ranks() or self._different_scripts()
            if uneven := self._uneven_ranks():
                self._sink.print_line(f"ddpbench: note: {uneven}")
        return self._build(has_ended=True)

    # the other ranks

    @property
    def _states(self) -> Mapping[int, RankState]:
        """What the other ranks have sent."""
        return self._collector.states if self._collector else {}

    def _exchange(self, has_ended: bool) -> None:
        if self._collector and self._link:
            self._link.send(self._reader.read(), self._sink.record_path, has_ended)
            self._collector.collect()
            self._watch_processes()

    def _build(self, has_ended: bool = False) -> Record:
        """The record of all ranks; of rank 0 alone if a rank has sent nothing."""
        collector, others = self._collector, range(1, self._world_size)
        if collector is None or self._missing_ranks():
            return self._observation.own_record()
        states = {0: self._observation.state(self._reader.read(), has_ended), **collector.states}
        return self._observation.record(states, [self._observation.rows(), *(collector.rows(rank) for rank in others)])

    def _missing_ranks(self) -> str:
        missing = self._world_size - 1 - len(self._states)
        return f"{pluralize(missing, 'rank')} sent no measurements" if missing else ""

    def _different_scripts(self) -> str:
        own = self._observation.name
        other = next((rank for rank, state in self._states.items() if state.script != own), None)
        return f"ranks run different scripts: rank 0 {own}, rank {other} {self._states[other].script}" if other else ""

    def _uneven_ranks(self) -> str:
        """Which ranks had other numbers of batches when their scripts ended; empty if none had."""
        own = self._reader.read().steps
        others = {rank: state.progress.steps for rank, state in self._states.items() if state.has_ended and state.progress.steps != own}
        if not others:
            return ""
        rank, steps = next(iter(others.items()))
        more = f", and {numbered('rank', list(others)[1:])} differ, too" if len(others) > 1 else ""
        return f"ranks made different numbers of steps: rank 0 {own:,}, rank {rank} {steps:,}{more}"

    # failures

    def _watch_processes(self) -> None:
        new = {
            rank: state.placement.pid
            for rank, state in self._states.items()
            if rank not in self._watched_processes and state.placement.host == self._placement.host
        }
        self._watched_processes.update(new)
        if new:
            watch_processes(new, self._on_process_end)

    def _on_process_end(self, rank: int) -> None:
        self._ended_processes.add(rank)
        self._has_new_end = True
        self._wake.set()

    def _report_death_of_peer(self) -> None:
        """The script has failed, perhaps because another rank has died."""
        if wait_for_death(lambda: self._has_new_end):
            self._exchange(has_ended=True)
            self._report_failures()

    def _report_failures(self) -> None:
        self._has_new_end = False
        fault = self._find_failure()
        if fault and not self.peer_fault:
            self.peer_fault = fault
            self._sink.print_error(BenchError(fault.message, fault.hint))
            self._sink.mark_failed(fault)
            self._sink.save(self._build(), fault)
        if fault and self._link:
            self._link.confirm_failure()

    def _find_failure(self) -> Fault | None:
        """The first rank whose script has failed, or whose process has ended before its script."""
        for rank, state in sorted(self._states.items()):
            host, steps = state.placement.host, state.progress.steps
            if state.has_ended and state.fault:
                return Fault(message=f"rank {rank} ({host}) ended with {state.fault}", rank=rank, step=steps)
            if not state.has_ended and rank in self._ended_processes:
                return dead_rank(rank, host, state.progress)
        return None

    # lines

    def _print_state(self) -> None:
        progress = {0: self._reader.read(), **{rank: state.progress for rank, state in self._states.items()}}
        if self._options.every or progress[0].totals.steps:
            self._sink.print_line(state_line(progress, self._totals_at_line))
            self._has_printed = True
            self._totals_at_line = {rank: each.totals for rank, each in progress.items()}

    def _report_standstill(self) -> None:
        if (timeout_s := self._options.hang_timeout) and (hung := self._find_standstill(timeout_s)):
            self._abort(hung)
        found = self._find_standstill()
        key = (found.rank, found.progress.position) if found else None
        if found and key != self._reported_standstill:
            self._sink.print_line(f"ddpbench: note: {found.note}")
        self._reported_standstill = key

    def _find_standstill(self, hang_timeout_s: float | None = None) -> Standstill | None:
        hosts = {0: self._placement.host} | {rank: state.placement.host for rank, state in self._states.items()}
        ended = {rank: state.progress.steps for rank, state in self._states.items() if state.has_ended or rank in self._ended_processes}
        others = self._collector.progress() if self._collector else {}
        progress = {0: self._reader.read(), **{rank: each for rank, each in others.items() if rank not in ended}}
        return find_standstill(progress, hosts, ended, hang_timeout_s)

    def _abort(self, hung: Standstill) -> None:
        """End all ranks, unless the script has just ended."""
        if not self._sink.abort(self._build(), hung.error, hung.fault):
            return
        try:
            if self._collector and self._link:
                self._link.announce_abort()
                self._collector.collect_all(ABORT_TIMEOUT_S)
                self._kill_silent_ranks()
                self._link.abort()
        finally:
            exit_at_once(hung.error.exit_code)

    def _kill_silent_ranks(self) -> None:
        """Kill the ranks of this host that have not prepared their end: a stopped process would outlive the others."""
        for rank in self._watched_processes - self._ended_processes:
            if not self._states[rank].has_ended:
                kill_process(self._states[rank].placement.pid)


class Timer:
    """Is due every ``period_s`` seconds, for the first time after ``first_s``, by default a period; never if ``period_s`` is None."""

    def __init__(self, period_s: float | None, first_s: float | None = None) -> None:
        self._period_s = period_s
        self._due_s = time.monotonic() + (first_s if first_s is not None else period_s or 0.0)

    def is_due(self) -> bool:
        """Whether the time has come; if so, the next period begins now."""
        now_s = time.monotonic()
        if self._period_s is None or now_s < self._due_s:
            return False
        self._due_s = now_s + self._period_s
        return True
