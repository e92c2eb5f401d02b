"""Saying a failure once: on stderr, in torchrun's banner, and to a parent that waits for the exit code."""

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
from ddpbench.record.errors import BenchError, ExitCode, Interrupted, UsageError
from ddpbench.record.files import encode_json
from ddpbench.record.record import Fault

EXIT_STATUS_VARIABLE = "DDPBENCH_OUTCOME"
"""Names the file in which a run that ddpbench itself started leaves its Outcome: torchrun turns every failure into 1."""

SIGNAL_READY_INFIX = ".listening-"
"""Stands between the name of that file and a rank."""

LAUNCHER_TERMINATE_TIMEOUT_S = 5.0
"""How long a rank that has nothing to add waits for the launcher to end it."""

MAX_RANK0_START_S = 30.0
"""After this it is alone with its error even where rank 0 is not seen yet, which may start later than the others."""


def exit_with_error(error: BenchError) -> NoReturn:
    """Ends this process before the ranks have met. What every rank meets alike rank 0 prints.

    The others wait to be ended for it. One that is not was alone with its error, and tells it.
    """
    try:
        seat = from_env()
    except BenchError as problem:  # the variables themselves are the error
        task = os.environ.get("SLURM_PROCID", "0")
        error, seat = problem, RankEnv(rank=int(task) if task.isdecimal() else 0)
    speaks = error.scope == "here" or (error.scope == "everywhere" and seat.is_rank0)
    if error.scope == "everywhere" and not seat.is_rank0:
        time.sleep(LAUNCHER_TERMINATE_TIMEOUT_S)
        speaks = seat.launched and _claim_and_report(error, seat)
        error = UsageError(f"rank {seat.rank} ({seat.host}) alone: {error.message}", error.hint)
    if speaks:
        print_error(error)
        write_exit_status(seat, error, error.exit_code)
    sys.exit(int(error.exit_code))


def _claim_and_report(error: BenchError, rank_env: RankEnv) -> bool:
    """Tells the other ranks, once rank 0 has come through where this one was refused; whether none had told before.

    A store that is gone went with a launch that another rank ended.
    """
    from ddpbench.distributed.rank_store import (  # torch, which a refusal that all ranks share never needs
        FailureReport,
        RankStore,
        open_store,
    )

    try:
        board = RankStore(open_store(rank_env, timeout_s=1.0), rank_env)
        board.wait_for_key("place/0", MAX_RANK0_START_S)
        board.report_failure(FailureReport(error.status, Fault(message=error.message, hint=error.hint, rank=rank_env.rank)))
        return board.claim_reporter()
    except (BenchError, RuntimeError):
        return False


def interrupted_error(received: signal.Signals, progress_text: str) -> Interrupted:
    """The error of a run that ``received`` ended: 130 for a Ctrl-C, 143 for any other signal."""
    code = ExitCode.INTERRUPTED if received == signal.SIGINT else ExitCode.TERMINATED
    return Interrupted(f"interrupted by {received.name}{progress_text}", code)


def exit_on_early_signal(received: signal.Signals) -> NoReturn:
    """Ends this process where a signal comes before a run listens, and rank 0 says so, unless a parent of ours does.

    At once: an exception in the midst of torch's import may be swallowed there, and leave it half done.
    """
    error = interrupted_error(received, "")
    with suppress(BenchError):  # an srun that started several without a rank speaks for itself
        if EXIT_STATUS_VARIABLE not in os.environ and from_env().is_rank0:
            print_error(error)
    os._exit(error.exit_code)


class ExitStatus(msgspec.Struct, frozen=True):
    """How a run ended, for the process that started it."""

    exit_code: int
    record_path: str = ""  # path of the record, where there is one


def write_exit_status(rank_env: RankEnv, error: BenchError | None, exit_code: int, record_path: Path | None = None) -> None:
    """Leaves the text where torchrun looks for it, and the outcome where a parent of ours does."""
    if error is not None and rank_env.error_file:
        _try_write(rank_env.error_file, json.dumps({"message": error.text, "timestamp": str(int(time.time()))}))
    if path := os.environ.get(EXIT_STATUS_VARIABLE):
        _try_write(path, encode_json(ExitStatus(int(exit_code), str(record_path or ""))).decode())


def read_exit_status(file: Path) -> ExitStatus | None:
    """What a rank has left there; None where none has."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=ExitStatus)
    except (OSError, msgspec.MsgspecError):
        return None


def mark_signal_ready(rank_env: RankEnv) -> None:
    """Tells a parent of ours that from here on this rank ends well by a signal; before, one meets it halfway through an import."""
    if path := os.environ.get(EXIT_STATUS_VARIABLE):
        _try_write(f"{path}{SIGNAL_READY_INFIX}{rank_env.rank}", "")


def all_signal_ready(ranks: int, exit_status_file: Path) -> bool:
    """Whether so many ranks have told that they listen; ``exit_status_file`` is where they leave how they end."""
    return len(list(exit_status_file.parent.glob(f"{exit_status_file.name}{SIGNAL_READY_INFIX}*"))) == ranks


def _try_write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        pass  # the line on stderr has been printed; these files are a courtesy
