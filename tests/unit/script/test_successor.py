"""The command that a process becomes at its end: after the exit functions, in the folder and with the variables of its start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import atexit, os, sys, threading, time
from ddpbench.script.successor import Successor
successor = Successor()
before = dict(os.environ)
os.environ["CHANGED"] = "yes"
os.chdir("/")
atexit.register(print, "exit function")  # not flushed
threading.Thread(target=lambda: (time.sleep(0.3), print("thread", flush=True))).start()
successor.become([sys.executable, "-c", "import os; print(os.getcwd(), os.environ.get('CHANGED'), os.getpid())"], before)
print(os.getpid(), flush=True)
END
"""


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise ValueError('no')"])
def test_command_takes_the_place_of_the_process(tmp_path: Path, end: str) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", SCRIPT.replace("END", end)]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=True)
    pid, *rest = done.stdout.splitlines()
    assert rest == ["thread", "exit function", f"{tmp_path} None {pid}"]


def test_forked_child_does_not_become_it(tmp_path: Path) -> None:
    script = SCRIPT.replace("END", "if os.fork() == 0: sys.exit()\nos.wait()")
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.count(f"{tmp_path} None") == 1


def test_without_a_command_the_process_ends(tmp_path: Path) -> None:
    script = SCRIPT.replace("successor.become", "print")
    done = subprocess.run([sys.executable, "-c", script.replace("END", "sys.exit(4)")], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 4
