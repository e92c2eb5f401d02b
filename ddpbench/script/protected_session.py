"""A session whose script writes to a scratch folder only, while ddpbench writes its own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddpbench.bench.journal import Journal
from ddpbench.record.errors import Status
from ddpbench.record.record import Fault, Record
from ddpbench.report.messages.protected_files import REFUSAL_HINT, copy_text, refusal_text
from ddpbench.script.protect.protection import FileProtection
from ddpbench.script.protect.refusal import Refusal
from ddpbench.script.protect.scratch import scratch_folder
from ddpbench.script.run_script import Ending
from ddpbench.script.session import ScriptSession

NO_LANDLOCK = "this kernel lacks Landlock (Linux 5.19): files that C++ or Rust code opens by itself are not protected"


class ProtectedSession(ScriptSession):
    """The user's files are not changed. A script that is refused a write ends."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._protection = FileProtection(scratch_folder(self._rank_env), self._refuse, self._name_copy)
        self._refusal: Refusal | None = None

    def _run_program(self) -> Ending:
        self._protection.install()
        self._announce()
        return super()._run_program()

    def _announce(self) -> None:
        """The script is about to begin, and its files are protected."""

    def _keep(self, record: Record) -> Journal:
        return self._protection.run_unprotected(super()._keep, record)

    def _close(self, record: Record, status: Status, fault: Fault | None) -> Journal:
        return self._protection.run_unprotected(super()._close, record, status, fault)

    def _discard(self) -> None:
        self._protection.run_unprotected(super()._discard)

    def _write_exit_status(self, exit_code: int, record: Path | None = None) -> None:
        self._protection.run_unprotected(super()._write_exit_status, exit_code, record)

    def _outcome(self, ending: Ending, record: Record) -> tuple[Status, Fault | None]:
        if refusal := self._refusal_of(ending):
            return "failed", Fault(message=refusal_text(refusal.action, refusal.name), hint=REFUSAL_HINT)
        return super()._outcome(ending, record)

    def _refusal_of(self, ending: Ending) -> Refusal | None:
        """What the script was not allowed to do, if that is why it has ended."""
        return self._refusal or self._protection.denied(ending.problem)

    def _refuse(self, refusal: Refusal) -> None:
        self._refusal = refusal
        self._ender.request_end()

    def _name_copy(self, path: str, size: int) -> None:
        self.print_line(f"ddpbench: note: {copy_text(path, size)}")
