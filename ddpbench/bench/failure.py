"""Ends a run on a signal, a hang, a dead rank or launcher, or an exception."""

from __future__ import annotations

import os
import re
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

import ddpbench
from ddpbench.bench.journal import Journal
from ddpbench.bench.terminator import GRACE_S, Terminator
from ddpbench.data.loader import LoaderWithWorkers
from ddpbench.distributed.exit_status import mark_signal_ready
from ddpbench.distributed.rank_store import HEARTBEAT_TIMEOUT_S
from ddpbench.distributed.world import World
from ddpbench.machine import signals
from ddpbench.machine.progress_marker import Position, ProgressMarker, Watchdog, main_thread_frame, main_thread_stack
from ddpbench.record.errors import BenchError, ExitCode, Hung, Interrupted, OutOfMemory
from ddpbench.record.record import Fault

DEAD_PEER_ERROR = re.compile(r"connection|peer|socket|gloo|nccl|timed? ?out|store", re.IGNORECASE)
"""What torch's error messages contain on the ranks that have a dead peer."""


class FailureMonitor:
    """Ends one rank's run on signals, hangs, a dead launcher and exceptions.

    ``resumable``: the same command, run again, continues without an arm that ran out of memory.
    """

    def __init__(
        self, world: World, marker: ProgressMarker, journal: Journal | None, show: Callable[[], None], resumable: bool = False
    ) -> None:
        self._world, self._marker, self._journal, self._show, self._resumable = world, marker, journal, show, resumable
        self._store = world.store
        self._launcher = os.getppid()
        self._is_finished = False
        self._terminator = Terminator(world, journal)
        self._heartbeats: dict[int, int] = {}  # of every rank, at this rank's last long pause
        self._watchdog = Watchdog(marker, self._tick, self._on_stall, self._on_long_pause)

    def start(self) -> None:
        """Start watching: from now on this rank ends cleanly, whatever happens."""
        if self._journal:
            self._terminator.record_path = str(self._journal.path.resolve())
            self._store.set("record", self._terminator.record_path)
        signals.start_signal_thread(self._on_signal)
        mark_signal_ready(self._world.rank_env)
        self._watchdog.start()

    def exit(self, code: int) -> NoReturn:
        """End the process after a completed run, bypassing the interpreter's shutdown.

        During that shutdown, a torch thread that still holds a lock can abort a rank whose work is done and saved.
        """
        self._is_finished = True
        self._watchdog.stop()
        with suppress(RuntimeError):  # the record is on disk: a peer or a store that left first is no failure
            self._world.close()
        self._terminator.exit(code)

    def _tick(self, position: Position) -> None:
        """Every quarter of a second: send a heartbeat, and exit if the launcher is dead."""
        if self._world.rank_env.launched and os.getppid() != self._launcher:
            host = self._world.placement.host
            self._terminator.exit_failed(Interrupted(f"the launcher on {host} exited unexpectedly", ExitCode.FAILED))
        try:
            self._store.heartbeat(position)
            self._terminator.record_path = self._terminator.record_path or self._store.try_get("record")
        except RuntimeError:  # the store lives in the launcher of rank 0, or in rank 0 itself
            self._terminator.exit_store_unreachable()

    def _on_signal(self, received: signal.Signals) -> None:
        """Exit on SIGTERM, Ctrl-C or SLURM's time-limit warning, SIGUSR1, unless another rank's failure came first."""
        if self._is_finished:
            return
        with suppress(RuntimeError):  # the store may have ended with the launcher
            self._store.deregister()
        time.sleep(0.2)  # a failing rank reports its fault before it closes its sockets
        self._terminator.exit_if_rank_failed_or_dead()
        if self._journal:
            self._journal.freeze()
        self._terminator.exit_interrupted(received, self._show)

    def _on_stall(self, seconds: float) -> None:
        """This rank stalled, and so did the ranks that it waits for or that wait for it.

        The culprit is a rank with neither a new heartbeat nor a stack, which is frozen; else the one that passed the fewest marks.
        """
        try:
            self._store.check_connection()
            self._store.set(f"stack/{self._world.rank}", main_thread_stack() + _describe_stalled_worker())
            earlier_heartbeats = self._store.heartbeats()
            time.sleep(HEARTBEAT_TIMEOUT_S)
            heartbeats = {rank: (beat, position) for rank, (beat, position) in self._store.heartbeats().items() if not position.is_paused}
            stacks = {rank: self._store.try_get(f"stack/{rank}") for rank in heartbeats}
        except (RuntimeError, OSError):
            self._terminator.exit_store_unreachable()
        positions = {rank: position for rank, (_, position) in heartbeats.items()}
        frozen = [rank for rank in heartbeats if not stacks[rank] and heartbeats[rank] == earlier_heartbeats.get(rank)]
        culprit = min(frozen or positions, key=lambda rank: positions[rank].marks_passed)
        all_stalled = not frozen and all(position.marks_passed == positions[culprit].marks_passed for position in positions.values())
        subject = "all ranks" if all_stalled and len(positions) > 1 else f"rank {culprit} ({self._world.placements[culprit].host})"
        position = positions[culprit]
        error = Hung(
            f"{subject} hung at step {position.step} ({position.phase}): no progress for {seconds:.0f} s",
            f"rank {culprit} was in {stacks[culprit] or 'code that blocks its watchdog thread'}{self._terminator.kept_rounds_hint()}",
        )
        self._terminator.exit_failed(
            error, Fault(message=error.message, hint=error.hint, rank=culprit, step=position.step, phase=position.phase)
        )

    def _on_long_pause(self) -> None:
        """Look for silent ranks while this rank is paused: an unreachable host reports no hang, and its sockets stay open."""
        try:
            self._store.check_connection()
            heartbeats = {rank: beat for rank, (beat, _) in self._store.heartbeats().items()}
        except (RuntimeError, OSError):
            self._terminator.exit_store_unreachable()
        silent_ranks = [rank for rank, beat in heartbeats.items() if beat == self._heartbeats.get(rank)]
        self._heartbeats = heartbeats
        if silent_ranks:
            self._terminator.exit_for_dead_ranks(
                silent_ranks,
                "unreachable",
                f"more than {self._marker.timeout_s:.0f} s ago",
                "check that the node is up and its network works",
            )

    def on_exception(self, problem: BaseException) -> NoReturn:
        """Exit after an exception on this rank, whether it is the culprit or the victim of a dead rank."""
        if DEAD_PEER_ERROR.search(str(problem)):
            time.sleep(GRACE_S)
            self._terminator.exit_if_rank_failed_or_dead()
        elif self._store.get_failure_report():
            self._terminator.exit_silently(ExitCode.FAILED)
        position, active_arm, placement = self._marker.position, self._marker.active_arm, self._world.placement
        where = f"on rank {placement.rank} ({placement.host}) at step {position.step} ({position.phase})"
        oom_text = "" if isinstance(problem, BenchError) else self._world.device.describe_oom(problem)
        if isinstance(problem, BenchError):
            error = type(problem)(f"{problem.message} {where}", problem.hint) if problem.status == "failed" else problem
        elif oom_text:
            at_batch = f" at batch {active_arm.batch_size}" if active_arm else ""
            resume_hint = "; the same command resumes with the other configurations" if active_arm and self._resumable else ""
            error_type = BenchError if position.step or self._resumable else OutOfMemory
            error = error_type(
                f"out of memory{at_batch} {where}: {oom_text}",
                f"use a smaller batch: -b N{resume_hint}{self._terminator.kept_rounds_hint()}",
            )
        else:
            summary = describe_exception(problem)
            error = BenchError(
                f"{type(problem).__name__} {where}: {summary.reason}", f"{summary.location}{self._terminator.kept_rounds_hint()}"
            )
        fault = Fault(
            message=error.message,
            hint=error.hint,
            rank=placement.rank,
            step=position.step,
            phase=position.phase,
            arm_index=active_arm.arm_index if oom_text and active_arm else None,
            out_of_memory=bool(oom_text) or isinstance(problem, OutOfMemory),
        )
        self._terminator.exit_failed(error, fault)


