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

from ddpbench.machine.rank_env import Seat, take_seat
from ddpbench.machine.stderr import print_error
from ddpbench.record.encoded import encoded
from ddpbench.record.errors import BenchError, Exit, Interrupted, UsageError
from ddpbench.record.record import Fault

OUTCOME_VARIABLE = "DDPBENCH_OUTCOME"
"""Names the file in which a run that ddpbench itself started leaves its Outcome: torchrun turns every failure into 1."""

LISTENING = ".listening-"
"""Stands between the name of that file and a rank."""

PATIENCE_S = 5.0
"""How long a rank that has nothing to add waits for the launcher to end it."""

LONGEST_START_S = 30.0
"""After this it is alone with its error even where rank 0 is not seen yet, which may start later than the others."""


def refuse(error: BenchError) -> NoReturn:
    """Ends this process before the ranks have met. What every rank meets alike rank 0 prints.

    The others wait to be ended for it. One that is not was alone with its error, and tells it.
    """
    try:
        seat = take_seat()
    except BenchError as problem:  # the variables themselves are the error
        task = os.environ.get("SLURM_PROCID", "0")
        error, seat = problem, Seat(rank=int(task) if task.isdecimal() else 0)
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
    """Tells the other ranks, once rank 0 has come through where this one was refused; whether none had told before.

    A store that is gone went with a launch that another rank ended.
    """
    from ddpbench.distributed.rank_store import Blame, Board, open_store  # torch, which a refusal that all ranks share never needs

    try:
        board = Board(open_store(seat, limit_s=1.0), seat)
        board.wait_for("place/0", LONGEST_START_S)
        board.blame(Blame(error.status, Fault(message=error.message, hint=error.hint, rank=seat.rank)))
        return board.claim()
    except (BenchError, RuntimeError):
        return False


def interrupted(received: signal.Signals, how_far: str) -> Interrupted:
    """The error of a run that ``received`` ended: 130 for a Ctrl-C, 143 for any other signal."""
    code = Exit.INTERRUPTED if received == signal.SIGINT else Exit.TERMINATED
    return Interrupted(f"interrupted by {received.name}{how_far}", code)


def end_early(received: signal.Signals) -> NoReturn:
    """Ends this process where a signal comes before a run listens, and rank 0 says so, unless a parent of ours does.

    At once: an exception in the midst of torch's import may be swallowed there, and leave it half done.
    """
    error = interrupted(received, "")
    with suppress(BenchError):  # an srun that started several without a rank speaks for itself
        if OUTCOME_VARIABLE not in os.environ and take_seat().speaks:
            print_error(error)
    os._exit(error.exit_code)


class Outcome(msgspec.Struct, frozen=True):
    """How a run ended, for the process that started it."""

    exit_code: int
    record: str = ""  # path of the record, where there is one


def leave_outcome(seat: Seat, error: BenchError | None, exit_code: int, record: Path | None = None) -> None:
    """Leaves the text where torchrun looks for it, and the outcome where a parent of ours does."""
    if error is not None and seat.error_file:
        _write(seat.error_file, json.dumps({"message": error.text, "timestamp": str(int(time.time()))}))
    if path := os.environ.get(OUTCOME_VARIABLE):
        _write(path, encoded(Outcome(int(exit_code), str(record or ""))).decode())


def outcome_in(file: Path) -> Outcome | None:
    """What a rank has left there; None where none has."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Outcome)
    except (OSError, msgspec.MsgspecError):
        return None


def tell_listening(seat: Seat) -> None:
    """Tells a parent of ours that from here on this rank ends well by a signal; before, one meets it halfway through an import."""
    if path := os.environ.get(OUTCOME_VARIABLE):
        _write(f"{path}{LISTENING}{seat.rank}", "")


def are_listening(ranks: int, outcome: Path) -> bool:
    """Whether so many ranks have told that they listen; ``outcome`` is where they leave how they end."""
    return len(list(outcome.parent.glob(f"{outcome.name}{LISTENING}*"))) == ranks


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        pass  # the line on stderr has been printed; these files are a courtesy
