"""The command ``watch``: runs the user's script as it is, and reports on it at the end."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec
from rich.console import Console

from ddpbench.bench.journal import Journal, new_job, print_and_write_json, reserve_timestamped_path
from ddpbench.distributed.exit_status import mark_signal_ready, write_exit_status
from ddpbench.machine.rank_env import RankEnv, from_env
from ddpbench.machine.signals import restore_handlers
from ddpbench.record.errors import BenchError, Status
from ddpbench.record.io import check_output_paths, slug
from ddpbench.record.record import Fault, Job, Record
from ddpbench.record.request import OutputOptions, Request, WatchOptions
from ddpbench.record.text import printable
from ddpbench.report.pages.registry import PageRenderer
from ddpbench.report.pages.watch import render_watch
from ddpbench.script.after_import import call_after_import
from ddpbench.script.early_end import EarlyEnd, ScriptEnder, StepLimit
from ddpbench.script.run_script import Ending, Program, check_program, run_program

if TYPE_CHECKING:  # these import torch, which the script must do itself
    from ddpbench.script.hooks import Hooks
    from ddpbench.script.observation import Observation
    from ddpbench.script.reporter import Reporter


def watch(program: Program, request: Request, options: WatchOptions) -> NoReturn:
    """Run ``program`` in this process, then end the process as ``program`` would have. Raises UsageError if it does not exist."""
    check_output_paths(request.output)
    check_program(program)
    WatchSession(program, request, from_env(), options).run().exit_process()


class WatchSession:
    """The watching of one script in one process. A forked child of the script reports nothing."""

    kind = "watch"
    _render: PageRenderer = staticmethod(render_watch)

    def __init__(self, program: Program, request: Request, rank_env: RankEnv, options: WatchOptions) -> None:
        self._program, self._rank_env, self._options = program, rank_env, options
        self._request = msgspec.structs.replace(request, output=_absolute(request.output))  # the script may change the folder
        self._pid, self._cwd, self._stderr = os.getpid(), os.getcwd(), sys.stderr
        self._journal: Journal | None = None
        self._observation: Observation | None = None
        self._hooks: Hooks | None = None
        self._reporter: Reporter | None = None
        self._ender = ScriptEnder(self._leave)
        self._ending_lock, self._has_ended = threading.Lock(), False
        self.record_path = ""
        self.is_quiet, self.is_redacted = request.output.quiet, request.output.redact

    def run(self) -> Ending:
        """Run the script to its end, and report on it."""
        call_after_import("torch", self.begin)
        restore_handlers()
        mark_signal_ready(self._rank_env)
        self._prepare()
        ending = run_program(self._program)
        self.end(ending)
        return ending

    def _prepare(self) -> None:
        """What must be done right before the script's first line."""

    def begin(self) -> None:
        """Hook torch, which has just been imported. An error in that must not be one of the import."""
        try:
            self._begin()
        except Exception as problem:
            self.print_line(f"ddpbench: error: cannot watch {self._program.name}: {type(problem).__name__}: {problem}")

    def _begin(self) -> None:
        from ddpbench.script.hooks import Hooks
        from ddpbench.script.observation import Observation
        from ddpbench.script.observer import Observer

        observer = Observer(self._begin_reporting, times_all=self._options.every is not None)
        os.register_at_fork(after_in_child=observer.leave_to_parent)
        self._hooks = Hooks(observer, self._ender, StepLimit(self._options.steps, self._ender) if self._options.steps else None)
        self._observation = Observation(self._program.name, self._rank_env, observer, self._hooks)

    def end(self, ending: Ending) -> None:
        """Report on the script, which has ended. An error in that changes neither its exit code nor its output."""
        if os.getpid() != self._pid:
            return
        with self._ending_lock:
            self._end(ending)

    def _end(self, ending: Ending) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        try:
            record = self._collect(ending)
            if self._rank_env.is_rank0:
                self._report(record, ending)
            elif ending.exit_code:
                self._write_exit_status(ending.exit_code)
        except Exception as problem:
            self._print_report_error(problem)

    def _leave(self) -> None:
        """End the process of a script that has caught its early end, and trained on."""
        from ddpbench.bench.terminator import exit_at_once

        with self._ending_lock:
            if self._has_ended:
                return
            if self._rank_env.is_rank0:
                caught = "caught the SystemExit that should have ended it, and trained on"
                self.print_line(f"ddpbench: note: {self._program.name} {caught}: its process ends now")
            ending = Ending(EarlyEnd())
            self._end(ending)
            exit_at_once(ending.exit_code)

    def _begin_reporting(self) -> None:
        from ddpbench.script.reporter import Reporter

        assert self._observation is not None, "the script is watched"
        self._reporter = Reporter(self._observation, self._rank_env, self._options, self)

    def _collect(self, ending: Ending) -> Record | None:
        """The record so far, without its status; None on other ranks, and without torch."""
        if self._observation is None or self._hooks is None:
            return None
        self._observation.observer.finish()
        self._hooks.remove()
        if self._reporter:
            return self._reporter.finish(ending.text if ending.exit_code else "")
        return self._observation.own_record() if self._rank_env.is_rank0 else None

    def _report(self, record: Record | None, ending: Ending) -> None:
        """Print the page, or one line if there is none, and save the record."""
        if record is None:
            return self.print_line(f"ddpbench: note: {self._program.name} did not import torch: there is nothing to report")
        with suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()  # in a log of both streams, the page follows what the script printed
        journal = self._close(record, *self._outcome(ending, record))
        self._write_exit_status(ending.exit_code, journal.path)

    def _write_exit_status(self, exit_code: int, record: Path | None = None) -> None:
        write_exit_status(self._rank_env, None, exit_code, record)

    def _close(self, record: Record, status: Status, fault: Fault | None) -> Journal:
        """Save ``record`` as the final one, and print its page."""
        journal = self._keep(record)
        journal.close(status, fault)
        render = self._render if journal.job.records[0].rounds else self._render_fault
        print_and_write_json(journal.job, Path(self._shown(journal.path)), self._request.output, render, stream=self._stderr)
        return journal

    def abort(self, record: Record, error: BenchError, fault: Fault) -> bool:
        if not self._ending_lock.acquire(blocking=False):
            return False
        self._has_ended = True  # the lock is kept: the main thread must not end the process meanwhile
        self.print_error(error)
        try:
            journal = self._close(record, error.status, fault)
            write_exit_status(self._rank_env, error, error.exit_code, journal.path)
        except Exception as problem:
            self._print_report_error(problem)
        return True

    def _render_fault(self, job: Job, console: Console, path: Path | None, verbose: bool = False, quiet: bool = False) -> None:
        """Print why there is no page, in one line."""
        if fault := job.records[0].fault:
            hint, file = f" ({fault.hint})" if fault.hint else "", f"; record: {path}" if path else ""
            self.print_line(f"ddpbench: note: {fault.message}{hint}{file}")

    def save(self, record: Record, fault: Fault | None = None) -> None:
        if fault:
            record.status, record.fault = "failed", fault
        journal = self._keep(record)
        if fault:
            journal.close("failed", fault)  # judges the record

    def mark_failed(self, fault: Fault) -> None:
        if self._journal:
            record = self._journal.job.records[0]
            record.status, record.fault = "failed", fault
            self._journal.save()

    def _keep(self, record: Record) -> Journal:
        """The journal, with ``record`` in place of the one before."""
        if self._journal is None:
            job = new_job(self._request, [record])
            job.kind = self.kind
            self._journal = Journal(job, reserve_timestamped_path(self._request, slug(f"{self._program.name} {self.kind}")))
            self.record_path = os.path.abspath(self._journal.path)
        else:
            self._journal.job.records[0] = record
            self._journal.save()
        return self._journal

    def _outcome(self, ending: Ending, record: Record) -> tuple[Status, Fault | None]:
        assert self._observation is not None, "there is a record"
        if isinstance(ending.problem, KeyboardInterrupt):
            return "interrupted", Fault(message="interrupted by SIGINT")
        if self._reporter and (fault := self._reporter.peer_fault):
            return "failed", fault
        if ending.exit_code:
            return "failed", Fault(message=ending.text)
        if problem := self._observation.observer.problem:
            return "failed", Fault(message=f"ddpbench stopped watching: {problem}", hint="the script ran to its end")
        missing = self._observation.missing(record)
        if missing is None and self._reporter:
            missing = self._reporter.missing
        return "failed" if missing else "ok", missing

    def _print_report_error(self, problem: Exception) -> None:
        self.print_line(f"ddpbench: error: cannot report on {self._program.name}: {type(problem).__name__}: {problem}")

    def print_error(self, error: BenchError) -> None:
        for line in error.format_stderr().splitlines():
            self.print_line(line)

    def print_line(self, text: str) -> None:
        """Print one line on the stderr that the script started with; a closed one is no error."""
        with suppress(OSError, ValueError):
            print(printable(text), file=self._stderr, flush=True)

    def _shown(self, path: Path) -> str:
        """``path`` relative to the folder from which ddpbench was started, if it is inside."""
        relative = os.path.relpath(path, self._cwd)
        return str(path) if relative.startswith("..") else relative


def _absolute(output: OutputOptions) -> OutputOptions:
    return msgspec.structs.replace(
        output, output_dir=os.path.abspath(output.output_dir), json=os.path.abspath(output.json) if output.json else None
    )
