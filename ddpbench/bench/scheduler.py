"""The interleaver: several arms in one job, alternating, so that they share the launch's luck and the machine's mood."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf

from ddpbench.bench.arm import Arm
from ddpbench.record.errors import ArmOver
from ddpbench.record.record import Round


def schedule(rounds: Sequence[int], at_once: Mapping[int, int] | None = None) -> Iterator[tuple[int, int]]:
    """(arm, round) in ABBA order: every second round runs backwards, so that a steady drift favours no arm.

    ``rounds`` says how many each arm has; one that has had all of its own is left out. ``at_once`` says how many an arm has in its
    first turn, where that is more than one.
    """
    at_once = at_once or {}
    for turn in range(max(rounds)):
        order = range(len(rounds)) if turn % 2 == 0 else reversed(range(len(rounds)))
        for arm in order:
            last = turn if turn else at_once.get(arm, 1) - 1
            if turn == 0 or turn >= at_once.get(arm, 1):
                yield from ((arm, number) for number in range(turn, last + 1) if number < rounds[arm])


def interleave(
    arms: Sequence[Arm], in_time: Callable[[int], bool], at_once: Mapping[int, int] | None = None, even: bool = False
) -> Iterator[tuple[int, Round | ArmOver | None]]:
    """Runs the rounds of all arms, one arm on the device at a time; yields (arm, what it gave) as each ends.

    What an arm gives is its round, on rank 0 alone and None on the others, or the ArmOver that ended it on all. A round is skipped where

    - its arm is over: its numbers died, or it cannot go on;
    - an earlier job has measured it;
    - ``in_time(arm)`` says no, which every rank asks before every round. An arm that had begun has no more rounds; one that had not is
      asked for again in the next turn, when time that was kept for others may be free. Rounds of others may be shorter;
    - with ``even``, an arm that had begun has missed an earlier round for want of time: no other gets ahead of it.

    The arm of the last round stays on the device.
    """
    last_turn: float = inf
    begun: set[int] = set()
    late: set[int] = set()  # arms that had begun, and have no time for another round
    for index, turn in schedule([arm.config.rounds for arm in arms], at_once):
        arm = arms[index]
        if arm.over or turn in arm.done or turn > last_turn or index in late:
            continue
        if not in_time(index):
            if index in begun:
                late.add(index)
                last_turn = turn if even else last_turn
            continue
        try:
            enter_alone(arm, arms)
            measured = arm.round(turn)
        except ArmOver as problem:
            arm.over = True
            arm.leave()
            yield index, problem
        else:
            begun.add(index)
            yield index, measured


def enter_alone(arm: Arm, arms: Sequence[Arm]) -> None:
    """Puts ``arm`` on the device, and every other off it first, so that none is charged for another's memory."""
    for other in arms:
        if other is not arm:
            other.leave()
    arm.enter()
