"""Runs the user's script in this process, with torch hooked, and reports on it at its end: what ``watch`` and ``diagnose`` share."""

from __future__ import annotations

import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec
from rich.console import Console

from ddpbench.bench.journal import Journal, import_pages, new_job, print_and_write_json, reserve_timestamped_path
from ddpbench.distributed.exit_status import mark_signal_ready, write_exit_status
from ddpbench.machine.forks import pause_before_forks
from ddpbench.machine.progress_bars import close_bars, room_for_lines
from ddpbench.machine.rank_env import RankEnv
from ddpbench.machine.signals import restore_handlers
from ddpbench.record.errors import ExitCode, Status
from ddpbench.record.io import slug
from ddpbench.record.record import Fault, Job, Record
from ddpbench.record.request import OutputOptions, Request
from ddpbench.record.text import printable
from ddpbench.script.after_import import call_after_import
from ddpbench.script.early_end import EarlyEnd, ScriptEnder, StepLimit, mute_daemon_threads
from ddpbench.script.own_modules import OWN_MODULES
from ddpbench.script.run_script import Ending, Program, run_program

if TYPE_CHECKING:  # these import torch, which the script must do itself
    from ddpbench.script.observe.hooks import Hooks
    from ddpbench.script.observe.observer import Observer
    from ddpbench.script.ranks.observation import Observation


