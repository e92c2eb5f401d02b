"""The command ``watch``: runs the user's script as it is, and reports on it while it runs and at its end."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

import msgspec

from ddpbench.distributed.exit_status import write_exit_status
from ddpbench.machine.rank_env import RankEnv, from_env
from ddpbench.record.config import Config
from ddpbench.record.errors import BenchError, Status, UsageError
from ddpbench.record.io import check_output_paths
from ddpbench.record.record import Fault, Record, Round
from ddpbench.record.request import OutputOptions, Request, WatchOptions
from ddpbench.script.own_modules import OWN_MODULES
from ddpbench.script.run_script import Ending, Program, check_program
from ddpbench.script.session import ScriptSession

if TYPE_CHECKING:  # these import torch, which the script must do itself
    from ddpbench.script.observe.observer import Observer
    from ddpbench.script.observe.steering import Steering
    from ddpbench.script.ranks.observation import Observation
    from ddpbench.script.ranks.reporter import Reporter


WATCHED = threading.Lock()
"""Held while a block of this process is watched."""


def watch(program: Program, request: Request, options: WatchOptions) -> NoReturn:
    """Run ``program`` in this process, then end the process as ``program`` would have. Raises UsageError if it does not exist."""
    check_output_paths(request.output)
    check_program(program)
    WatchSession(program, request, from_env(), options).run().exit_process()


@contextmanager
def watched_block(name: str, output_dir: str, quiet: bool, variables: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Watch a block of this process, one at a time. Nothing happens in a script that ``ddpbench watch`` or ``diagnose`` runs.

    ``variables`` name the rank, as torchrun does. Raises UsageError if a block is watched, or if ``output_dir`` cannot be written.
    """
    if ScriptSession.runs_program:
        yield
        return
    if not WATCHED.acquire(blocking=False):
        raise UsageError("a block is watched already", "one ddpbench.watch() at a time")
    try:
        output = OutputOptions(output_dir=output_dir, quiet=quiet)
        check_output_paths(output)
        request = Request(arms=[Config(workload=name)], output=output, command=[*map(str, sys.argv[:1])])
        import torch  # noqa: F401  # which the block uses: there is nothing to wait for

        stream = sys.stdout if "ipykernel" in sys.modules else sys.stderr  # below a cell, stderr is shown like an error
        with WatchSession(Program(name, (), False), request, from_env(variables), WatchOptions(), stream).around():
            yield
    finally:
        WATCHED.release()


def with_nonfinite_loss(timed: Round) -> Round:
    """``timed``, in whose last step the loss of rank 0 was not finite."""
    first, *others = timed.traces
    numerics = msgspec.structs.replace(first.numerics, nonfinite_step=first.steps - 1)
    return msgspec.structs.replace(timed, traces=[msgspec.structs.replace(first, numerics=numerics), *others])


class WatchSession(ScriptSession):
    """The watching of one script in one process. Its ``Reporter`` saves and prints through it while the script runs."""

    def __init__(self, program: Program, request: Request, rank_env: RankEnv, options: WatchOptions, stream: TextIO | None = None) -> None:
        super().__init__(program, request, rank_env, "watch", options.steps, stream)
        self._options = options
        self._reporter: Reporter | None = None
        self.is_quiet, self.is_redacted = request.output.quiet, request.output.redact

    def _create_observer(self) -> Observer:
        from ddpbench.script.observe.observer import Observer

        return Observer(self._begin_reporting, self._create_steering(), times_all=self._options.every is not None)

    def _create_steering(self) -> Steering | None:
        """What gives the script other batches than its own; None if nothing does."""
        return None

    def _begin_reporting(self) -> None:
        with OWN_MODULES.restored():
            from ddpbench.script.ranks.reporter import Reporter

        assert self._observation is not None, "the script is watched"
        self._reporter = Reporter(self._observation, self._rank_env, self._options, self)

    def _collect(self, observation: Observation, ending: Ending) -> Record | None:
        if self._reporter:
            record = self._reporter.finish(ending.text if ending.exit_code else "")
        else:
            record = observation.own_record() if self._rank_env.is_rank0 else None
        if record and record.rounds and not observation.observer.has_finite_loss:
            record.rounds[-1] = with_nonfinite_loss(record.rounds[-1])
        return record

    def _outcome(self, ending: Ending, record: Record) -> tuple[Status, Fault | None]:
        status, fault = super()._outcome(ending, record)
        if self._reporter is None or status == "interrupted":
            return status, fault
        fault = self._reporter.peer_fault or fault or self._reporter.missing
        return "failed" if fault else "ok", fault

    def _run_program(self) -> Ending:
        record = "" if self.is_redacted else f"; record: {self._shown(Path(self._request.output.output_dir))}"
        self.print_progress(f"ddpbench: watching {self._program.name}{record}")
        return super()._run_program()

    # while the script runs

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

    def print_error(self, error: BenchError) -> None:
        for line in error.format_stderr().splitlines():
            self.print_line(line)
