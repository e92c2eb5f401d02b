"""Ends a run on a signal, a hang, a lost rank or launcher, or an exception."""

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
from ddpbench.data.loaders.user import UserLoader
from ddpbench.data.loaders.workers import DataLoaderAdapter
from ddpbench.distributed.exit_status import interrupted_error, mark_signal_ready
from ddpbench.distributed.rank_store import HEARTBEAT_TIMEOUT_S
from ddpbench.distributed.world import World
from ddpbench.machine import signals
from ddpbench.machine.progress_marker import Position, ProgressMarker, Watchdog, main_thread_frame, main_thread_stack
from ddpbench.record.errors import BenchError, ExitCode, Hung, Interrupted, OutOfMemory
from ddpbench.record.record import Fault

LOST_PEER = re.compile(r"connection|peer|socket|gloo|nccl|timed? ?out|store", re.IGNORECASE)
"""What torch says on the ranks that a dead one leaves behind."""


class FailureMonitor:
    """Watches over one run on one rank: signals, hangs, a dead launcher, exceptions.

    ``goes_on`` where the same command would go on without an arm that ran out of memory.
    """

    def __init__(
        self, world: World, marker: ProgressMarker, journal: Journal | None, show: Callable[[], None], resumable: bool = False
    ) -> None:
        self._world, self._marker, self._journal, self._show, self._resumable = world, marker, journal, show, resumable
        self._store = world.store
        self._launcher = os.getppid()
        self._is_finished = False
        self._terminator = Terminator(world, journal)
        self._heartbeats: dict[int, int] = {}  # of every rank, when this one last rested for long
        self._watchdog = Watchdog(marker, self._tick, self._on_stall, self._on_long_pause)

    def start(self) -> None:
        """From now on this rank ends well, whatever happens."""
        if self._journal:
            self._terminator.record_path = str(self._journal.path.resolve())
            self._store.set("record", self._terminator.record_path)
        signals.start_signal_thread(self._on_signal)
        mark_signal_ready(self._world.rank_env)
        self._watchdog.start()

    def exit(self, code: int) -> NoReturn:
        """The run ended by itself. The process ends here, without the interpreter's own end:

        there, a thread of torch's that still holds a lock can abort a rank whose work is done and saved.
        """
        self._is_finished = True
        self._watchdog.stop()
        with suppress(RuntimeError):  # the record is on disk: a peer or a store that left first is no fault
            self._world.close()
        self._terminator.exit(code)

    def _tick(self, position: Position) -> None:
        """Every quarter of a second: tell the others where this rank is, and leave when the launcher is gone."""
        if self._world.rank_env.launched and os.getppid() != self._launcher:
            here = self._world.placement.host
            self._terminator.exit_failed(Interrupted(f"the launcher on {here} ended without a word", ExitCode.FAILED))
        try:
            self._store.heartbeat(position)
            self._terminator.record_path = self._terminator.record_path or self._store.try_get("record")
        except RuntimeError:  # the store lives in the launcher of rank 0, or in rank 0
            self._terminator.exit_lost_store()

    def _on_signal(self, received: signal.Signals) -> None:
        if self._is_finished:
            return
        with suppress(RuntimeError):  # the store may be gone with the launcher
            self._store.deregister()
        time.sleep(0.2)  # a rank that failed has left its fault before it let go of its sockets
        self._terminator.exit_if_peer_failed()
        if self._journal:
            self._journal.freeze()
        self._terminator.exit_interrupted(interrupted_error(received, self._terminator.rounds_text()), self._show)

    def _on_stall(self, seconds: float) -> None:
        """This rank stood still too long. So do the ranks it waits for, or that wait for it.

        One that does not even tell that it stands still is late, for it is frozen; else the one that passed fewest marks.
        """
        try:
            self._store.check_connection()
            self._store.set(f"stack/{self._world.rank}", main_thread_stack() + _describe_stalled_worker())
            before = self._store.heartbeats()
            time.sleep(HEARTBEAT_TIMEOUT_S)
            now = {rank: (beat, mark) for rank, (beat, mark) in self._store.heartbeats().items() if not mark.is_paused}
            stacks = {rank: self._store.try_get(f"stack/{rank}") for rank in now}
        except (RuntimeError, OSError):
            self._terminator.exit_lost_store()
        marks = {rank: mark for rank, (_, mark) in now.items()}
        frozen = [rank for rank in now if not stacks[rank] and now[rank] == before.get(rank)]
        late = min(frozen or marks, key=lambda rank: marks[rank].marks_passed)
        together = not frozen and all(mark.marks_passed == marks[late].marks_passed for mark in marks.values())
        who = "every rank" if together and len(marks) > 1 else f"rank {late} ({self._world.placements[late].host})"
        mark = marks[late]
        error = Hung(
            f"hung on {who} at step {mark.step} ({mark.phase}): no progress for {seconds:.0f} s",
            f"rank {late} stood in {stacks[late] or 'code that does not let its watchdog run'}{self._terminator.kept_rounds_hint()}",
        )
        self._terminator.exit_failed(error, Fault(message=error.message, hint=error.hint, rank=late, step=mark.step, phase=mark.phase))

    def _on_long_pause(self) -> None:
        """Others should be at work, and nobody calls their hang: a host that vanished takes no leave, and its sockets stay open."""
        try:
            self._store.check_connection()
            beats = {rank: beat for rank, (beat, _) in self._store.heartbeats().items()}
        except (RuntimeError, OSError):
            self._terminator.exit_lost_store()
        silent = [rank for rank, beat in beats.items() if beat == self._heartbeats.get(rank)]
        self._heartbeats = beats
        if silent:
            self._terminator.exit_lost_rank(
                silent[0], "lost", f"no word for {self._marker.timeout_s:.0f} s", "is that node up, and the network to it?"
            )

    def on_exception(self, problem: BaseException) -> NoReturn:
        """This rank raised: the culprit, or the victim of a rank that is gone."""
        if LOST_PEER.search(str(problem)):
            time.sleep(GRACE_S)
            self._terminator.exit_if_peer_failed()
        elif self._store.get_failure_report():
            self._terminator.exit_silently(ExitCode.FAILED)
        mark, turn, place = self._marker.position, self._marker.active_arm, self._world.placement
        where = f"on rank {place.rank} ({place.host}) at step {mark.step} ({mark.phase})"
        short = "" if isinstance(problem, BenchError) else self._world.device.describe_oom(problem)
        if isinstance(problem, BenchError):
            error = type(problem)(f"{problem.message} {where}", problem.hint) if problem.status == "failed" else problem
        elif short:
            at_batch = f" at batch {turn.batch_size}" if turn else ""
            others = "; the same command goes on with the other cells" if turn and self._resumable else ""
            kind = BenchError if mark.step or self._resumable else OutOfMemory
            error = kind(f"out of memory{at_batch} {where}: {short}", f"a smaller batch: -b N{others}{self._terminator.kept_rounds_hint()}")
        else:
            told = describe_exception(problem)
            error = BenchError(f"{type(problem).__name__} {where}: {told.reason}", f"{told.location}{self._terminator.kept_rounds_hint()}")
        fault = Fault(
            message=error.message,
            hint=error.hint,
            rank=place.rank,
            step=mark.step,
            phase=mark.phase,
            arm_index=turn.arm_index if short and turn else None,
            out_of_memory=bool(short) or isinstance(problem, OutOfMemory),
        )
        self._terminator.exit_failed(error, fault)


