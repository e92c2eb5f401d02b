"""How a run ends when it does not end by itself: said once for the whole launch, written into the record, in two seconds."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

from ddpbench.data.workers import Workers
from ddpbench.experiments.arms import Arm
from ddpbench.experiments.journal import Journal, close_file
from ddpbench.experiments.raised import raised
from ddpbench.machine import signals
from ddpbench.machine.board import Blame, alive
from ddpbench.machine.pulse import Mark, Pulse, Watchdog, main_thread_frame, main_thread_stack
from ddpbench.machine.say import interrupted, leave_outcome, print_error, tell_listening
from ddpbench.machine.world import World
from ddpbench.record.errors import BenchError, DoesNotFit, Exit, Hung, Interrupted
from ddpbench.record.record import Fault, Record, load

GRACE_S = 1.0
"""How long the others have to leave their stack, their fault or the record."""

LOST_PEER = re.compile(r"connection|peer|socket|gloo|nccl|timed? ?out|store", re.IGNORECASE)
"""What torch says on the ranks that a dead one leaves behind."""


Kind = TypeVar("Kind")


class Ending:
    """Watches over one run on one rank: signals, hangs, a dead launcher, exceptions.

    ``goes_on`` where the same command would go on without an arm that ran out of memory.
    """

    def __init__(self, world: World, pulse: Pulse, journal: Journal | None, show: Callable[[], None], goes_on: bool = False) -> None:
        self._world, self._pulse, self._journal, self._show, self._goes_on = world, pulse, journal, show, goes_on
        self._board = world.board
        self._launcher = os.getppid()
        self._over = False
        self._record_path: str | None = None  # known here too, for when rank 0 and the store are gone
        self._beats: dict[int, int] = {}  # of every rank, when this one last rested for long
        self._lock = threading.Lock()  # a second signal waits until the first has ended the process
        self._watchdog = Watchdog(pulse, self._tick, self._on_stall, self._on_long_rest)

    def watch(self) -> None:
        """From now on this rank ends well, whatever happens."""
        if self._journal:
            self._record_path = str(self._journal.path.resolve())
            self._board.pin("record", self._record_path)
        signals.listen(self._on_signal)
        tell_listening(self._world.seat)
        self._watchdog.start()

    def leave(self, code: int) -> NoReturn:
        """The run ended by itself. The process ends here, without the interpreter's own end:

        there, a thread of torch's that still holds a lock can abort a rank whose work is done and saved.
        """
        self._over = True
        self._watchdog.stop()
        with suppress(RuntimeError):  # the record is on disk: a peer or a store that left first is no fault
            self._world.close()
        self._leave(code)

    # what can happen

    def _tick(self, mark: Mark) -> None:
        """Every quarter of a second: tell the others where this rank is, and leave when the launcher is gone."""
        if self._world.seat.launched and os.getppid() != self._launcher:
            here = self._world.place.host
            self._end(Interrupted("launcher", Exit.FAILED, f"the launcher on {here} ended without a word"))
        try:
            self._board.beat(mark)
            self._record_path = self._record_path or self._board.read("record")
        except RuntimeError:  # the store lives in the launcher of rank 0, or in rank 0
            self._end_without_head()

    def _on_signal(self, received: signal.Signals) -> None:
        if self._over:
            return
        with suppress(RuntimeError):  # the store may be gone with the launcher
            self._board.leave()
        time.sleep(0.2)  # a rank that failed has left its fault before it let go of its sockets
        self._look_for_another_fault()
        if self._journal:
            self._journal.seal()
        error = interrupted(received, self._rounds())
        if self._journal is None:
            self._leave(error.exit_code)
        with self._lock:
            try:
                self._journal.close("interrupted", Fault(message=error.message))
                print_error(error)
                leave_outcome(self._world.seat, error, error.exit_code, self._journal.path)
                self._show()
            finally:
                self._leave(error.exit_code)

    def _on_stall(self, seconds: float) -> None:
        """This rank stood still too long. So do the ranks it waits for, or that wait for it: the one that passed fewest marks is late."""
        try:
            self._board.must_answer()
            self._board.pin(f"stack/{self._world.rank}", main_thread_stack() + _worker_behind())
            time.sleep(GRACE_S)
            marks = {rank: mark for rank, (_, mark) in self._board.marks().items() if not mark.resting}
        except (RuntimeError, OSError):
            return self._end_without_head()
        late = min(marks, key=lambda rank: marks[rank].count)
        together = all(mark.count == marks[late].count for mark in marks.values())
        who = "every rank" if together and len(marks) > 1 else f"rank {late} ({self._world.places[late].host})"
        mark = marks[late]
        error = Hung(
            f"hung on {who} at step {mark.step} ({mark.doing}): no progress for {seconds:.0f} s",
            f"rank {late} stood in {self._board.read(f'stack/{late}') or 'code that does not let its watchdog run'}{self._kept()}",
        )
        self._end(error, Fault(message=error.message, hint=error.hint, rank=late, step=mark.step, phase=mark.doing))

    def _on_long_rest(self) -> None:
        """Others should be at work, and nobody calls their hang: a host that vanished takes no leave, and its sockets stay open."""
        try:
            self._board.must_answer()
            beats = {rank: beat for rank, (beat, _) in self._board.marks().items()}
        except (RuntimeError, OSError):
            return self._end_without_head()
        silent = [rank for rank, beat in beats.items() if beat == self._beats.get(rank)]
        self._beats = beats
        if silent:
            self._end_gone(silent[0], "lost", f"no word for {self._pulse.patience_s:.0f} s", "is that node up, and the network to it?")

    def on_exception(self, problem: BaseException) -> NoReturn:
        """This rank raised: the culprit, or the victim of a rank that is gone."""
        if LOST_PEER.search(str(problem)):
            time.sleep(GRACE_S)
            self._look_for_another_fault()
        elif self._board.blamed():
            self._end_silently(Exit.FAILED)
        mark, place, arm = self._pulse.mark, self._world.place, None
        where = f"on rank {place.rank} ({place.host}) at step {mark.step} ({mark.doing})"
        if isinstance(problem, BenchError):
            error = type(problem)(f"{problem.message} {where}", problem.hint) if problem.status == "failed" else problem
        elif short := self._world.device.shortage(problem):
            arm = _owner(Arm, traceback.walk_tb(problem.__traceback__))  # whose turn it was
            at_batch = f" at batch {arm.config.batch_size}" if arm else ""
            others = "; the same command goes on with the other cells" if arm and self._goes_on else ""
            kind = BenchError if mark.step or self._goes_on else DoesNotFit
            error = kind(f"out of memory{at_batch} {where}: {short}", f"a smaller batch: -b N{others}{self._kept()}")
        else:
            told = raised(problem)
            error = BenchError(f"{type(problem).__name__} {where}: {told.reason}", f"{told.place}{self._kept()}")
        fault = Fault(
            message=error.message, hint=error.hint, rank=place.rank, step=mark.step, phase=mark.doing, arm=arm.index if arm else None
        )
        self._end(error, fault)

    # how it ends

    def _look_for_another_fault(self) -> None:
        """Ends this rank where another one has said why the run ends, or ended without a word."""
        try:
            if self._board.blamed():
                self._end_silently(Exit.FAILED)
            if gone := self._board.gone(self._world.places):
                self._end_gone(gone[0], "killed (SIGKILL?) on", f"up to {Watchdog.TICK_S:g} s before", "the kernel's OOM killer? see dmesg")
        except RuntimeError:  # the store is gone
            if self._beyond_head:
                self._end_without_head()

    def _end_gone(self, rank: int, what: str, when: str, hint: str) -> NoReturn:
        """A rank ended without a word. Its process is not this one's child, so ``what`` became of it can only be guessed."""
        place = self._world.places[rank]
        _, mark = self._board.marks().get(rank, (0, Mark(0, 0, "starting")))
        error = BenchError(
            f"{what} rank {rank} ({place.host}), last seen at step {mark.step} ({mark.doing}), {when}", f"{hint}{self._kept()}"
        )
        self._end(error, Fault(message=error.message, hint=error.hint, rank=rank, step=mark.step, phase=mark.doing))

    def _end_without_head(self) -> None:
        """The store went with its host. The first rank beyond that host speaks, unless the record shows that somebody has."""
        if not self._beyond_head:
            self._end(BenchError("the store that all ranks share is gone: its host ended"))
        time.sleep(2 * GRACE_S)  # rank 0 may be closing the record
        with self._lock:
            head, path = self._world.places[0].host, Path(self._record_path or "")
            speaks = self._world.rank == min(place.rank for place in self._world.places if place.host != head)
            there = _records_in(path)  # none where it is on the disk of the host that is gone
            if speaks and (not there or _still_running(path)):
                ranks = ", ".join(str(place.rank) for place in self._world.places if place.host == head)
                what = "ended without a word" if there else "cannot be reached any more"
                error = BenchError(
                    f"{head} {what}: rank {ranks} with it, and the store that all ranks share",
                    f"the kernel's OOM killer? see dmesg there{self._kept()}",
                )
                print_error(error)
                if there:
                    close_file(path, error.status, Fault(message=error.message, hint=error.hint, rank=0))
            self._leave(Exit.FAILED)

    @property
    def _beyond_head(self) -> bool:
        """Whether this rank is on another host than rank 0 and the store."""
        return self._world.place.host != self._world.places[0].host

    def _end(self, error: BenchError, fault: Fault | None = None) -> NoReturn:
        """Blames, speaks if nobody has, and closes the record."""
        with self._lock:
            fault = fault or Fault(message=error.message, hint=error.hint)
            try:
                self._board.leave()
                self._board.blame(Blame(error.status, fault))
                speaks = self._board.claim()
            except RuntimeError:  # the store is gone with the launcher: nobody can agree, so rank 0 speaks, or the first that is left
                speaks = self._journal is not None or self._is_first_left()
            if speaks:
                print_error(error)
                leave_outcome(self._world.seat, error, error.exit_code)
            self._close_record(Blame(error.status, fault), speaks)
            self._leave(error.exit_code)

    def _is_first_left(self) -> bool:
        """Whether the ranks before this one on its host ended without a word: a record that is closed tells that one has spoken."""
        before, here = self._world.places[: self._world.rank], self._world.place.host
        if any(alive(place.pid) for place in before if place.host == here):
            return False
        return _still_running(Path(self._record_path or ""))

    def _end_silently(self, code: int) -> NoReturn:
        """Another rank has spoken; rank 0 still has the record to close."""
        with self._lock:
            if self._journal and (blame := self._board.blamed()):
                self._journal.close(blame.status, blame.fault)
            self._leave(code)

    def _close_record(self, blame: Blame, speaks: bool) -> None:
        if self._journal:
            self._journal.close(blame.status, blame.fault)
        elif speaks:
            time.sleep(GRACE_S)  # rank 0 closes it, if there still is a rank 0
            path = Path(self._record_path or "")
            with suppress(BenchError, OSError):
                if _still_running(path):
                    close_file(path, blame.status, blame.fault)

    def _leave(self, code: int) -> NoReturn:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        for child in multiprocessing.active_children():  # one that hangs in its fork does not even hear that its parent is gone
            child.kill()
        os._exit(int(code))

    # words

    def _rounds(self) -> str:
        if self._journal is None:
            return ""
        done = sum(len(record.rounds) for record in self._journal.job.records)
        return f", {done} of {sum(record.config.rounds for record in self._journal.job.records)} rounds"

    def _kept(self) -> str:
        """Where finished rounds are, if there are any yet."""
        path = Path(self._record_path or "")
        return f"; finished rounds are in {os.path.relpath(path)}" if any(record.rounds for record in _records_in(path)) else ""


def _records_in(path: Path) -> list[Record]:
    """What is on disk by now."""
    try:
        return load(path).records
    except BenchError:
        return []


def _still_running(path: Path) -> bool:
    """Whether nobody has closed the record at ``path``."""
    return any(record.status == "running" for record in _records_in(path))


def _worker_behind() -> str:
    """The loader worker that the main thread waits for, where it waits for one."""
    frame = main_thread_frame()
    loader = _owner(Workers, traceback.walk_stack(frame)) if frame else None
    owing = loader.owed_by() if loader else ""
    return owing and f"; {owing}"


def _owner(kind: type[Kind], frames: Iterator[tuple[FrameType, int]]) -> Kind | None:
    """The first object of that kind whose method is among ``frames``."""
    owners = (frame.f_locals.get("self") for frame, _ in frames)
    return next((owner for owner in owners if isinstance(owner, kind)), None)
