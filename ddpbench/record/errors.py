"""What can go wrong, in one line each: the message, the hint, the status it leaves in a record, the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Literal

from ddpbench.record.text import printable

Status = Literal["running", "ok", "failed", "refused", "hung", "interrupted", "invalid"]
"""How an arm stands. One left at "running" by a process that is gone is shown as interrupted: "cut off"."""


class ExitCode(IntEnum):
    """Exit codes in plain Python. Under torchrun every failure is 1, so the record's status carries the truth."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_TRUSTWORTHY = 3
    GATE = 4
    HUNG = 124
    INTERRUPTED = 130
    TERMINATED = 143


ErrorScope = Literal["everywhere", "here", "told"]
"""Who knows of an error that comes before the ranks have met: every rank alike, this rank alone, or all, since one has told."""


class BenchError(Exception):
    """A failure with one line for the user and one hint. ``status`` is what the record of the run will say."""

    status: Status = "failed"
    exit_code: int = ExitCode.FAILED
    scope: ErrorScope = "everywhere"

    def __init__(self, message: str, hint: str = "", rows: Sequence[str] = ()) -> None:
        super().__init__("\n".join([message, *(f"  {row}" for row in rows)]))
        self.message = message
        self.hint = hint
        self.rows = rows

    @property
    def text(self) -> str:
        """The message on one line, and each row of its table on another."""
        return "\n".join([printable(self.message), *(f"  {printable(row)}" for row in self.rows)])

    def format_stderr(self) -> str:
        """The text for stderr: ``ddpbench: error: ...`` and, if there is one, a ``hint:`` line."""
        return f"ddpbench: error: {self.text}" + (f"\nhint: {printable(self.hint)}" if self.hint else "")


class UsageError(BenchError):
    """Asked for something that cannot be: an unknown name, a flag out of range, a device that is not there."""

    status: Status = "refused"
    exit_code: int = ExitCode.USAGE


class RendezvousError(UsageError):
    """This rank cannot reach the others, who may know nothing of it."""

    scope: ErrorScope = "here"


class ReportedByPeer(UsageError):
    """Another rank refused, and has said why."""

    scope: ErrorScope = "told"


class ConfigFailed(BenchError):
    """One of several arms cannot go on, on any rank; the others do."""


class OutOfMemory(ConfigFailed):
    """One step of an arm needs more memory than the device of some rank has. Where there is no other arm, too much was asked for."""

    exit_code: int = ExitCode.USAGE


class DataWaitExceeded(BenchError):
    """``--fail-if-data-wait`` was asked for, and a run that ended well waited for data longer than that."""

    exit_code: int = ExitCode.GATE


class Hung(BenchError):
    """A rank made no progress for longer than ``--hang-timeout``."""

    status: Status = "hung"
    exit_code: int = ExitCode.HUNG


class Interrupted(BenchError):
    """A signal ended the run; the rounds that were finished are kept."""

    status: Status = "interrupted"

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
