"""Progress output: lines in a log, a progress bar on a terminal."""

from __future__ import annotations

import io
import os
import pty
import sys
import threading

import pytest

from ddpbench.report.progress import BarProgress, LogProgress, count_progress, format_time_left, make_progress


@pytest.fixture(autouse=True)
def default_terminal_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_log_has_one_line_per_stage_and_round() -> None:
    stream = io.StringIO()
    heard = make_progress(stream)
    heard.stage("warming up [rank0]")
    heard.round_done(1, 5, "4,523 images/s", "about 12 s left")
    heard.round_done(5, 5, "4,519 images/s", "")
    heard.close()
    assert stream.getvalue().splitlines() == [
        "ddpbench: warming up [rank0]",
        "ddpbench: round 1 of 5: 4,523 images/s, about 12 s left",
        "ddpbench: round 5 of 5: 4,519 images/s",
    ]


def test_forced_color_does_not_turn_a_log_into_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(make_progress(io.StringIO()), LogProgress)


def test_dumb_terminal_gets_log_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Screen()
    assert isinstance(make_progress(stream), LogProgress)
    assert stream.shown() == ""


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_terminal_gets_a_bar_that_is_erased_and_uses_no_thread(encoding: str) -> None:
    before = threading.active_count()
    stream = Screen(encoding)
    heard = make_progress(stream)
    assert isinstance(heard, BarProgress)
    heard.stage("warming up [rank0]\x1b[2J")
    heard.round_done(2, 5, "4,523 images/s", "about 9 s left")
    assert threading.active_count() == before
    heard.close()
    shown = stream.shown()
    assert "warming up [rank0] [2J" in shown, "escape codes in names are removed"
    assert "2 of 5 rounds, 4,523 images/s, about 9 s left" in shown
    assert shown.rstrip().endswith("\x1b[1A\x1b[2K")
    assert shown.count("\x1b[?25h") >= shown.count("\x1b[?25l") == 1


def test_error_line_is_printed_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Screen()
    monkeypatch.setattr(sys, "stderr", stream)
    heard = make_progress(stream)
    heard.round_done(2, 5, "4,523 images/s", "about 9 s left")
    sys.stderr.write("ddpbench: error: [rank0] is lost\n")
    heard.close()
    assert sys.stderr is stream
    assert "\x1b[2Kddpbench: error: [rank0] is lost\r\n" in stream.shown()


def test_closed_stream_is_not_an_error() -> None:
    for stream in (io.StringIO(), None):
        heard = make_progress(stream)
        if stream is not None:
            stream.close()
        heard.stage("warming up")
        heard.round_done(1, 5, "4,523 images/s", "")
        heard.close()


def test_time_left() -> None:
    assert [format_time_left(seconds) for seconds in (None, 0.0, 0.4, 8.6, 119.0, 200.0)] == [
        "", "", "", "about 9 s left", "about 119 s left", "about 3 min left",
    ]  # fmt: skip
    assert format_time_left(8.6, is_limit=True) == "at most 9 s left"


def test_log_counts_at_intervals() -> None:
    stream = io.StringIO()
    with count_progress(stream, "making 4,000 images", 4000, "images", every_s=0) as tell:
        assert stream.getvalue() == "", "nothing is printed before the first count"
        for done in (0, 0, 1000, 4000):
            tell(done)
    first, *lines = stream.getvalue().splitlines()
    assert first == "ddpbench: making 4,000 images"
    assert [line.partition(" images")[0] for line in lines] == [f"ddpbench: {done} of 4,000" for done in ("0", "0", "1,000", "4,000")]


def test_log_is_not_flooded() -> None:
    stream = io.StringIO()
    with count_progress(stream, "making 4,000 images", 4000, "images", every_s=3600) as tell:
        for done in range(0, 4001, 10):
            tell(done)
    assert stream.getvalue() == "ddpbench: making 4,000 images\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_terminal_counter_is_a_bar_that_is_erased(encoding: str) -> None:
    screen, threads = Screen(encoding), threading.active_count()
    with count_progress(screen, "making 40 images", 40, "images") as tell:
        for done in (0, 10, 40):
            tell(done)
        assert threading.active_count() == threads
    shown = screen.shown()
    assert shown.count("ddpbench: making 40 images") == 1
    assert "10 of 40 images" in shown
    assert shown.endswith("\x1b[2K"), "the line is erased"


def test_terminal_shows_nothing_if_nothing_is_counted() -> None:
    screen = Screen()
    with count_progress(screen, "making 40 images", 40, "images"):
        pass
    assert screen.shown() == ""


def test_counter_on_a_closed_stream_is_not_an_error() -> None:
    stream = io.StringIO()
    stream.close()
    with count_progress(stream, "making", 40, "images", every_s=0) as tell:
        tell(0)
        tell(40)


class Screen(io.TextIOWrapper):
    """The write end of a pseudo-terminal."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self._reader, writer = pty.openpty()
        super().__init__(io.FileIO(writer, "w"), encoding=encoding, errors="strict", write_through=True)

    def shown(self) -> str:
        """Close the terminal and return everything written to it."""
        self.close()
        written = b""
        try:
            while some := os.read(self._reader, 65536):
                written += some
        except OSError:  # Linux raises EIO once all writers have closed
            pass
        finally:
            os.close(self._reader)
        return written.decode(self.encoding)
