"""Saying a failure once: on stderr, in torchrun's banner, and to a parent that waits for the exit code."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

import msgspec

from ddpbench.machine.seat import Seat, take_seat
from ddpbench.record.errors import BenchError, UsageError
from ddpbench.record.record import Fault

OUTCOME_VARIABLE = "DDPBENCH_OUTCOME"
"""Names the file in which a run that ddpbench itself started leaves its Outcome: torchrun turns every failure into 1."""

PATIENCE_S = 5.0
"""How long a rank that has nothing to add waits for the launcher to end it."""


def refuse(error: BenchError) -> NoReturn:
    """Ends this process before the ranks have met. What every rank meets alike rank 0 prints.

    The others wait to be ended for it. One that is not was alone with its error, and tells it.
    """
    try:
        seat = take_seat()
    except BenchError as problem:  # the variables themselves are the error
        error, seat = problem, Seat(rank=int(os.environ.get("SLURM_PROCID", "0")))
    speaks = error.known == "here" or (error.known == "everywhere" and seat.speaks)
    if error.known == "everywhere" and not seat.speaks:
        time.sleep(PATIENCE_S)
        speaks = seat.launched and _is_first_to_tell(error, seat)
        error = UsageError(f"rank {seat.rank} ({seat.host}) alone: {error.message}", error.hint)
    if speaks:
        print_error(error)
        leave_outcome(seat, error, error.exit_code)
    sys.exit(int(error.exit_code))


def _is_first_to_tell(error: BenchError, seat: Seat) -> bool:
    """Tells the other ranks; whether none had told before. A store that is gone went with a launch that another rank ended."""
    from ddpbench.machine.board import Blame, Board, open_store  # torch, which a refusal that all ranks share never needs

    try:
        socket.create_connection((seat.address, seat.port), timeout=2.0).close()  # torch's own try would write its complaints to stderr
        board = Board(open_store(seat, limit_s=2.0), seat)
        board.blame(Blame(error.status, Fault(message=error.message, hint=error.hint, rank=seat.rank)))
        return board.claim()
    except (BenchError, RuntimeError, OSError):
        return False


def print_error(error: BenchError) -> None:
    """One ``ddpbench: error:`` line and one ``hint:`` line on stderr; a closed stderr is no second error."""
    try:
        sys.stderr.write(error.lines() + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


class Outcome(msgspec.Struct, frozen=True):
    """How a run ended, for the process that started it."""

    exit_code: int
    record: str = ""  # path of the record, where there is one


def leave_outcome(seat: Seat, error: BenchError | None, exit_code: int, record: Path | None = None) -> None:
    """Leaves the text where torchrun looks for it, and the outcome where a parent of ours does."""
    if error is not None and seat.error_file:
        _write(seat.error_file, json.dumps({"message": error.message, "timestamp": str(int(time.time()))}))
    if path := os.environ.get(OUTCOME_VARIABLE):
        _write(path, msgspec.json.encode(Outcome(int(exit_code), str(record or ""))).decode())


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        pass  # the line on stderr has been printed; these two files are a courtesy
