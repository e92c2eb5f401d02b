"""When this command began: long before the first line of a rank ran, for torch takes seconds to import."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from ddpbench.machine.read_text import read_text

START_TIME_VARIABLE = "DDPBENCH_BEGAN"
"""Set for ranks that a command of ours starts: when that began, in seconds since the machine did."""

START_TIME_FIELD = 19
"""The field of /proc/PID/stat behind the program's name with the start of a process, in clock ticks since the machine's."""


def command_start(variables: Mapping[str, str] = os.environ) -> float:
    """By ``perf_counter``, when the command began; of ranks that others start when these did, or the torchrun that they are of."""
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    if given := variables.get(START_TIME_VARIABLE):
        began_s = float(given)
    else:
        pids = [os.getpid(), *([os.getppid()] if "TORCHELASTIC_RUN_ID" in variables else [])]
        began_s = min(process_start_s(pid) or now_s for pid in pids)
    return time.perf_counter() - max(0.0, now_s - began_s)


def process_start_s(pid: int) -> float | None:
    """Seconds from the machine's start to that of the process; None where the kernel does not tell."""
    fields = read_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return int(fields[START_TIME_FIELD]) / os.sysconf("SC_CLK_TCK") if len(fields) > START_TIME_FIELD else None
