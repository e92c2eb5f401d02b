"""What the page of many arms says once, and what it says of each."""

from __future__ import annotations

import io

import pytest
from scenes import SCENES

from ddpbench.report.console import make_console
from ddpbench.report.terminal import render
from ddpbench.report.warnings import together


def page(name: str, width: int = 80) -> str:
    stream = io.StringIO()
    render(SCENES[name](), make_console(stream, width), None)
    return stream.getvalue()


def test_what_all_arms_share_has_no_names() -> None:
    assert together({"fp32": "too few", "tf32": "too few"}, 2) == ["too few"]
    assert together({"fp32": "too few", "tf32": "too few"}, 3) == ["fp32, tf32: too few"]
    assert together({str(arm): "too few" for arm in range(5)}, 8) == ["5 of 8 arms: too few"]


def test_sentences_that_differ_in_one_number_become_one() -> None:
    said = {"a": "vary by 10.5% (more than 1%)", "b": "vary by 9.3% (more than 1%)", "c": "vary by 9.9% (more than 1%)"}
    assert together(said, 3) == ["vary by 9.3% to 10.5% (more than 1%)"]


@pytest.mark.parametrize("other", ["rank 3: hot and 2 more", "rank 3: 2 cold", "rank 1: cold"])
def test_other_sentences_stay_apart(other: str) -> None:
    assert together({"a": "rank 1: hot", "b": other}, 2) == ["a: rank 1: hot", f"b: {other}"]


def test_hints_and_endings_are_not_repeated() -> None:
    printed = " ".join(page("many-arms").split())
    assert printed.count("hint: more and longer rounds") == 1
    assert printed.count("out of memory on rank 0") == 1


@pytest.mark.parametrize("width", [60, 80])
def test_a_table_of_many_fields_fits_the_page(width: int) -> None:
    lines = page("many-arms", width).splitlines()
    assert max(map(len, lines)) <= width
    assert any(line.split()[-2:] == ["images/s", "speed-up"] for line in lines)


def test_too_few_rounds_are_no_ground_for_finding_no_difference() -> None:
    assert "few   2 rounds: their range, no interval" in page("engines")
    assert "no difference" not in page("engines")
    assert "no difference from the first: dali-cpu batch-size 256" in page("loaders-and-batches")
