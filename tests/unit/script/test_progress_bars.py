"""Lines of ddpbench beside the progress bars of a script, on a real terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

PRINTING = """
import sys
from ddpbench.machine.progress_bars import close_bars, room_for_lines

stderr = sys.stderr

def say(text):
    with room_for_lines(stderr) as stream:
        stream.write(text + chr(10))
        stream.flush()
"""

TQDM = """
from tqdm import tqdm
for index in tqdm(range(4), desc="training", mininterval=0, file=FILE):
    if index in (1, 2):
        say(f"line {index}")
"""

RICH = """
from rich.progress import Progress
from rich.console import Console
with Progress(console=Console(stderr=True), auto_refresh=False) as progress:
    task = progress.add_task("training", total=4)
    for index in range(4):
        progress.update(task, advance=1, refresh=True)
        if index in (1, 2):
            say(f"line {index}")
"""

ENDED = """
from tqdm import tqdm
bar = tqdm(range(4), desc="training", mininterval=0)
next(iter(bar))
close_bars()
say("line 1")
"""


def screen(source: str, folder: Path) -> list[str]:
    """The lines that a terminal shows in the end."""
    (folder / "t.py").write_text(PRINTING + source)
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen([sys.executable, "t.py"], cwd=folder, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    printed = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the last writer has closed it
            break
        if not part:
            break
        printed += part
    os.close(leader)
    assert process.wait(60) == 0, printed.decode()
    lines = [""]
    row = column = 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x1b]", printed.decode().replace("\r\n", "\n\r")):
        if token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token == "\r":
            column = 0
        elif token.startswith("\x1b"):
            if token.endswith("A"):
                row -= int(token[2:-1] or 1)
            elif token.endswith("K"):
                lines[row] = "" if token == "\x1b[2K" else lines[row][:column]
        else:
            lines[row] = lines[row].ljust(column)[:column] + token + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


@pytest.mark.parametrize(
    "source",
    [TQDM.replace("FILE", "None"), TQDM.replace("FILE", "sys.stdout"), RICH],
    ids=["tqdm", "tqdm on stdout", "rich"],
)
def test_line_stands_above_the_bar(source: str, tmp_path: Path) -> None:
    shown = screen(source, tmp_path)
    assert [line for line in shown if "line" in line] == ["line 1", "line 2"]
    assert len([line for line in shown if line.startswith("training")]) == 1


def test_line_after_a_script_that_was_ended_in_its_loop_begins_a_line(tmp_path: Path) -> None:
    shown = screen(ENDED, tmp_path)
    assert "line 1" in shown
    assert any(line.startswith("training") for line in shown)


def test_line_without_any_bar_is_written_as_it_is(tmp_path: Path) -> None:
    assert screen("import tqdm\nsay('line 1')\n", tmp_path)[0] == "line 1"
