"""Terminates a failed or interrupted run: one rank reports, the record is closed, every process exits within two seconds."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from ddpbench.bench.journal import Journal, close_journal_file
from ddpbench.distributed.exit_status import interrupted_error, write_exit_status
from ddpbench.distributed.rank_store import FailureReport, is_process_alive
from ddpbench.distributed.world import World
from ddpbench.machine.progress_marker import Position, Watchdog
from ddpbench.machine.streams import print_error
from ddpbench.record.errors import BenchError, ExitCode
from ddpbench.record.io import load
from ddpbench.record.record import Fault, Record
from ddpbench.record.text import numbered
from ddpbench.report.messages.phrases import format_rounds

GRACE_S = 1.0
"""Seconds that other ranks get to leave their stack, fault or record."""


class Terminator:
    """Ends the process of one rank. It keeps ``record_path`` itself, in case rank 0 is dead and the store unreachable."""

    def __init__(self, world: World, journal: Journal | None) -> None:
        self._world, self._store, self._journal = world, world.store, journal
        self.record_path: str | None = None
        self._lock = threading.Lock()  # a second signal waits until the first has ended the process

    def exit_interrupted(self, received: signal.Signals, show: Callable[[], None]) -> NoReturn:
        """Rank 0 prints the error with the finished rounds, closes the record and calls ``show``; every other rank just exits."""
        if self._journal is None:
            self.exit(interrupted_error(received).exit_code)
        error = interrupted_error(received, f", {format_rounds(self._journal.job.records)}")
        with self._lock:
            self._exit_after(
                error.exit_code,
                partial(print_error, error),
                partial(write_exit_status, self._world.rank_env, error, error.exit_code, self._journal.path),
                partial(self._journal.close, "interrupted", Fault(message=interrupted_error(received).message)),
                show,
            )

    def exit_if_rank_failed_or_dead(self) -> None:
        """Exit if another rank has reported why the run ends, or if a rank is dead; this rank then reports it."""
        try:
            if self._store.get_failure_report():
                self.exit_silently(ExitCode.FAILED)
            if dead_ranks := self._store.dead_ranks(self._world.placements):
                self.exit_for_dead_ranks(
                    dead_ranks,
                    "killed (SIGKILL?)",
                    f"at most {Watchdog.TICK_S:g} s before it died",
                    "possibly the kernel's OOM killer: check dmesg",
                )
        except RuntimeError:  # the store is unreachable
            if self._is_off_head_node:
                self.exit_store_unreachable()

    def exit_for_dead_ranks(self, dead_ranks: Sequence[int], what: str, when: str, hint: str) -> NoReturn:
        """Exit with an error that names the first dead rank and counts the others.

        They are no children of this process and left no report, so ``what`` happened to them is a guess.
        """
        rank, others = dead_ranks[0], len(dead_ranks) - 1
        subject = f"rank {rank} ({self._world.placements[rank].host})" + (f" and {others:,} more" if others else "")
        _, position = self._store.heartbeats().get(rank, (0, Position(0, 0, "starting")))
        error = BenchError(
            f"{subject} {what}: last heartbeat at step {position.step} ({position.phase}), {when}", f"{hint}{self.kept_rounds_hint()}"
        )
        self.exit_failed(error, Fault(message=error.message, hint=error.hint, rank=rank, step=position.step, phase=position.phase))

    def exit_store_unreachable(self) -> NoReturn:
        """Exit because the store has ended with its host. The first rank on another host reports it, unless the record is closed."""
        if not self._is_off_head_node:
            self.exit_failed(BenchError("the ranks' TCPStore is unreachable: the process that hosted it has ended"))
        time.sleep(2 * GRACE_S)  # rank 0 may still be closing the record
        with self._lock:
            head_host, path = self._world.placements[0].host, Path(self.record_path or "")
            is_reporter = self._world.rank == min(place.rank for place in self._world.placements if place.host != head_host)
            records = _load_records(path)  # empty if it is on the disk of the unreachable host
            if is_reporter and (not records or _is_unclosed(path)):
                ranks = [place.rank for place in self._world.placements if place.host == head_host]
                what = f"the processes on {head_host} ended unexpectedly:" if records else f"{head_host} is unreachable: it hosted"
                error = BenchError(
                    f"{what} {numbered('rank', ranks)} and the TCPStore",
                    f"possibly the kernel's OOM killer: check dmesg there{self.kept_rounds_hint()}",
                )
                print_error(error)
                if records:
                    close_journal_file(path, error.status, Fault(message=error.message, hint=error.hint, rank=0), self._world.placements)
            self.exit(ExitCode.FAILED)

    @property
    def _is_off_head_node(self) -> bool:
        """Whether this rank is on another host than rank 0 and the store."""
        return self._world.placement.host != self._world.placements[0].host

    def exit_failed(self, error: BenchError, fault: Fault | None = None) -> NoReturn:
        """Report the failure to the other ranks, print it if no other rank has, close the record and exit."""
        with self._lock:
            fault = fault or Fault(message=error.message, hint=error.hint)
            try:
                self._store.deregister()
                self._store.report_failure(FailureReport(error.status, fault))
                is_reporter = self._store.claim_reporter()
            except RuntimeError:  # the store has ended with the launcher, so rank 0 or the first survivor reports
                is_reporter = self._journal is not None or self._is_first_survivor()
            if is_reporter:
                print_error(error)
                write_exit_status(self._world.rank_env, error, error.exit_code)
            self._exit_after(error.exit_code, partial(self._close_record, FailureReport(error.status, fault), is_reporter))

    def _is_first_survivor(self) -> bool:
        """Whether all earlier ranks on this host are dead and the record is unclosed; a closed record means that one has reported."""
        earlier_ranks, host = self._world.placements[: self._world.rank], self._world.placement.host
        if any(is_process_alive(place.pid) for place in earlier_ranks if place.host == host):
            return False
        return _is_unclosed(Path(self.record_path or ""))

    def exit_silently(self, code: int) -> NoReturn:
        """Exit without a message, since another rank has reported; rank 0 still closes the record."""
        with self._lock:
            report = None
            with suppress(RuntimeError):  # the store may end with the rank that reported
                self._store.deregister()
                report = self._store.get_failure_report()
            if self._journal and report:
                self._exit_after(code, partial(self._journal.close, report.status, report.fault))
            self.exit(code)

    def _close_record(self, report: FailureReport, is_reporter: bool) -> None:
        if self._journal:
            self._journal.close(report.status, report.fault)
        elif is_reporter:
            time.sleep(GRACE_S)  # rank 0 closes it, if it is still alive
            path = Path(self.record_path or "")
            with suppress(BenchError, OSError):
                if _is_unclosed(path):
                    close_journal_file(path, report.status, report.fault, self._world.placements)

    def _exit_after(self, code: int, *actions: Callable[[], object]) -> NoReturn:
        """Exit after ``actions``, also if one fails: its traceback is printed."""
        try:
            for action in actions:
                action()
        except Exception:
            traceback.print_exc()
        finally:
            self.exit(code)

    def exit(self, code: int) -> NoReturn:
        exit_at_once(code)

    def kept_rounds_hint(self) -> str:
        """Hint with the path of the finished rounds, empty if there are none yet."""
        path = Path(self.record_path or "")
        return f"; finished rounds are in {os.path.relpath(path)}" if any(record.rounds for record in _load_records(path)) else ""


def exit_at_once(code: int) -> NoReturn:
    """End this process from any thread, without the interpreter's shutdown, and its child processes."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    for child in multiprocessing.active_children():  # one that hangs in its fork does not notice that its parent has ended
        child.kill()
    os._exit(int(code))


def _load_records(path: Path) -> list[Record]:
    """The records on disk now; empty if they cannot be loaded."""
    try:
        return load(path).records
    except BenchError:
        return []


def _is_unclosed(path: Path) -> bool:
    """Whether a record at ``path`` is still unclosed."""
    return any(record.status == "running" for record in _load_records(path))
