"""The console on pipes, closed streams, ASCII streams and terminals, with untrusted text."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from page_jobs import PAGE_JOBS
from rich.text import Text

from ddpbench.record.record import Fault
from ddpbench.report.console import make_console, page_for, print_lines
from ddpbench.report.pages.run import render_run

ROOT = Path(__file__).parents[3]
SUPPORT = ROOT / "tests" / "support"
PRINT_A_PAGE = (
    f"import sys; sys.path.insert(0, {str(SUPPORT)!r})\n"
    "from page_jobs import PAGE_JOBS; from ddpbench.report.console import make_console; from ddpbench.report.pages.run import render_run\n"
    "job = PAGE_JOBS['data-bound']()\n"
    "for _ in range({times}): render_run(job, make_console(sys.stdout), None)\n"
)
ANSI = re.compile(r"\x1b\[[0-9;]*m")
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-7]|9[0-7])m")


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def default_terminal_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def printed(stream: io.StringIO) -> str:
    render_run(PAGE_JOBS["data-bound"](), make_console(stream), None)
    return stream.getvalue()


def test_width_defaults_to_80_and_is_at_most_100() -> None:
    assert page_for(make_console(io.StringIO())).width == 80
    assert page_for(make_console(Terminal())).width == 80
    assert page_for(make_console(io.StringIO(), 60)).width == 60


def test_columns_variable_sets_the_width_up_to_100(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, width in (("60", 60), ("250", 100), ("0", 80), ("wide", 80)):
        monkeypatch.setenv("COLUMNS", asked)
        assert page_for(make_console(io.StringIO())).width == width


def test_colors_are_used_only_on_terminals_and_carry_no_information() -> None:
    plain, coloured = printed(io.StringIO()), printed(Terminal())
    assert "\x1b" not in plain
    assert COLOUR.search(coloured)
    assert ANSI.sub("", coloured) == plain


def test_no_color_variable_disables_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert COLOUR.search(printed(Terminal())) is None


def test_dumb_terminal_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert printed(Terminal()) == printed(io.StringIO())


def test_ascii_stream_gets_ascii_markers_and_escapes() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    console = make_console(stream)
    assert not page_for(console).unicode
    print_lines(console, [Text("/données")])
    stream.flush()
    assert stream.buffer.getvalue() == b"/donn\\xe9es\n"  # type: ignore[attr-defined]


def test_untrusted_text_is_not_parsed_as_markup_or_escape_codes() -> None:
    job = PAGE_JOBS["killed"]()
    job.records[0].fault = Fault(message="[rank0] [bold]lost[/bold] :smile:\x1b[2J\x07\nnext line", hint="[/] is a folder")
    stream = io.StringIO()
    render_run(job, make_console(stream, 100), None)
    assert "failed: [rank0] [bold]lost[/bold] :smile: [2J next line, 2 of 5 rounds" in stream.getvalue()
    assert "hint  [/] is a folder" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_broken_pipe_is_not_an_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PRINT_A_PAGE.format(times=100)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("ddpbench  resnet50")
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 0


def test_closed_stdout_is_not_an_error() -> None:
    argv = ["sh", "-c", 'exec "$0" -c "$1" >&-', sys.executable, PRINT_A_PAGE.format(times=1)]
    done = subprocess.run(argv, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_full_disk_under_stdout_is_reported_and_the_run_continues() -> None:
    argv = [sys.executable, "-c", PRINT_A_PAGE.format(times=2)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    said = "ddpbench: error: cannot write all of the output: No space left on device\nhint: free disk space and run the command again\n"
    assert (done.returncode, done.stderr) == (0, said)
    kept = ROOT / "results" / "diagnosis" / "resnet18-2-cpu-ranks.json"
    asked = ["--help", "--version", "list", f"report '{kept}'", f"whatif '{kept}' --workers 4"]
    for words in map(shlex.split, asked):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run([sys.executable, "-m", "ddpbench", *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, said)


def test_printing_does_not_import_torch_or_numpy() -> None:
    heavy = "import ddpbench.report.export, ddpbench.report.progress\nprint(sorted({'torch', 'numpy', 'scipy'} & {*sys.modules}))"
    argv = [sys.executable, "-c", PRINT_A_PAGE.format(times=1) + heavy]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, encoding="utf-8", check=True)
    assert done.stdout.splitlines()[-1] == "[]"