def _describe_stalled_worker() -> str:
    """The loader worker that the main thread waits for, or an empty string."""
    frame = main_thread_frame()
    owners = [local_frame.f_locals.get("self") for local_frame, _ in traceback.walk_stack(frame)] if frame else []
    loaders = (owner for owner in owners if owner is not None and issubclass(type(owner), LoaderWithWorkers))
    stalled = next((loader.stalled_worker() for loader in loaders), "")
    return stalled and f"; {stalled}"


WORKER_EXCEPTION = re.compile(r"Caught \w+ in DataLoader worker process \d+\.\nOriginal Traceback")
"""How torch.utils.data begins the text of an exception in a worker."""

FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)

LIBRARY_PATHS = (str(Path(ddpbench.__file__).parent), "site-packages", "dist-packages")
"""Path parts of code that is not the user's."""


class ExceptionSummary(NamedTuple):
    """An exception in two one-line texts."""

    reason: str
    location: str


def describe_exception(problem: BaseException) -> ExceptionSummary:
    """The exception's message and innermost frame; in a worker, the innermost frame of the user's own code, if any."""
    text = str(problem).strip()
    if WORKER_EXCEPTION.match(text):
        frames: list[tuple[str, str]] = FRAME.findall(text)
        file, line = next((frame for frame in reversed(frames) if not any(part in frame[0] for part in LIBRARY_PATHS)), frames[-1])
        return ExceptionSummary(_reason(text.splitlines()), f"raised in {file}:{line}, in a DataLoader worker")
    stack = traceback.extract_tb(problem.__traceback__)
    where = f"raised in {stack[-1].filename}:{stack[-1].lineno}" if stack else "no traceback"
    return ExceptionSummary(text.partition("\n")[0] or "no message", where)


def _reason(traceback_lines: Sequence[str]) -> str:
    """First line of the exception in a worker's traceback: it follows the innermost frame, whose source line is indented."""
    innermost = max(number for number, line in enumerate(traceback_lines) if FRAME.match(line))
    first_line = next((line for line in traceback_lines[innermost + 1 :] if not line.startswith("    ")), "")
    return first_line.partition(": ")[2] or "no message"
