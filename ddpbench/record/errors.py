"""Error types: message, hint, status in the record, and exit code."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Literal

from typing_extensions import Self

from ddpbench.record.text import mask_text, printable

Status = Literal["running", "ok", "failed", "refused", "hung", "interrupted", "invalid"]
"""Status of an arm. One left at "running" by a process that is gone is shown as "interrupted"."""


class ExitCode(IntEnum):
    """Exit codes of a process, each with its meaning.

    torchrun turns every failure into 1, so rely on the record's status there.
    """

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    OK = 0, "the run completed; among several arms, an invalid one is a result"
    FAILED = 1, "the run failed, or its figure is invalid"
    USAGE = 2, "invalid request: an unknown name, a flag out of range, a missing device, or a batch that does not fit in memory"
    NOT_TRUSTWORTHY = 3, "with --strict: a trust check reported a warning or an error"
    GATE = 4, "with --fail-if-data-wait P%: ranks waited for data for more than P% of a step"
    HUNG = 124, "a rank made no progress for --hang-timeout seconds; the error names it"
    INTERRUPTED = 130, "ended by Ctrl-C"
    TERMINATED = 143, "ended by SIGTERM or another signal"


ErrorScope = Literal["everywhere", "here", "reported"]
"""Which ranks know of an error before the rendezvous: all hit it, only this one does, or a peer has already reported it."""


class BenchError(Exception):
    """A failure with a one-line message and a hint, in which secrets are masked. ``status`` is the status stored in the record."""

    status: Status = "failed"
    exit_code: int = ExitCode.FAILED
    scope: ErrorScope = "everywhere"

    def __init__(self, message: str, hint: str = "", rows: Sequence[str] = ()) -> None:
        self.message, self.hint, self.rows = mask_text(message), mask_text(hint), [mask_text(row) for row in rows]
        super().__init__("\n".join([self.message, *(f"  {row}" for row in self.rows)]))

    @property
    def text(self) -> str:
        """The message, then each row of its table, one per line."""
        return "\n".join([printable(self.message), *(f"  {printable(row)}" for row in self.rows)])

    def format_stderr(self) -> str:
        """The text for stderr: ``ddpbench: error: ...`` and a ``hint:`` line if there is a hint."""
        return f"ddpbench: error: {self.text}" + (f"\nhint: {printable(self.hint)}" if self.hint else "")


class UsageError(BenchError):
    """An invalid request: an unknown name, a flag out of range, a missing device."""

    status: Status = "refused"
    exit_code: int = ExitCode.USAGE


class RendezvousError(UsageError):
    """This rank cannot reach the others, which may not know it."""

    scope: ErrorScope = "here"


class ReportedByPeer(UsageError):
    """Another rank failed and has already reported why."""

    scope: ErrorScope = "reported"


class ConfigFailed(BenchError):
    """One arm cannot continue on any rank; other arms do."""


class OutOfMemory(ConfigFailed):
    """A step of an arm ran out of memory on some rank. A usage error if the job has no other arm."""

    exit_code: int = ExitCode.USAGE


class DataWaitExceeded(BenchError):
    """A run completed but waited for data longer than ``--fail-if-data-wait`` allows."""

    exit_code: int = ExitCode.GATE


class Hung(BenchError):
    """A rank made no progress for longer than ``--hang-timeout``."""

    status: Status = "hung"
    exit_code: int = ExitCode.HUNG


class Interrupted(BenchError):
    """A signal ended the run; finished rounds are kept."""

    status: Status = "interrupted"

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
