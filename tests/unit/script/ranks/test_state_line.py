"""The line of ``--every``."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec import ValidationError, convert

from ddpbench.record.request import WatchOptions
from ddpbench.script.ranks.progress import RankProgress, Totals
from ddpbench.script.ranks.state_line import MAX_COLUMNS, state_line


def rank(steps: int, step_ms: float = 10.0, data_ms: float = 2.0, own_ms: float = 8.0, **changes: Any) -> RankProgress:
    totals = Totals(steps=steps, samples=32 * steps, step_ms=steps * step_ms, data_ms=steps * data_ms, own_ms=steps * own_ms)
    return RankProgress(steps=steps, totals=totals, **changes)


def test_line_has_the_figures_of_the_interval() -> None:
    before, now = rank(100, step_ms=1000.0), rank(100, step_ms=1000.0)
    later = Totals(steps=300, samples=300 * 32, step_ms=now.totals.step_ms + 2000.0, data_ms=now.totals.data_ms + 500.0)
    line = state_line({0: RankProgress(steps=300, totals=later)}, {0: before.totals})
    assert line == "ddpbench:  step 300  3,200 samples/s  data wait 25%"


def test_throughput_is_that_of_all_ranks_and_the_slowest_is_named() -> None:
    line = state_line({0: rank(50), 1: rank(50, own_ms=10.0), 2: rank(50)}, {})
    assert line == "ddpbench:  step 50  9,600 samples/s  data wait 20%  slowest rank 1 (+25%)"


def test_interval_without_a_step_says_what_the_script_does() -> None:
    now = rank(50, outside="validation")
    assert state_line({0: now}, {0: now.totals}) == "ddpbench:  step 50  no step  validation"


@pytest.mark.parametrize("steps", [1, 10_000, 99_999_999])
def test_line_fits_into_80_columns(steps: int) -> None:
    ranks = {number: rank(steps, step_ms=1.23, data_ms=1.22, own_ms=0.001 * (1 + number)) for number in range(1024)}
    line = state_line(ranks, {})
    assert len(line) <= MAX_COLUMNS
    assert re.search(r"samples/s +data wait 99% +slowest rank 1023", line)


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30.0), ("5m", 300.0), ("1h", 3600.0)])
def test_interval_is_a_number_with_its_unit(text: str, seconds: float) -> None:
    assert WatchOptions(every=text).every_s == seconds
    assert convert({"every": text}, WatchOptions).every_s == seconds


@pytest.mark.parametrize("text", ["5", "0s", "m", "5 m", "1.5h", "-1s", "5d"])
def test_other_intervals_are_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        convert({"every": text}, WatchOptions)
