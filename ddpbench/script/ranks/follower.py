"""What a rank above 0 does while the script runs: it sends its steps and its state, and ends with the others if ranks hang."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

from torch import distributed as dist

from ddpbench.bench.journal import close_journal_file
from ddpbench.bench.terminator import exit_at_once
from ddpbench.distributed.exit_status import write_exit_status
from ddpbench.machine.rank_env import RankEnv
from ddpbench.record.errors import BenchError, ExitCode
from ddpbench.record.record import Fault
from ddpbench.record.request import WatchOptions
from ddpbench.script.ranks.coordinator import ABORT_TIMEOUT_S, ReportSink
from ddpbench.script.ranks.deaths import kill_process, wait_for_death, watch_processes
from ddpbench.script.ranks.gather import StepSender, exchange_period_s
from ddpbench.script.ranks.link import FollowerLink
from ddpbench.script.ranks.observation import Observation
from ddpbench.script.ranks.progress import ProgressReader, RankProgress
from ddpbench.script.ranks.standstill import dead_rank, find_standstill


class Follower:
    """A rank above 0."""

    def __init__(
        self,
        observation: Observation,
        rank_env: RankEnv,
        options: WatchOptions,
        reader: ProgressReader,
        sink: ReportSink,
        wake: threading.Event,
        store: dist.Store,
    ) -> None:
        self._observation, self._rank_env, self._options = observation, rank_env, options
        self._reader, self._sink, self._wake = reader, sink, wake
        self.tick_s = exchange_period_s(options)
        self._sender, self._link = StepSender(store, rank_env.rank), FollowerLink(store, self.tick_s)
        self._has_met_rank0 = self._watches_rank0_process = False
        self._has_rank0_process_ended = self._has_reported_death = False

    def tick(self) -> None:
        self._report_death_of_rank0()  # first: the launcher is about to end this rank, too
        progress = self._reader.read()
        self._sender.send(self._observation.take_rows(), self._observation.state(progress))
        self._link.receive()
        if self._link.is_aborted():
            self.finish("", 0.0)
            self._link.wait_for_abort(ABORT_TIMEOUT_S)
            exit_at_once(ExitCode.HUNG)
        self._watch_rank0()
        if self._options.hang_timeout:
            self._end_if_hung(progress, self._options.hang_timeout)

    def finish(self, fault: str, timeout_s: float) -> None:
        if fault and self._watches_rank0_process:
            wait_for_death(lambda: self._has_rank0_process_ended)
        self._report_death_of_rank0()
        state = self._observation.state(self._reader.read(), has_ended=True, fault=fault)
        self._sender.send(self._observation.take_rows(), state)
        if fault:
            self._link.report_failure(timeout_s, lambda: self._has_rank0_process_ended)

    def _watch_rank0(self) -> None:
        rank0 = self._link.state
        if rank0 and not self._has_met_rank0:
            self._has_met_rank0, self._watches_rank0_process = True, rank0.placement.host == self._observation.host
            if self._watches_rank0_process:
                watch_processes({0: rank0.placement.pid}, self._on_rank0_end)

    def _on_rank0_end(self, _: int) -> None:
        self._has_rank0_process_ended = True
        self._wake.set()

    def _report_death_of_rank0(self) -> None:
        """Report in place of rank 0, once, if its process has ended before its script."""
        if self._has_reported_death or not self._has_rank0_process_ended:
            return
        self._has_reported_death = True
        self._link.receive()  # whether the script had ended
        rank0 = self._link.state
        if rank0 and not rank0.has_ended:
            fault = dead_rank(0, rank0.placement.host, None)
            self._report(BenchError(fault.message, fault.hint), fault)

    def _end_if_hung(self, progress: RankProgress, hang_timeout_s: float) -> None:
        """End this rank if it stands still, and rank 0 cannot do that: it has ended, or sends nothing."""
        rank, rank0 = self._rank_env.rank, self._link.progress()
        if not self._link.has_ended and rank0 is None:
            return
        known = {rank: progress} if rank0 is None else {0: rank0, rank: progress}
        hosts = {rank: self._observation.host, **({0: self._link.state.placement.host} if self._link.state else {})}
        if hung := find_standstill(known, hosts, {}, hang_timeout_s):
            try:
                self._report(hung.error, hung.fault)
                if rank0 and self._link.state and self._watches_rank0_process and not self._has_rank0_process_ended:
                    kill_process(self._link.state.placement.pid)
            finally:
                exit_at_once(hung.error.exit_code)

    def _report(self, error: BenchError, fault: Fault) -> None:
        """Print ``error`` and close the record in place of rank 0, unless another rank does."""
        rank0 = self._link.state
        if not self._link.claim_reporter():
            return
        self._sink.print_error(error)
        path = Path(rank0.record_path) if rank0 and rank0.record_path else None
        write_exit_status(self._rank_env, error, error.exit_code, path)
        if rank0 and path:
            with suppress(BenchError, OSError):  # its file system may be that of another host
                close_journal_file(path, error.status, fault, [rank0.placement])
