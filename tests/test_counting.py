"""Many small pieces of work being done, as a log and as a terminal show it."""

from __future__ import annotations

import io
import threading

import pytest
from test_report_progress import Screen, plain_surroundings

from ddpbench.report.counting import counting

__all__ = ["plain_surroundings"]


def test_a_log_hears_of_it_now_and_then() -> None:
    stream = io.StringIO()
    with counting(stream, "making 4,000 images", 4000, "images", every_s=0) as tell:
        assert stream.getvalue() == "", "nothing, until something begins"
        for done in (0, 0, 1000, 4000):
            tell(done)
    first, *lines = stream.getvalue().splitlines()
    assert first == "ddpbench: making 4,000 images"
    assert [line.partition(" images")[0] for line in lines] == [f"ddpbench: {done} of 4,000" for done in ("0", "0", "1,000", "4,000")]


def test_a_log_is_not_filled() -> None:
    stream = io.StringIO()
    with counting(stream, "making 4,000 images", 4000, "images", every_s=3600) as tell:
        for done in range(0, 4001, 10):
            tell(done)
    assert stream.getvalue() == "ddpbench: making 4,000 images\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_terminal_shows_a_bar_that_is_gone_at_the_end(encoding: str) -> None:
    screen, threads = Screen(encoding), threading.active_count()
    with counting(screen, "making 40 images", 40, "images", width=80) as tell:
        for done in (0, 10, 40):
            tell(done)
        assert threading.active_count() == threads
    shown = screen.shown()
    assert shown.count("ddpbench: making 40 images") == 1
    assert "10 of 40 images" in shown
    assert shown.endswith("\x1b[2K"), "the line is erased"


def test_a_terminal_shows_nothing_where_nothing_is_made() -> None:
    screen = Screen()
    with counting(screen, "making 40 images", 40, "images", width=80):
        pass
    assert screen.shown() == ""


def test_a_closed_stream_is_no_error() -> None:
    stream = io.StringIO()
    stream.close()
    with counting(stream, "making", 40, "images", every_s=0) as tell:
        tell(0)
        tell(40)
