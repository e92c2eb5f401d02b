"""A rich console that prints on any stream: terminal, closing pipe, log, ASCII only."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, TextIO, cast

from rich.console import Console
from rich.text import Text

from ddpbench.machine.streams import print_error
from ddpbench.machine.variables import EnvVar
from ddpbench.record.errors import BenchError, ExitCode
from ddpbench.record.text import printable
from ddpbench.report.layout import Page

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a write to a disk that is full, over quota or at its file size limit."""

PIPED_WIDTH = 80
MAX_WIDTH = 100


class SafeStream:
    """A text stream that escapes what its encoding lacks and never raises on write.

    Output is discarded once the reader is gone or the disk is full. A full disk is also reported on stderr and sets ``is_truncated``.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.is_truncated = False
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        if self._stream is not None:
            try:
                self._stream.write(text.encode(self.encoding, "backslashreplace").decode(self.encoding))
            except (OSError, ValueError) as problem:
                self._discard_from_now_on(problem)
        return len(text)

    def flush(self) -> None:
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError) as problem:
                self._discard_from_now_on(problem)

    def isatty(self) -> bool:
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:
            return False

    def fileno(self) -> int:
        if self._stream is None:
            raise OSError("no stream")
        return self._stream.fileno()

    def _discard_from_now_on(self, problem: OSError | ValueError) -> None:
        """Point the descriptor at /dev/null, so that the interpreter's flush at exit cannot fail either."""
        stream, self._stream = self._stream, None
        if isinstance(problem, OSError) and problem.errno in DISK_FULL_ERRNOS:
            self.is_truncated = True
            print_error(BenchError(f"cannot write all of the output: {problem.strerror}", "free disk space and run the command again"))
        try:
            descriptor = cast(TextIO, stream).fileno()
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, descriptor)
            os.close(devnull)
        except (OSError, ValueError):
            pass  # already closed: nothing left to flush


def make_console(stream: TextIO | None, width: int | None = None) -> Console:
    """A console on ``stream``.

    COLUMNS or ``width`` set the width; else it is the terminal's, at most 100, and 80 without a terminal. Colours follow rich (a
    terminal, NO_COLOR, TERM=dumb). Text is neither highlighted nor parsed as markup.
    """
    safe_stream = SafeStream(stream)
    return Console(
        file=cast(IO[str], safe_stream),
        width=width or _console_width(safe_stream),
        height=25,  # rich uses a given width on every terminal only if the height is given too
        markup=False,
        highlight=False,
        emoji=False,
        force_jupyter=False,  # in a notebook, rich would display each line as an output of its own
    )


def finish_output(console: Console) -> ExitCode:
    """Flush; return FAILED if some output could not be written, else OK."""
    console.file.flush()
    return ExitCode.FAILED if cast(SafeStream, console.file).is_truncated else ExitCode.OK


def page_for(console: Console, verbose: bool = False) -> Page:
    return Page(console.width, unicode=not console.options.ascii_only, verbose=verbose)


def record_path_lines(path: Path | None, page: Page) -> list[Text]:
    """The file of the record, as the command that prints all of its page unless this page does; no line without a file."""
    if path is None:
        return []
    file = str(path) if "*" in path.name else shlex.quote(str(path))  # that of all parts of a sweep is for the shell to expand
    return [Text(str(path) if page.verbose else f"more     ddpbench report -v {file}")]


def print_lines(console: Console, lines: Iterable[Text]) -> None:
    """Print lines as laid out, without wrapping, so that paths and commands can be copied."""
    for line in lines:
        line.plain = printable(line.plain)
        console.print(line, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)


def print_line(console: Console, text: str) -> None:
    """Print one line without wrapping."""
    console.out(printable(text))


def print_sections(console: Console, sections: Iterable[Sequence[Text]]) -> None:
    """Print the sections that are not empty, separated by blank lines."""
    print_lines(console, [line for section in sections if section for line in (Text(), *section)][1:])


def _console_width(stream: SafeStream) -> int:
    columns = os.environ.get(EnvVar.COLUMNS, "")
    if columns.isdigit() and int(columns) > 0:
        return min(int(columns), MAX_WIDTH)
    if not stream.isatty():
        return PIPED_WIDTH
    try:
        return min(os.get_terminal_size(stream.fileno()).columns or PIPED_WIDTH, MAX_WIDTH)
    except (OSError, ValueError):
        return PIPED_WIDTH
