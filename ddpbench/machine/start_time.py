"""When the command began, from which the time until the first step counts."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from ddpbench.machine.read_text import read_text
from ddpbench.machine.variables import EnvVar

PROGRAM_START_S = time.clock_gettime(time.CLOCK_BOOTTIME)
"""When ddpbench was loaded, in seconds since boot. Its process may be older: a shell that first installs then becomes it by ``exec``."""

START_TIME_FIELD = 19
"""Index of a process's start time, in clock ticks since boot, among the fields of /proc/PID/stat after the program's name."""


def command_start(variables: Mapping[str, str] = os.environ) -> float:
    """Start of the command on the ``perf_counter`` clock; under a foreign launcher, that of ddpbench or its torchrun parent."""
    if variable := variables.get(EnvVar.DDPBENCH_BEGAN):
        began_s = float(variable)
    else:
        launcher_s = process_start_s(os.getppid()) if EnvVar.TORCHELASTIC_RUN_ID in variables else None
        began_s = min(PROGRAM_START_S, launcher_s or PROGRAM_START_S)
    return time.perf_counter() - max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)


def process_start_s(pid: int) -> float | None:
    """Seconds from boot to the start of the process; None if the kernel does not report it."""
    fields = read_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return int(fields[START_TIME_FIELD]) / os.sysconf("SC_CLK_TCK") if len(fields) > START_TIME_FIELD else None