def _describe_stalled_worker() -> str:
    """The loader worker that the main thread waits for, where it waits for one."""
    frame = main_thread_frame()
    owners = [each.f_locals.get("self") for each, _ in traceback.walk_stack(frame)] if frame else []
    owing = next((owner.stalled_worker() for owner in owners if isinstance(owner, DataLoaderAdapter | UserLoader)), "")
    return owing and f"; {owing}"


WORKER_EXCEPTION = re.compile(r"Caught \w+ in DataLoader worker process \d+\.\nOriginal Traceback")
"""How torch.utils.data begins the text of an exception from a worker."""

FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)

LIBRARY_PATHS = (str(Path(ddpbench.__file__).parent), "site-packages", "dist-packages")
"""Where code lies that is not the user's."""


class ExceptionSummary(NamedTuple):
    """In one line each."""

    reason: str
    location: str


def describe_exception(problem: BaseException) -> ExceptionSummary:
    """The reason that ``problem`` gives, and the innermost frame; in a worker, the innermost of the user's own code, where any is."""
    text = str(problem).strip()
    if WORKER_EXCEPTION.match(text):
        places: list[tuple[str, str]] = FRAME.findall(text)
        file, line = next((place for place in reversed(places) if not any(other in place[0] for other in LIBRARY_PATHS)), places[-1])
        return ExceptionSummary(_reason(text.splitlines()), f"raised in {file}:{line}, in a worker of the DataLoader")
    frames = traceback.extract_tb(problem.__traceback__)
    where = f"raised in {frames[-1].filename}:{frames[-1].lineno}" if frames else "no traceback"
    return ExceptionSummary(text.partition("\n")[0] or "no message", where)


def _reason(traceback_lines: Sequence[str]) -> str:
    """The first line of what it says: behind its innermost frame, whose source stands further in."""
    innermost = max(place for place, line in enumerate(traceback_lines) if FRAME.match(line))
    named = next((line for line in traceback_lines[innermost + 1 :] if not line.startswith("    ")), "")
    return named.partition(": ")[2] or "no message"
