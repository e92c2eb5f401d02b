"""Reports a failure once: on stderr, in torchrun's summary, and to a parent that waits for the exit code."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from ddpbench.machine.rank_env import RankEnv, from_env
from ddpbench.machine.streams import print_error
from ddpbench.machine.variables import EnvVar
from ddpbench.record.errors import BenchError, ExitCode, Interrupted, UsageError
from ddpbench.record.io import encode_json
from ddpbench.record.record import Fault

SIGNAL_READY_INFIX = ".signal-ready-"
"""Infix between the name of the exit-status file and the rank, in the names of signal-ready files."""

LAUNCHER_TERMINATE_TIMEOUT_S = 5.0
"""How long a rank waits for the launcher to end it if rank 0 reports the same error."""

MAX_RANK0_START_S = 30.0
"""How long to wait for rank 0, which may start later than others, before a rank reports its error itself."""


def exit_with_error(error: BenchError) -> NoReturn:
    """Exit with an error before the rendezvous. Rank 0 prints errors that every rank has.

    Other ranks wait for the launcher to end them, which tests whether all ranks have the error: a rank that still runs after
    ``LAUNCHER_TERMINATE_TIMEOUT_S`` is the only one, and prints it.
    """
    try:
        rank_env = from_env()
    except BenchError as problem:  # the variables themselves are the error
        task_id = os.environ.get(EnvVar.SLURM_PROCID, "0")
        error, rank_env = problem, RankEnv(rank=int(task_id) if task_id.isdecimal() else 0)
    is_reporter = error.scope == "here" or (error.scope == "everywhere" and rank_env.is_rank0)
    if error.scope == "everywhere" and not rank_env.is_rank0:
        time.sleep(LAUNCHER_TERMINATE_TIMEOUT_S)
        is_reporter = rank_env.launched and _claim_and_report(error, rank_env)
        error = UsageError(f"rank {rank_env.rank} ({rank_env.host}) only: {error.message}", error.hint)
    if is_reporter:
        print_error(error)
        write_exit_status(rank_env, error, error.exit_code)
    sys.exit(int(error.exit_code))


def _claim_and_report(error: BenchError, rank_env: RankEnv) -> bool:
    """Report ``error`` to the other ranks once rank 0 has registered. True if no other rank has reported yet.

    False if the store is unreachable: then another rank has ended the launch.
    """
    from ddpbench.distributed.rank_store import (  # imports torch, not needed for errors that all ranks share
        FailureReport,
        RankStore,
        open_store,
    )

    try:
        store = RankStore(open_store(rank_env, timeout_s=1.0), rank_env)
        store.wait_for_key("place/0", MAX_RANK0_START_S)
        store.report_failure(FailureReport(error.status, Fault(message=error.message, hint=error.hint, rank=rank_env.rank)))
        return store.claim_reporter()
    except (BenchError, RuntimeError):
        return False


def interrupted_error(received: signal.Signals, progress_text: str = "") -> Interrupted:
    """The error of a run ended by signal ``received``: exit code 130 for Ctrl-C, 143 for any other."""
    code = ExitCode.INTERRUPTED if received == signal.SIGINT else ExitCode.TERMINATED
    return Interrupted(f"interrupted by {received.name}{progress_text}", code)


def exit_on_early_signal(received: signal.Signals) -> NoReturn:
    """Exit on a signal that arrives before the run handles signals. Rank 0 prints it, unless a ddpbench parent does.

    Exits immediately: an exception during torch's import may be swallowed there and leave the import half done.
    """
    error = interrupted_error(received)
    with suppress(BenchError):  # for srun tasks without a rank, print nothing
        if EnvVar.DDPBENCH_EXIT_STATUS not in os.environ and from_env().is_rank0:
            print_error(error)
    os._exit(error.exit_code)


class ExitStatus(msgspec.Struct, frozen=True):
    """Exit code and record of a run, for the process that started it."""

    exit_code: int
    record_path: str = ""  # empty without a record


def write_exit_status(rank_env: RankEnv, error: BenchError | None, exit_code: int, record_path: Path | None = None) -> None:
    """Write the error message to torchrun's error file, and the ExitStatus to the file named by EnvVar.DDPBENCH_EXIT_STATUS."""
    if error is not None and rank_env.error_file:
        _try_write(rank_env.error_file, json.dumps({"message": error.text, "timestamp": str(int(time.time()))}))
    if path := os.environ.get(EnvVar.DDPBENCH_EXIT_STATUS):
        _try_write(path, encode_json(ExitStatus(int(exit_code), str(record_path or ""))).decode())


def read_exit_status(file: Path) -> ExitStatus | None:
    """The ExitStatus that a rank wrote to ``file``; None if there is none."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=ExitStatus)
    except (OSError, msgspec.MsgspecError):
        return None


def mark_signal_ready(rank_env: RankEnv) -> None:
    """Signal to a ddpbench parent that this rank now handles signals; before, a signal may arrive during an import."""
    if path := os.environ.get(EnvVar.DDPBENCH_EXIT_STATUS):
        _try_write(f"{path}{SIGNAL_READY_INFIX}{rank_env.rank}", "")


def all_signal_ready(ranks: int, exit_status_file: Path) -> bool:
    """Whether ``ranks`` ranks handle signals. ``exit_status_file`` is the file to which they write their ExitStatus."""
    return len(list(exit_status_file.parent.glob(f"{exit_status_file.name}{SIGNAL_READY_INFIX}*"))) == ranks


def _try_write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        pass  # best effort: the error is already on stderr
