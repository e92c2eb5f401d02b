"""A round in legs: a training of many epochs that is laid down on the way, so that the same command goes on in the midst of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import NoReturn

from ddpbench.experiments.joining import joined
from ddpbench.experiments.journal import not_saved
from ddpbench.experiments.shelf import BEGINNING, Shelf, Stand
from ddpbench.machine.pulse import Pulse
from ddpbench.machine.say import print_note
from ddpbench.machine.world import World
from ddpbench.record.trace import Trace
from ddpbench.training.session import Session

LEAST_LEG_S = 20.0
"""A leg is an epoch, or as many as this takes: to lay down a training after every one of its short epochs takes long."""

WORTH_TELLING_S = 1.0


class OutOfTime(Exception):
    """No further leg of a round would end in time."""


@dataclass
class LegHooks:
    """What legs have to do with the command that they are part of.

    ``in_time`` is whether one more ends in time, asked on all ranks alike; ``ended`` hears how many seconds the next will take if
    it is as fast as the last; ``tell`` hears of each that begins.
    """

    in_time: Callable[[], bool]
    ended: Callable[[float], None]
    tell: Callable[[str], None]


@dataclass
class Legs:
    """The rounds of one arm, ``epochs`` each, on one rank."""

    arm: int
    epochs: int
    shelf: Shelf
    world: World
    pulse: Pulse
    hooks: LegHooks
    _epoch_s: float | None = field(default=None, init=False)  # what one took in the last leg
    _laid_down: int = field(default=0, init=False)  # epochs that all ranks can go on from

    def stand(self, turn: int) -> Stand:
        """What every rank has laid down of that round."""
        self.pulse.enter("looking for what was laid down")
        stand = self.shelf.latest(self.arm, turn)
        common = int(self.world.least(stand.epochs))
        if common < stand.epochs:
            stand = self.shelf.take(self.arm, turn, common)
        lacking = self.world.any(stand.epochs != common)
        return BEGINNING if lacking else stand

    def train(self, session: Session, turn: int, stand: Stand, steps_an_epoch: int) -> Trace:
        """The round, from ``stand`` on, where ``session`` and its loader are. Raises OutOfTime, on all ranks alike."""
        traces, done = list(stand.traces), stand.epochs
        self._laid_down = done
        if done:
            self.hooks.tell(f"goes on after epoch {done} of {self.epochs}")
        while done < self.epochs:
            if done > stand.epochs and not self.hooks.in_time():
                self._break_off(done)
            at_once = min(self.epochs - done, self._epochs_a_leg)
            self._tell(done, at_once)
            begin = perf_counter()
            traces.append(session.round(at_once * steps_an_epoch, drain_s=0.0))
            done += at_once
            self._lay_down(turn, Stand(done, session.parked(), self.world.device.random_state(), traces))
            self._epoch_s = self.world.most(perf_counter() - begin) / at_once
            self.hooks.ended(self._epoch_s * self._epochs_a_leg)
        return joined(traces)

    def clear(self, turn: int) -> None:
        """The round is on record; ranks other than 0 wait until it is."""
        self.world.barrier()
        self.shelf.clear(self.arm, turn)

    @property
    def _epochs_a_leg(self) -> int:
        return min(self.epochs, max(1, int(LEAST_LEG_S / self._epoch_s))) if self._epoch_s else 1

    def _tell(self, done: int, at_once: int) -> None:
        if self._epoch_s is None or at_once * self._epoch_s > WORTH_TELLING_S:
            which = f"epoch {done + 1}" if at_once == 1 else f"epochs {done + 1} to {done + at_once}"
            self.hooks.tell(f"{which} of {self.epochs}")

    def _lay_down(self, turn: int, stand: Stand) -> None:
        """Keeps what all ranks have. A disk that takes no more must not end the training: it is said once."""
        self.pulse.enter("laying the training down")
        problem = ""
        try:
            self.shelf.put(self.arm, turn, stand)
        except OSError as error:
            problem = not_saved(self.shelf.path(self.arm, turn, stand.epochs), error)
        if not self.world.any(bool(problem)):
            self._laid_down = stand.epochs
        elif not self.shelf.refused:
            self.shelf.refused = True
            told = self.world.gather(problem)
            if told:
                print_note(f"{next(filter(None, told))}; a round that is stopped begins anew")
        self.shelf.keep_only(self.arm, turn, self._laid_down)

    def _break_off(self, done: int) -> NoReturn:
        if self.world.seat.speaks:
            goes_on = f"; the same command goes on after epoch {self._laid_down}" if self._laid_down else ""
            print_note(f"out of time after epoch {done} of {self.epochs}{goes_on}")
        raise OutOfTime
