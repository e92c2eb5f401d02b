"""Interleaves the rounds of several arms in ABBA order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf

from ddpbench.bench.arm import Arm
from ddpbench.bench.resume import ResumeState
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import ConfigFailed
from ddpbench.record.record import Round


def abba_schedule(rounds: Sequence[int], first_turn_rounds: Mapping[int, int] | None = None) -> Iterator[tuple[int, int]]:
    """(arm, round) in ABBA order: every second turn runs backwards, so that a steady drift favours no arm.

    ``rounds`` is the number of rounds of each arm; an arm that has had all of them is left out. ``first_turn_rounds`` is the number of
    rounds in an arm's first turn, if more than one.
    """
    first_turn_rounds = first_turn_rounds or {}
    for turn in range(max(rounds)):
        order = range(len(rounds)) if turn % 2 == 0 else reversed(range(len(rounds)))
        for arm in order:
            last = turn if turn else first_turn_rounds.get(arm, 1) - 1
            if turn == 0 or turn >= first_turn_rounds.get(arm, 1):
                yield from ((arm, number) for number in range(turn, last + 1) if number < rounds[arm])


def interleave(
    arms: Sequence[Arm], has_time_for: Callable[[int], bool], first_turn_rounds: Mapping[int, int] | None = None, equal_rounds: bool = False
) -> Iterator[tuple[int, Round | ConfigFailed | None]]:
    """Run the rounds of all arms, one arm on the device at a time; yields (arm, result) as each ends.

    The result is the Round, on rank 0 only and None on the others, or the ConfigFailed that ended the arm on all ranks. A round is
    skipped if

    - its arm is finished: its numbers are not finite, or it cannot continue;
    - an earlier job has measured it;
    - ``has_time_for(arm)``, which every rank calls before every round, returns False. An arm that has begun gets no more rounds; one
      that has not is asked again in the next turn, when time reserved for others may be free. Other arms, whose rounds may be shorter,
      continue;
    - with ``equal_rounds``, an arm that has begun missed an earlier round for lack of time: no other arm gets ahead of it.

    The arm of the last round stays on the device.
    """
    last_turn: float = inf
    begun: set[int] = set()
    out_of_time: set[int] = set()  # arms that have begun, and have no time for another round
    for index, turn in abba_schedule([arm.config.rounds for arm in arms], first_turn_rounds):
        arm = arms[index]
        if arm.is_finished or turn in arm.completed_rounds or turn > last_turn or index in out_of_time:
            continue
        if not has_time_for(index):
            if index in begun:
                out_of_time.add(index)
                last_turn = turn if equal_rounds else last_turn
            continue
        try:
            load_exclusively(arm, arms)
            measured = arm.run_round(turn)
        except ConfigFailed as problem:
            arm.is_finished = True
            arm.park()
            yield index, problem
        else:
            begun.add(index)
            yield index, measured


def load_exclusively(arm: Arm, arms: Sequence[Arm]) -> None:
    """Park every other arm, then activate ``arm``, so that none is charged for another's memory."""
    for other in arms:
        if other is not arm:
            other.park()
    arm.activate()


class RoundQueue:
    """Rounds still to run: ``pending_arms`` has one entry per round, in order; ``num_total`` includes those of an earlier job."""

    def __init__(self, configs: Sequence[ResolvedConfig], resume_states: Sequence[ResumeState]) -> None:
        rounds = [config.rounds for config in configs]
        self.num_total = sum(rounds)
        self.pending_arms = [index for index, turn in abba_schedule(rounds) if resume_states[index].is_pending(turn)]

    @property
    def num_finished(self) -> int:
        """Rounds that are measured or will never be."""
        return self.num_total - len(self.pending_arms)

    def round_ended(self, arm: int, is_finished: bool) -> None:
        """Remove one round of ``arm``, or all its rounds if it ``is_finished``."""
        self.pending_arms.remove(arm)
        if is_finished:
            self.pending_arms = [other for other in self.pending_arms if other != arm]
