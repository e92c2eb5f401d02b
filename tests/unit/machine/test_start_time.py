"""The start of the command, on real processes."""

import os
import subprocess
import sys
from time import perf_counter

import pytest

from ddpbench.machine.start_time import command_start, process_start_s
from ddpbench.machine.variables import EnvVar


def test_command_start_is_that_of_the_program_its_launcher_or_its_variable() -> None:
    before = perf_counter()
    assert command_start({}) < before
    assert command_start({"TORCHELASTIC_RUN_ID": "none"}) < command_start({}), "the launcher started first"
    here_s = process_start_s(os.getpid())
    assert here_s is not None
    began = command_start({EnvVar.DDPBENCH_BEGAN: str(here_s)})
    assert command_start({EnvVar.DDPBENCH_BEGAN: str(here_s - 100)}) == pytest.approx(began - 100, abs=0.1)
    assert process_start_s(2**30) is None


def test_what_a_shell_did_before_it_became_ddpbench_does_not_count() -> None:
    program = (
        "import os, time, ddpbench.cli.start; from ddpbench.machine.start_time import command_start, process_start_s;"
        "now_s = time.clock_gettime(time.CLOCK_BOOTTIME);"
        "print(now_s - process_start_s(os.getpid()) - (time.perf_counter() - command_start()))"
    )
    shell = 'sleep 0.7; exec "$0" -c "$1"'
    earlier = subprocess.run(["bash", "-c", shell, sys.executable, program], capture_output=True, text=True, timeout=60, check=True)
    assert float(earlier.stdout) > 0.6, "the shell slept 0.7 s, and the clock of processes counts hundredths"
