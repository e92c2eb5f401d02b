"""The lines of a diagnosis: what it does, which round, and the time left."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from time import monotonic

import pytest
from polling import wait_until

from ddpbench.record.prediction import Scenario
from ddpbench.record.roles import BASELINE, BASELINE_REPEAT, trial_role
from ddpbench.script.diagnose.progress_lines import ProgressLines
from ddpbench.script.diagnose.stage import Stage, end_stage

Lines = tuple[list[str], ProgressLines]


@pytest.fixture
def begin() -> Iterator[Callable[..., Lines]]:
    """Begin to print lines; returns them as they come."""
    begun: list[ProgressLines] = []

    def go(left_s: float = 175.0, every_s: float = 60.0) -> Lines:
        printed: list[str] = []
        begun.append(ProgressLines(printed.append, monotonic() + left_s, every_s))
        return printed, begun[-1]

    yield go
    for each in begun:
        each.stop()


def window(role: object) -> Stage:
    return Stage(kind="window", first=10, batches=5, role=role)  # type: ignore[arg-type]


def test_each_phase_is_named_with_its_round_and_the_time_left(begin: Callable[..., Lines]) -> None:
    printed, progress = begin()
    progress.show(Stage(kind="benchmark", first=10))
    progress.show(window(BASELINE), "1 of 8")
    progress.show(window(BASELINE), "2 of 8")
    progress.show(window(BASELINE_REPEAT), "1 of 6")
    progress.show(window(trial_role(Scenario(workers=4))), "2 of 6")
    assert [re.sub(r"1[67]\d s", "170 s", line) for line in printed] == [
        "ddpbench: loader alone, at most 170 s left",
        "ddpbench: control runs, round 1 of 8, at most 170 s left",
        "ddpbench: trials, round 1 of 6, at most 170 s left",
    ]


def test_no_time_is_named_once_it_is_over(begin: Callable[..., Lines]) -> None:
    printed, progress = begin(left_s=0.5)
    progress.show(window(BASELINE), "6 of 6")
    assert printed == ["ddpbench: control runs, round 6 of 6"]


def test_a_long_phase_is_repeated_with_its_round_until_the_end(begin: Callable[..., Lines]) -> None:
    printed, progress = begin(every_s=0.05)
    progress.show(window(BASELINE), "1 of 8")
    assert wait_until(lambda: len(printed) >= 3, 10.0)
    progress.show(window(BASELINE), "2 of 8")
    assert wait_until(lambda: "round 2 of 8" in printed[-1], 10.0)
    progress.show(end_stage(10, 20))
    ended = len(printed)
    assert not wait_until(lambda: len(printed) > ended + 1, 0.3), "one may just be printed"


def test_what_takes_no_time_is_not_shown(begin: Callable[..., Lines]) -> None:
    printed, progress = begin()
    progress.show(Stage(kind="collect", first=10))
    progress.show(end_stage(10, 20))
    assert printed == []
