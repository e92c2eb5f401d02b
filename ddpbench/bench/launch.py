"""Starts ranks as child processes: ``--gpus N`` through torchrun, ``--launches N`` in turn."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

import msgspec

from ddpbench.analysis.command import default_threads
from ddpbench.distributed.exit_status import (
    ExitStatus,
    all_signal_ready,
    exit_with_error,
    interrupted_error,
    read_exit_status,
)
from ddpbench.machine.gpu import gpu_names
from ddpbench.machine.host import usable_cores
from ddpbench.machine.rank_env import from_env
from ddpbench.machine.signals import HANDLED_SIGNALS, set_parent_death_signal
from ddpbench.machine.start_time import PROGRAM_START_S
from ddpbench.machine.streams import print_error
from ddpbench.machine.variables import EnvVar
from ddpbench.record.errors import BenchError, ExitCode, UsageError
from ddpbench.record.flags import flag_fields, to_argv
from ddpbench.record.io import check_output_paths, load
from ddpbench.record.request import TORCHRUN_MODULE, OutputOptions, Request
from ddpbench.record.text import mask_command, pluralize, printable

FORWARDED_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
"""Signals that torchrun forwards to its ranks (--signals-to-handle): its defaults plus SLURM's warning, which would end torchrun alone."""


MAX_RANKS_PER_CORE = 16
"""With more, starting them takes minutes, and all of the memory."""


def run_launches(request: Request) -> int:
    """Run the request in child processes, once per launch; returns the exit code of the worst record.

    A failed launch ends the series: it has printed its message and kept its record.
    """
    forwarder, exit_statuses, launches = prepare_launch(request), [], request.arms[0].launches
    stdout = sys.stderr if launches > 1 and request.output.json == "-" else None  # this process writes the merged record to stdout
    for number in range(launches):
        if forwarder.received:
            return forwarder.report_interrupted()
        if launches > 1:
            print(f"launch {number + 1} of {launches}", file=sys.stderr, flush=True)
        exit_statuses.append(run_launch(request, forwarder, stdout))
        if exit_statuses[-1].exit_code not in (ExitCode.OK, ExitCode.NOT_TRUSTWORTHY, ExitCode.GATE):
            return exit_statuses[-1].exit_code
    if launches > 1:
        from ddpbench.bench.merge_launches import merge_launches, save_and_print

        merged = merge_launches(request, [load(Path(status.record_path)) for status in exit_statuses])
        if not save_and_print(request, merged):
            return ExitCode.FAILED
    return max(status.exit_code for status in exit_statuses)


def run_single_launch(request: Request, stdout: TextIO | None = None) -> ExitStatus:
    """Run the request once in child processes, with the report on ``stdout``; returns exit code and record path."""
    return run_launch(request, prepare_launch(request), stdout)


def prepare_launch(request: Request) -> SignalForwarder:
    """Handle signals, then exit with an error if the request cannot be started; returns the signal forwarder."""
    forwarder = SignalForwarder()
    try:
        check_no_launcher(request)
        check_gpu_count(request)
        check_output_paths(request.output)
    except BenchError as error:
        exit_with_error(error)
    return forwarder


def child_command(request: Request) -> list[str]:
    """The same request without the flags handled here. Of several launches only this process writes ``--json``."""
    handled = ("--gpus", "--launches") + (("--json",) if request.arms[0].launches > 1 else ())
    arguments = strip_flags(request.command[request.command.index("ddpbench") + 1 :], handled)
    return ranks_command(request.output.gpus, arguments)


