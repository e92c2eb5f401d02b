"""The interleaver: several arms in one job, alternating, so that they share the launch's luck and the machine's mood."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf

from ddpbench.experiments.arms import Arm
from ddpbench.experiments.legs import OutOfTime
from ddpbench.record.errors import ArmOver
from ddpbench.record.record import Round


def schedule(rounds: Sequence[int], at_once: Mapping[int, int] | None = None) -> Iterator[tuple[int, int]]:
    """(arm, round) in ABBA order: every second round runs backwards, so that a steady drift favours no arm.

    ``rounds`` are those of each arm; one that has had its own is left out. An arm of ``at_once`` has so many in its first turn.
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
    """Runs all rounds of all arms, one arm on the device at a time; yields (arm, round) as each ends, the round on rank 0 alone.

    An arm whose numbers died is not continued, and one of several that cannot go on gives the reason in place of a
    round. ``in_time(arm)`` is asked before every round, on every rank; a round in legs asks for itself before each further one.
    One for which there is no time is passed over: another arm's may be shorter. With ``even`` none gets ahead of it by that: once an
    arm that has begun goes without a round, no other has a later one. The arm of the last round is left on the device.
    """
    last: float = inf
    begun: set[int] = set()
    late: set[int] = set()
    for index, turn in schedule([arm.config.rounds for arm in arms], at_once):
        arm = arms[index]
        if arm.over or turn in arm.done or turn > last or index in late:
            continue
        if not in_time(index):
            late.add(index)
            last = turn if even and index in begun else last
            continue
        try:
            enter_alone(arm, arms)
            measured = arm.round(turn)
        except OutOfTime:
            continue
        except ArmOver as problem:
            arm.over = True
            arm.leave()
            yield index, problem
        else:
            begun.add(index)
            yield index, measured
        arm.round_is_kept(turn)


def enter_alone(arm: Arm, arms: Sequence[Arm]) -> None:
    """Puts ``arm`` on the device, and every other off it first, so that none is charged for another's memory."""
    for other in arms:
        if other is not arm:
            other.leave()
    arm.enter()
