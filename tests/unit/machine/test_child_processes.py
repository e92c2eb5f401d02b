"""Which processes end with a diagnosis."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import psutil

ENDS_CHILDREN = """
import subprocess, sys
from ddpbench.machine.child_processes import end_children
quiet = subprocess.DEVNULL
pids = [subprocess.Popen([program, "60"], stdout=quiet, stderr=quiet).pid for program in sys.argv[1:]]
end_children(1.0)
print(*pids)
"""


def test_children_end_but_for_the_daemon_of_mpi(tmp_path: Path) -> None:
    """MPI would end this process with it, and spoil its exit code."""
    sleep = shutil.which("sleep")
    assert sleep is not None
    daemon = shutil.copy(sleep, tmp_path / "orted")
    done = subprocess.run([sys.executable, "-c", ENDS_CHILDREN, sleep, str(daemon)], capture_output=True, text=True, check=True)
    ended, left = map(int, done.stdout.split())
    try:
        assert not psutil.pid_exists(ended)
        assert psutil.Process(left).name() == "orted"
    finally:
        psutil.Process(left).kill()