def strip_flags(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """``words`` without the ``flags`` and their values, in the form ``--flag value`` or ``--flag=value``."""
    kept: list[str] = []
    skip = False
    for argument in words:
        if not skip and argument.partition("=")[0] not in flags:
            kept.append(argument)
        skip = argument in flags
    return kept


def run_launch(request: Request, forwarder: SignalForwarder, stdout: TextIO | None = None) -> ExitStatus:
    """Run one launch; signals are forwarded to it, and it ends when this process does.

    Prints the torchrun command as a user would type it, masked, unless the request is redacted. The report goes to ``stdout``, by
    default that of this process.
    """
    return run_child(child_command(request), request, forwarder, stdout)


def launch_script(request: Request, command: Sequence[str], script: Sequence[str]) -> ExitStatus:
    """Start ``--gpus`` ranks of ``command``, with its own flags, on ``script`` with its arguments; returns exit code and record path."""
    assert request.output.gpus, "it is launched with --gpus"
    forwarder = prepare_launch(request)
    flags = to_argv(msgspec.structs.replace(request.output, gpus=None), flag_fields(OutputOptions))
    return run_child(torchrun_command(request.output.gpus, [*command, *flags, *script]), request, forwarder)


def ranks_command(ranks: int | None, arguments: Sequence[str]) -> list[str]:
    """The command that starts ``ranks`` ranks of ddpbench; without torchrun if that is None."""
    return torchrun_command(ranks, arguments) if ranks else [sys.executable, "-m", "ddpbench", *arguments]


def torchrun_command(ranks: int, arguments: Sequence[str]) -> list[str]:
    """The command that starts ``ranks`` ranks of ddpbench."""
    return [sys.executable, "-m", TORCHRUN_MODULE, "--standalone", f"--nproc_per_node={ranks}", "-m", "ddpbench", *arguments]


def run_child(
    command: Sequence[str], request: Request, forwarder: SignalForwarder, stdout: TextIO | None = None, log: TextIO | None = None
) -> ExitStatus:
    """Run ``command``, which starts the ranks of ``request``, like ``run_launch``; with ``log``, it has all that they print."""
    output, variables = request.output, dict(os.environ)
    variables[EnvVar.DDPBENCH_BEGAN] = str(PROGRAM_START_S)
    if TORCHRUN_MODULE in command:
        if not (output.redact or log):
            print(printable(shlex.join(["torchrun", *mask_command(command[3:])])), file=sys.stderr, flush=True)
        # torchrun would set 1, with a notice
        variables[EnvVar.OMP_NUM_THREADS] = variables.get(EnvVar.OMP_NUM_THREADS) or str(threads_per_rank(request))
        variables.setdefault(EnvVar.PET_SIGNALS_TO_HANDLE, FORWARDED_SIGNALS)
    with tempfile.TemporaryDirectory(prefix="ddpbench-") as folder:
        variables.setdefault(EnvVar.PET_LOG_DIR, folder)
        exit_status_file = Path(folder) / "exit_status.json"
        child = subprocess.Popen(
            command,
            env={**variables, EnvVar.DDPBENCH_EXIT_STATUS: str(exit_status_file)},
            stdout=log or stdout,
            stderr=log,
            preexec_fn=partial(set_parent_death_signal, signal.SIGTERM),
            start_new_session=True,  # Ctrl-C reaches it only through this process: torchrun aborts its own shutdown at a second one
        )
        code = forwarder.wait(child, is_signal_ready=lambda: all_signal_ready(output.gpus or 1, exit_status_file))
        if status := read_exit_status(exit_status_file):
            return status
        return ExitStatus(forwarder.report_interrupted() if forwarder.received else code if code > 0 else ExitCode.FAILED)


def threads_per_rank(request: Request) -> int:
    """Compute threads of each rank: CPU ranks share the usable cores; those of GPUs get one, as from torchrun."""
    if request.arms[0].device != "cpu" and gpu_names():
        return 1
    cores_per_rank = min((arm.cores for arm in request.arms if arm.cores), default=None)
    return default_threads(usable_cores(), request.output.gpus or 1, cores_per_rank)


def check_no_launcher(request: Request) -> None:
    """Raises UsageError if ranks would start ranks."""
    if from_env().launched:
        flag = "--gpus" if request.output.gpus else "--launches"
        raise UsageError(f"{flag} cannot be used under a launcher: every rank would start further ranks", f"remove {flag} or the launcher")


def check_gpu_count(request: Request) -> None:
    """Raises UsageError for more ranks than GPUs, or far more than cores. Asks NVML first, then torch if NVML does not answer."""
    requested, arm = request.output.gpus, request.arms[0]
    if not requested:
        return
    if arm.device == "cpu" or arm.share_gpu:
        most = max(1, round(MAX_RANKS_PER_CORE * usable_cores()))
        if requested > most:
            raise UsageError(f"--gpus {requested}, but this machine has {usable_cores():g} usable cores", f"use at most --gpus {most}")
        return
    num_gpus = len(gpu_names())
    if not num_gpus:
        import torch

        num_gpus = torch.cuda.device_count()
    if requested > num_gpus:
        gpus_text = pluralize(num_gpus, "GPU") if num_gpus else "no GPU"
        on_cpu = shlex.join(mask_command([*request.command, "--device", "cpu"]))
        raise UsageError(
            f"--gpus {requested}, but this machine has {gpus_text}",
            f"on CPU ranks: {on_cpu}" if not num_gpus else f"use --gpus {num_gpus}, or add --share-gpu",
        )


class SignalForwarder:
    """Handles the signals that end a run: forwards the first one to the running launch.

    Ranks that have no handler yet get SIGTERM in place of any signal: at a Ctrl-C, an interpreter that is importing torch prints a
    traceback or continues. If no launch is running, this process ends.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._forward: Callable[[signal.Signals], None] | None = None
        for signum in HANDLED_SIGNALS:
            signal.signal(signum, self._on_signal)

    def wait(self, child: subprocess.Popen[bytes], is_signal_ready: Callable[[], bool]) -> int:
        """Wait for ``child`` while forwarding signals to it; returns its exit code."""
        self._forward = lambda received: child.send_signal(received if is_signal_ready() else signal.SIGTERM)
        code = child.wait()
        self._forward = None
        return code

    def report_interrupted(self) -> int:
        """Print which signal ended the run before the ranks were ready to report it; returns the exit code."""
        assert self.received is not None
        error = interrupted_error(self.received, " before the ranks were ready")
        print_error(error)
        return error.exit_code

    def _on_signal(self, number: int, _: object) -> None:
        if self.received:
            return
        self.received = signal.Signals(number)
        if self._forward:
            self._forward(self.received)
        else:
            os._exit(self.report_interrupted())
