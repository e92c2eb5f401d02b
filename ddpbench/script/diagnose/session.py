"""The command ``diagnose SCRIPT``: runs the script, intervenes, predicts and tries remedies, then ends it and reports."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ddpbench.bench.gate import gate_error
from ddpbench.bench.journal import Journal, new_job, print_and_write_json, reserve_timestamped_path
from ddpbench.distributed.exit_status import exit_with_error, mark_signal_ready, write_exit_status
from ddpbench.machine.rank_env import RankEnv, from_env
from ddpbench.machine.signals import restore_handlers
from ddpbench.record.diagnosis import Diagnosis
from ddpbench.record.errors import BenchError, Status
from ddpbench.record.io import check_output_paths, slug
from ddpbench.record.record import Fault, Record
from ddpbench.record.request import DiagnoseOptions, Request, WatchOptions
from ddpbench.report.pages.diagnosis import render_diagnosis
from ddpbench.script.after_import import call_after_import
from ddpbench.script.run_script import Ending, Program, check_program, run_program
from ddpbench.script.watch import WatchSession

if TYPE_CHECKING:  # imports torch, which the script must do itself
    from ddpbench.script.diagnose.diagnosis import ScriptDiagnosis


def diagnose(program: Program, request: Request, options: DiagnoseOptions) -> NoReturn:
    """Diagnose ``program`` in this process, and end the process. Raises UsageError if it does not exist."""
    rank_env = from_env()
    check_output_paths(request.output)
    check_program(program)
    session = DiagnoseSession(program, request, rank_env, options)
    call_after_import("torch", session.begin)
    restore_handlers()
    mark_signal_ready(rank_env)
    ending = run_program(program)
    session.end(ending)
    if session.gate_error and not ending.exit_code:
        exit_with_error(session.gate_error)
    ending.exit_process()


class DiagnoseSession(WatchSession):
    """The diagnosis of one script in one process."""

    def __init__(self, program: Program, request: Request, rank_env: RankEnv, options: DiagnoseOptions) -> None:
        super().__init__(program, request, rank_env, WatchOptions())
        self._verify = options.verify
        self._diagnosis: ScriptDiagnosis | None = None
        self.gate_error: BenchError | None = None  # the data wait exceeds --fail-if-data-wait

    def _begin(self) -> None:
        from ddpbench.script.diagnose.diagnosis import ScriptDiagnosis
        from ddpbench.script.hooks import Hooks
        from ddpbench.script.observation import Observation
        from ddpbench.script.observer import Observer

        diagnosis = ScriptDiagnosis(
            self._rank_env, self._request.arms[0], self._verify, self._ender.request_end, self._save_job, self._print
        )
        observer = Observer(diagnosis.begin_training, diagnosis.windows)
        os.register_at_fork(after_in_child=observer.deactivate)
        self._hooks = Hooks(observer, self._ender)
        self._observation = Observation(self._program.name, self._rank_env, observer, self._hooks)
        self._diagnosis = diagnosis
        job = new_job(self._request, [])
        job.kind, job.diagnosis = "diagnose", Diagnosis(loader="DataLoader")
        diagnosis.begin(self._observation, job)

    def _collect(self, ending: Ending) -> Record | None:
        if self._diagnosis is None or self._observation is None or self._hooks is None:
            return None
        self._observation.observer.finish()
        self._hooks.remove()
        self._diagnosis.finish()
        return next(iter(self._diagnosis.job.records), None) or self._observation.own_record()

    def _save_job(self) -> None:
        assert self._diagnosis is not None
        job = self._diagnosis.job
        if self._rank_env.is_rank0 and job.records:
            if self._journal is None:
                self._journal = Journal(job, reserve_timestamped_path(self._request, slug(f"diagnose {self._program.name}")))
            self._journal.save()

    def _report(self, record: Record | None, ending: Ending) -> None:
        if record is None or self._diagnosis is None:
            return super()._report(record, ending)
        status, fault = self._outcome(ending, record)
        with suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()
        if not self._diagnosis.job.records:
            self._diagnosis.job.records = [record]
        self._save_job()
        journal = self._journal
        assert journal is not None, "it has just been saved"
        journal.close(status, fault)
        render = render_diagnosis if journal.job.records[0].rounds else self._render_fault
        print_and_write_json(journal.job, Path(self._shown(journal.path)), self._request.output, render, stream=self._stderr)
        self.gate_error = gate_error(journal.job.records[:1], journal.job)
        exit_code = ending.exit_code or (self.gate_error.exit_code if self.gate_error else 0)
        write_exit_status(self._rank_env, None, exit_code, journal.path)

    def _outcome(self, ending: Ending, record: Record) -> tuple[Status, Fault | None]:
        if self._diagnosis and self._diagnosis.problem:
            return "failed", Fault(message=self._diagnosis.problem)
        return super()._outcome(ending, record)
