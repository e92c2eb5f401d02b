"""What can end a run before its time: signals, hangs, ranks and launchers that are gone, exceptions."""

from __future__ import annotations

import os
import re
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from ddpbench.bench.journal import Journal
from ddpbench.bench.raised import raised
from ddpbench.bench.terminator import GRACE_S, WayOut
from ddpbench.data.loaders.user import Own
from ddpbench.data.loaders.workers import Workers
from ddpbench.distributed.exit_status import interrupted, tell_listening
from ddpbench.distributed.rank_store import SILENCE_S
from ddpbench.distributed.world import World
from ddpbench.machine import signals
from ddpbench.machine.progress_marker import Mark, Pulse, Watchdog, main_thread_frame, main_thread_stack
from ddpbench.record.errors import BenchError, DoesNotFit, Exit, Hung, Interrupted
from ddpbench.record.record import Fault

LOST_PEER = re.compile(r"connection|peer|socket|gloo|nccl|timed? ?out|store", re.IGNORECASE)
"""What torch says on the ranks that a dead one leaves behind."""


class Ending:
    """Watches over one run on one rank: signals, hangs, a dead launcher, exceptions.

    ``goes_on`` where the same command would go on without an arm that ran out of memory.
    """

    def __init__(self, world: World, pulse: Pulse, journal: Journal | None, show: Callable[[], None], goes_on: bool = False) -> None:
        self._world, self._pulse, self._journal, self._show, self._goes_on = world, pulse, journal, show, goes_on
        self._board = world.board
        self._launcher = os.getppid()
        self._over = False
        self._way_out = WayOut(world, journal)
        self._beats: dict[int, int] = {}  # of every rank, when this one last rested for long
        self._watchdog = Watchdog(pulse, self._tick, self._on_stall, self._on_long_rest)

    def watch(self) -> None:
        """From now on this rank ends well, whatever happens."""
        if self._journal:
            self._way_out.record_path = str(self._journal.path.resolve())
            self._board.pin("record", self._way_out.record_path)
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
        self._way_out.leave(code)

    def _tick(self, mark: Mark) -> None:
        """Every quarter of a second: tell the others where this rank is, and leave when the launcher is gone."""
        if self._world.seat.launched and os.getppid() != self._launcher:
            here = self._world.place.host
            self._way_out.end(Interrupted(f"the launcher on {here} ended without a word", Exit.FAILED))
        try:
            self._board.beat(mark)
            self._way_out.record_path = self._way_out.record_path or self._board.read("record")
        except RuntimeError:  # the store lives in the launcher of rank 0, or in rank 0
            self._way_out.end_without_head()

    def _on_signal(self, received: signal.Signals) -> None:
        if self._over:
            return
        with suppress(RuntimeError):  # the store may be gone with the launcher
            self._board.leave()
        time.sleep(0.2)  # a rank that failed has left its fault before it let go of its sockets
        self._way_out.look_for_another_fault()
        if self._journal:
            self._journal.seal()
        self._way_out.end_interrupted(interrupted(received, self._way_out.rounds()), self._show)

    def _on_stall(self, seconds: float) -> None:
        """This rank stood still too long. So do the ranks it waits for, or that wait for it.

        One that does not even tell that it stands still is late, for it is frozen; else the one that passed fewest marks.
        """
        try:
            self._board.must_answer()
            self._board.pin(f"stack/{self._world.rank}", main_thread_stack() + _worker_behind())
            before = self._board.marks()
            time.sleep(SILENCE_S)
            now = {rank: (beat, mark) for rank, (beat, mark) in self._board.marks().items() if not mark.resting}
            stacks = {rank: self._board.read(f"stack/{rank}") for rank in now}
        except (RuntimeError, OSError):
            self._way_out.end_without_head()
        marks = {rank: mark for rank, (_, mark) in now.items()}
        frozen = [rank for rank in now if not stacks[rank] and now[rank] == before.get(rank)]
        late = min(frozen or marks, key=lambda rank: marks[rank].count)
        together = not frozen and all(mark.count == marks[late].count for mark in marks.values())
        who = "every rank" if together and len(marks) > 1 else f"rank {late} ({self._world.places[late].host})"
        mark = marks[late]
        error = Hung(
            f"hung on {who} at step {mark.step} ({mark.doing}): no progress for {seconds:.0f} s",
            f"rank {late} stood in {stacks[late] or 'code that does not let its watchdog run'}{self._way_out.kept()}",
        )
        self._way_out.end(error, Fault(message=error.message, hint=error.hint, rank=late, step=mark.step, phase=mark.doing))

    def _on_long_rest(self) -> None:
        """Others should be at work, and nobody calls their hang: a host that vanished takes no leave, and its sockets stay open."""
        try:
            self._board.must_answer()
            beats = {rank: beat for rank, (beat, _) in self._board.marks().items()}
        except (RuntimeError, OSError):
            self._way_out.end_without_head()
        silent = [rank for rank, beat in beats.items() if beat == self._beats.get(rank)]
        self._beats = beats
        if silent:
            self._way_out.end_gone(
                silent[0], "lost", f"no word for {self._pulse.patience_s:.0f} s", "is that node up, and the network to it?"
            )

    def on_exception(self, problem: BaseException) -> NoReturn:
        """This rank raised: the culprit, or the victim of a rank that is gone."""
        if LOST_PEER.search(str(problem)):
            time.sleep(GRACE_S)
            self._way_out.look_for_another_fault()
        elif self._board.blamed():
            self._way_out.end_silently(Exit.FAILED)
        mark, turn, place = self._pulse.mark, self._pulse.turn, self._world.place
        where = f"on rank {place.rank} ({place.host}) at step {mark.step} ({mark.doing})"
        short = "" if isinstance(problem, BenchError) else self._world.device.shortage(problem)
        if isinstance(problem, BenchError):
            error = type(problem)(f"{problem.message} {where}", problem.hint) if problem.status == "failed" else problem
        elif short:
            at_batch = f" at batch {turn.batch_size}" if turn else ""
            others = "; the same command goes on with the other cells" if turn and self._goes_on else ""
            kind = BenchError if mark.step or self._goes_on else DoesNotFit
            error = kind(f"out of memory{at_batch} {where}: {short}", f"a smaller batch: -b N{others}{self._way_out.kept()}")
        else:
            told = raised(problem)
            error = BenchError(f"{type(problem).__name__} {where}: {told.reason}", f"{told.place}{self._way_out.kept()}")
        fault = Fault(
            message=error.message,
            hint=error.hint,
            rank=place.rank,
            step=mark.step,
            phase=mark.doing,
            arm=turn.arm if short and turn else None,
            out_of_memory=bool(short) or isinstance(problem, DoesNotFit),
        )
        self._way_out.end(error, fault)


def _worker_behind() -> str:
    """The loader worker that the main thread waits for, where it waits for one."""
    frame = main_thread_frame()
    owners = [each.f_locals.get("self") for each, _ in traceback.walk_stack(frame)] if frame else []
    owing = next((owner.owed_by() for owner in owners if isinstance(owner, Workers | Own)), "")
    return owing and f"; {owing}"
