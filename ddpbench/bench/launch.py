"""Starting the ranks as a child: ``--gpus N`` through torchrun, and ``--launches N`` one after the other."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

from ddpbench.bench.merge_launches import merge, show
from ddpbench.bench.relay import Relay
from ddpbench.bench.since import BEGAN_VARIABLE, process_began_s
from ddpbench.bench.targets import check_targets
from ddpbench.distributed.exit_status import OUTCOME_VARIABLE, Outcome, are_listening, outcome_in, refuse
from ddpbench.machine.gpu import gpu_names
from ddpbench.machine.rank_env import take_seat
from ddpbench.machine.signals import end_with_parent
from ddpbench.record.errors import BenchError, Exit, UsageError
from ddpbench.record.record import load
from ddpbench.record.request import OUR_TORCHRUN, Request
from ddpbench.record.text import count, printable

HANDED_ON = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
"""What torchrun gives to its ranks (its --signals-to-handle): its defaults, and SLURM's warning, which would end torchrun alone."""


def start_launches(request: Request) -> int:
    """Runs the request in child processes, once or ``--launches`` times; exits by the worst record's status.

    A launch that fails ends the series: its message has been printed, and its record kept.
    """
    relay, outcomes, launches = ready(request), [], request.arms[0].launches
    stdout = sys.stderr if launches > 1 and request.output.json == "-" else None  # there this process writes the record of all
    for number in range(launches):
        if relay.received:
            return relay.say()
        if launches > 1:
            print(f"launch {number + 1} of {launches}", file=sys.stderr, flush=True)
        outcomes.append(start(request, relay, stdout))
        if outcomes[-1].exit_code not in (Exit.OK, Exit.NOT_TRUSTWORTHY, Exit.GATE):
            return outcomes[-1].exit_code
    kept = launches == 1 or show(request, merge(request, [load(Path(outcome.record)) for outcome in outcomes]))
    return max(outcome.exit_code for outcome in outcomes) if kept else Exit.FAILED


def start_one(request: Request, stdout: TextIO | None = None) -> Outcome:
    """Runs the request in child processes, once, whose report goes to ``stdout``; returns how it ended, and where its record is."""
    return start(request, ready(request), stdout)


def ready(request: Request) -> Relay:
    """Refuses what cannot be started, once signals are heard; returns who hears them."""
    relay = Relay()
    try:
        refuse_inside_a_launcher(request)
        refuse_too_many(request)
        check_targets(request.output)
    except BenchError as error:
        refuse(error)
    return relay


def child_command(request: Request) -> list[str]:
    """The same request without the flags that are served here; several launches write one ``--json``, and it is ours."""
    served = ("--gpus", "--launches") + (("--json",) if request.arms[0].launches > 1 else ())
    words = without(request.command[request.command.index("ddpbench") + 1 :], served)
    if request.output.gpus:
        torchrun = ["-m", OUR_TORCHRUN, "--standalone", f"--nproc_per_node={request.output.gpus}"]
        return [sys.executable, *torchrun, "-m", "ddpbench", *words]
    return [sys.executable, "-m", "ddpbench", *words]


def without(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """``words`` less the ``flags`` and their values, spelled ``--flag value`` or ``--flag=value``."""
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and word.partition("=")[0] not in flags:
            kept.append(word)
        skip = word in flags
    return kept


def start(request: Request, relay: Relay, stdout: TextIO | None = None) -> Outcome:
    """Runs one launch, printing it as a person would type it; signals are passed on, and the launch ends when this process does.

    Its report goes to ``stdout``, or where that of this process would.
    """
    command, variables = child_command(request), dict(os.environ)
    if began_s := process_began_s(os.getpid()):
        variables[BEGAN_VARIABLE] = str(began_s)
    if OUR_TORCHRUN in command:
        print(printable(shlex.join(["torchrun", *command[3:]])), file=sys.stderr, flush=True)
        variables.setdefault("OMP_NUM_THREADS", "1")  # torchrun's own default, without its notice
        variables.setdefault("PET_SIGNALS_TO_HANDLE", HANDED_ON)
    with tempfile.TemporaryDirectory(prefix="ddpbench-") as folder:
        left = Path(folder) / "outcome.json"
        child = subprocess.Popen(
            command,
            env={**variables, OUTCOME_VARIABLE: str(left)},
            stdout=stdout,
            preexec_fn=partial(end_with_parent, signal.SIGTERM),
            start_new_session=True,  # a Ctrl-C comes from here alone: torchrun aborts its own shutdown at a second one
        )
        code = relay.wait(child, listening=lambda: are_listening(request.output.gpus or 1, left))
        if outcome := outcome_in(left):
            return outcome
        return Outcome(relay.say() if relay.received else code if code > 0 else Exit.FAILED)


def refuse_inside_a_launcher(request: Request) -> None:
    """Raises UsageError where ranks would start ranks."""
    if take_seat().launched:
        flag = "--gpus" if request.output.gpus else "--launches"
        raise UsageError(f"{flag} inside a launcher: every rank would start ranks of its own", "leave the launcher, or the flag, out")


def refuse_too_many(request: Request) -> None:
    """Raises UsageError for more ranks than GPUs. NVML is asked first; where it does not answer, torch."""
    asked, arm = request.output.gpus, request.arms[0]
    if not asked or arm.device == "cpu" or arm.share_gpu:
        return
    present = len(gpu_names())
    if not present:
        import torch

        present = torch.cuda.device_count()
    if asked > present:
        has = count(present, "GPU") if present else "no GPU"
        raise UsageError(
            f"--gpus {asked}, but this machine has {has}",
            "--device cpu trains on that many CPU ranks" if not present else f"--gpus {present}, or --share-gpu",
        )