class ScriptSession(ABC):
    """One script in one process, observed. A forked child of the script reports nothing.

    Args:
        program: The script and its arguments.
        request: Where the record and the page go.
        rank_env: This rank.
        kind: ``watch`` or ``diagnose``.
        steps: End the script after so many batches; None for its own end.
        stream: Of lines and pages; None for stderr.
    """

    runs_program = False
    """Whether a script is running in this process, watched as a whole."""

    def __init__(
        self,
        program: Program,
        request: Request,
        rank_env: RankEnv,
        kind: str,
        steps: int | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self._program, self._rank_env, self._kind = program, rank_env, kind
        self._request = msgspec.structs.replace(request, output=_absolute(request.output))  # the script may change the folder
        self._pid, self._cwd, self._stream = os.getpid(), os.getcwd(), stream or sys.stderr
        self._journal: Journal | None = None
        self._observation: Observation | None = None
        self._hooks: Hooks | None = None
        self._ender = ScriptEnder(lambda: self._end_process("caught the SystemExit that should have ended it, and trained on"))
        self._step_limit = StepLimit(steps, self._ender) if steps else None
        self._ending_lock, self._has_ended = threading.Lock(), False
        self.record_path = ""  # empty until the record is saved
        self._problem = ""  # why the script is not watched
        import_pages()  # before the script: its folder comes first in sys.path

    def run(self) -> Ending:
        """Run the script to its end, and report on it."""
        call_after_import("torch", self._begin)
        restore_handlers()
        mark_signal_ready(self._rank_env)
        ScriptSession.runs_program = True
        ending = self._run_program()
        ScriptSession.runs_program = False  # in a notebook, the process goes on
        if isinstance(ending.problem, EarlyEnd):
            mute_daemon_threads()
        if os.getpid() == self._pid:
            with self._ending_lock:
                self._end(ending)
        return ending

    @contextmanager
    def around(self) -> Iterator[None]:
        """Observe a block of this process, whose torch is imported, and report on it at its end; its exception passes on."""
        self._begin()
        ending = Ending(None)
        try:
            yield
        except BaseException as problem:
            ending = Ending(problem)
            raise
        finally:
            with self._ending_lock:
                self._end(ending)

    def _run_program(self) -> Ending:
        return run_program(self._program)

    def _begin(self) -> None:
        """Hook torch, which has just been imported. An error in that must not be one of the import."""
        try:
            with OWN_MODULES.restored():
                self._observe()
        except Exception as problem:
            self._problem = f"{type(problem).__name__}: {problem}"
            self.print_line(f"ddpbench: error: cannot watch {self._program.name}: {self._problem}")

    def _observe(self) -> None:
        from ddpbench.script.observe.hooks import Hooks
        from ddpbench.script.ranks.observation import Observation

        observer = self._create_observer()
        pause_before_forks()
        os.register_at_fork(after_in_child=observer.leave_to_parent)
        self._hooks = Hooks(observer, self._ender, self._step_limit)
        self._observation = Observation(self._program.name, self._rank_env, observer, self._hooks)

    @abstractmethod
    def _create_observer(self) -> Observer:
        """What follows the script from batch to update."""

    # the end

    def _end(self, ending: Ending) -> None:
        """Report on the script, which has ended. An error in that changes neither its exit code nor its output."""
        if self._has_ended:
            return
        self._has_ended = True
        close_bars()
        try:
            with OWN_MODULES.restored():
                record = self._finish(ending)
                if self._rank_env.is_rank0:
                    self._report(record, ending)
                elif exit_code := self._exit_code(ending):
                    self._write_exit_status(exit_code)
        except Exception as problem:
            self._print_report_error(problem)

    def _end_process(self, why: str) -> None:
        """Report, and end the process of a script that cannot be ended at a step, from another thread. ``why`` says what it does."""
        from ddpbench.bench.terminator import exit_at_once

        with self._ending_lock:
            if self._has_ended:
                return
            if self._rank_env.is_rank0:
                self.print_line(f"ddpbench: note: {self._program.name} {why}: its process ends now")
            ending = Ending(EarlyEnd())
            self._end(ending)
            exit_at_once(self._exit_code(ending))

    def _exit_code(self, ending: Ending) -> int:
        """The exit code of the process."""
        return ending.exit_code

    def _finish(self, ending: Ending) -> Record | None:
        """Stop observing; returns the record without its status, or None on other ranks and without torch."""
        if self._observation is None or self._hooks is None:
            return None
        self._observation.observer.finish()
        self._hooks.remove()
        return self._collect(self._observation, ending)

    @abstractmethod
    def _collect(self, observation: Observation, ending: Ending) -> Record | None:
        """The record of all ranks, without its status; None on other ranks than rank 0."""

    def _report(self, record: Record | None, ending: Ending) -> None:
        """Print the page, or one line if there is none, and save the record."""
        if record is None or self._has_left_at_once(ending):
            reason = "made no training step" if record else "was not watched" if self._problem else "did not import torch"
            self.print_line(f"ddpbench: note: {self._program.name} {reason}: there is nothing to report")
            if ending.exit_code == ExitCode.USAGE and any(word.startswith("-") for word in self._program.arguments):
                self.print_line(f"ddpbench: hint: flags of ddpbench come before {self._program.name}; those after it are its own")
            self._discard()
            return self._write_exit_status(self._exit_code(ending))
        with suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()  # in a log of both streams, the page follows what the script printed
        journal = self._close(record, *self._outcome(ending, record))
        self._write_exit_status(self._exit_code(ending), journal.path)

    def _has_left_at_once(self, ending: Ending) -> bool:
        """Whether the script has ended itself before it took a batch, as after ``--help`` or an argument that it does not know."""
        observer = self._observation.observer if self._observation else None
        has_begun = observer is None or bool(observer.num_batches or observer.updates)
        has_left = isinstance(ending.problem, SystemExit) and not isinstance(ending.problem, EarlyEnd)
        return has_left and not has_begun and ending.exit_code in (ExitCode.OK, ExitCode.USAGE)

    def _outcome(self, ending: Ending, record: Record) -> tuple[Status, Fault | None]:
        """The status of ``record``, and why it is not ``ok``."""
        assert self._observation is not None, "there is a record"
        if isinstance(ending.problem, KeyboardInterrupt):
            return "interrupted", Fault(message="interrupted by SIGINT")
        if ending.exit_code:
            return "failed", Fault(message=ending.text)
        if problem := self._observation.observer.problem:
            return "failed", Fault(message=f"ddpbench stopped watching: {problem}", hint="the script ran to its end")
        missing = self._observation.missing(record)
        return "failed" if missing else "ok", missing

    # the record

    def _close(self, record: Record, status: Status, fault: Fault | None) -> Journal:
        """Save ``record`` as the final one, and print its page."""
        record.status, record.fault = status, fault  # also if all of its rounds are complete
        journal = self._keep(record)
        journal.close(status, fault)
        journal = self._judged(journal)
        render = None if journal.job.records[0].rounds else self._render_fault
        print_and_write_json(journal.job, Path(self._shown(journal.path)), self._request.output, stream=self._stream, render=render)
        return journal

    def _judged(self, journal: Journal) -> Journal:
        """``journal`` with what follows from its judgement, before the page is printed."""
        return journal

    def _discard(self) -> None:
        """Remove the record, if one was begun."""
        if self._journal:
            self._journal.path.unlink(missing_ok=True)

    def _keep(self, record: Record) -> Journal:
        """The journal, with ``record`` in place of the one before."""
        if self._journal is None:
            job = new_job(self._request, [record])
            job.kind = self._kind
            self._journal = Journal(job, reserve_timestamped_path(self._request, slug(f"{self._program.name} {self._kind}")))
            self.record_path = os.path.abspath(self._journal.path)
        else:
            self._journal.job.records[0] = record
            self._journal.save()
        return self._journal

    def _write_exit_status(self, exit_code: int, record: Path | None = None) -> None:
        write_exit_status(self._rank_env, None, exit_code, record)

    # lines

    def _render_fault(self, job: Job, console: Console, path: Path | None, verbose: bool = False, quiet: bool = False) -> None:
        """Print why there is no page, in one line."""
        if fault := job.records[0].fault:
            hint, file = f" ({fault.hint})" if fault.hint else "", f"; record: {path}" if path else ""
            self.print_line(f"ddpbench: note: {fault.message}{hint}{file}")

    def _print_report_error(self, problem: Exception) -> None:
        self.print_line(f"ddpbench: error: cannot report on {self._program.name}: {type(problem).__name__}: {problem}")

    def print_line(self, text: str) -> None:
        """Print one line on the stream that the script started with; a closed one is no error."""
        with suppress(OSError, ValueError), room_for_lines(self._stream) as stream:
            stream.write(f"{printable(text)}\n")  # at once: print() lets other threads write before the end of the line
            stream.flush()

    def print_progress(self, text: str) -> None:
        """Print one line about what happens, on rank 0 and unless only the result is wanted."""
        if self._rank_env.is_rank0 and not self._request.output.quiet:
            self.print_line(text)

    def _shown(self, path: Path) -> str:
        """``path`` relative to the folder from which ddpbench was started, if it is inside."""
        relative = os.path.relpath(path, self._cwd)
        return str(path) if relative.startswith("..") else relative


def _absolute(output: OutputOptions) -> OutputOptions:
    return msgspec.structs.replace(
        output,
        output_dir=os.path.abspath(output.output_dir),
        json=os.path.abspath(output.json) if output.json else None,
        summary=os.path.abspath(output.summary) if output.summary else None,
    )
