"""The command ``diagnose SCRIPT``: runs the script, intervenes, predicts and tries remedies, then ends it and reports."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from ddpbench.analysis.remedies.training_rules import DIAGNOSIS_S, SCREENING_S, VERIFY_S
from ddpbench.analysis.summary import summarize
from ddpbench.bench.gate import gate_error
from ddpbench.bench.journal import Journal
from ddpbench.distributed.exit_status import exit_with_error
from ddpbench.machine.child_processes import TERMINATE_S, end_children
from ddpbench.machine.rank_env import RankEnv, from_env
from ddpbench.machine.variables import EnvVar
from ddpbench.record.bottleneck import TooShort
from ddpbench.record.errors import BenchError, ExitCode, Status
from ddpbench.record.io import check_output_paths
from ddpbench.record.record import Fault, Record
from ddpbench.record.remedy import Advice
from ddpbench.record.request import Request, ScriptDiagnoseOptions
from ddpbench.record.script_diff import ProofPlan, ScriptDiff
from ddpbench.record.text import mask_command, pluralize
from ddpbench.report.messages.protected_files import REFUSAL_HINT, refusal_text, scratch_size_text, unprevented_text
from ddpbench.report.pages.watch import OUTSIDE_NAMES
from ddpbench.script.ab.follow_up import proof_command, proof_environment, proof_flags, proof_line, to_prove
from ddpbench.script.edits.diff_file import with_arguments, write_diff_file
from ddpbench.script.protect.metadata import FileStates
from ddpbench.script.protect.scratch import folder_size
from ddpbench.script.protected_session import NO_LANDLOCK, ProtectedSession
from ddpbench.script.run_script import Ending, Program, check_program
from ddpbench.script.successor import Successor

if TYPE_CHECKING:  # these import torch, which the script must do itself
    from ddpbench.script.diagnose.diagnosis import ScriptDiagnosis
    from ddpbench.script.observe.observer import Observer
    from ddpbench.script.ranks.observation import Observation

AFTER_FORK_HINT = "ddpbench had started loader workers of its own before: if the script runs without ddpbench, they are the cause"

START_HINT = "use a larger --start-limit if it prepares for longer; what it trains in processes that it starts is not watched"

LAST_LINES_S = 120.0
"""Seconds that a script gets for its last lines, such as those of ``finally``, once it has been ended."""

LAST_THREADS_S = 20.0
"""Seconds that its threads get after the report: the interpreter waits for those that are no daemons, which may wait for each other."""

LARGE_SCRATCH_BYTES = 100e6
"""Size from which the scratch folder is named again at the end, since it stays."""

REPORT_S = 15.0
"""Seconds in which rank 0 reports on a hang. The end of another rank would raise an error in its script meanwhile."""


def diagnose(program: Program, request: Request, options: ScriptDiagnoseOptions) -> NoReturn:
    """Diagnose ``program`` in this process, and end the process. Raises UsageError if it does not exist."""
    check_output_paths(request.output)
    check_program(program)
    session = DiagnoseSession(program, request, from_env(), options)
    session.exit_process(session.run())


class DiagnoseSession(ProtectedSession):
    """The diagnosis of one script in one process."""

    def __init__(self, program: Program, request: Request, rank_env: RankEnv, options: ScriptDiagnoseOptions) -> None:
        super().__init__(program, request, rank_env, "diagnose")
        self._verify, self._start_limit_s, self._allows_numerics = options.verify, options.start_limit, options.allow_numerics
        self._limit_s = request.arms[0].time_limit or DIAGNOSIS_S + (VERIFY_S + SCREENING_S if options.verify else 0.0)
        self._diagnosis: ScriptDiagnosis | None = None
        self._hang: Fault | None = None
        self._states: FileStates | None = None  # before the script, on rank 0
        self._gate_error: BenchError | None = None  # the data wait exceeds --fail-if-data-wait
        self._ended_at_start = False
        self._has_verdict = not rank_env.is_rank0  # other ranks leave the exit code to rank 0
        self._successor = None if rank_env.launched else Successor()
        self._environment = dict(os.environ)  # before the script
        self._to_prove: tuple[ScriptDiff, ProofPlan] | None = None  # if a proof follows

    def _announce(self) -> None:
        if self._successor:
            self._protection.exempt(self._successor.thread)
        if self._rank_env.is_rank0:
            name = self._program.name
            self._states = FileStates([self._cwd, *([] if self._program.is_module else [os.path.dirname(self._program.target)])])
            self.print_progress(f"ddpbench: diagnosing {name}, from its first optimizer step for at most {self._limit_s:.0f} s")
            self.print_progress("ddpbench: its losses mean nothing: it trains on repeated batches, and is then ended")
            self.print_line(f"ddpbench: note: what {name} writes goes to {self._protection.scratch}")
            if not self._protection.has_landlock:
                self.print_line(f"ddpbench: note: {NO_LANDLOCK}")
        start_limit = threading.Timer(self._start_limit_s, self._end_without_training)
        start_limit.daemon = True
        start_limit.start()

    def _end_without_training(self) -> None:
        """End a script that has made no update by now. What it trains in processes that it starts is not seen."""
        if self._observation is None or not self._observation.observer.updates:
            line, self._ended_at_start = self._user_line(), True
            self._end_process(f"has made no step with an optimizer for {self._start_limit_s:.0f} s" + (f": {line}" if line else ""))

    def _observe(self) -> None:
        super()._observe()
        assert self._observation is not None, "it has just begun"
        assert self._diagnosis is not None, "created with its observer"
        self._diagnosis.begin(self._observation)

    def _create_observer(self) -> Observer:
        from ddpbench.script.diagnose.diagnosis import ScriptDiagnosis
        from ddpbench.script.observe.observer import Observer

        requested, end_script = self._request.arms[0], self._ender.request_end
        self._diagnosis = ScriptDiagnosis(
            self._rank_env, requested, self._limit_s, self._verify, end_script, self._on_stall, self._save_records, self.print_progress
        )
        self._diagnosis.may_prove, self._diagnosis.allows_numerics = self._verify and self._may_prove, self._allows_numerics
        return Observer(steering=self._diagnosis.windows)

    def _collect(self, observation: Observation, ending: Ending) -> Record | None:
        assert self._diagnosis is not None, "created with its observer"
        self._diagnosis.finish(self._trial_problem(ending))
        if code := self._diagnosis.failed_cure:
            self.print_progress(f"ddpbench: note: {self._program.name} ended with this error while {code} was tried in it")
        return next(iter(self._diagnosis.records), None) or observation.own_record()

    def _trial_problem(self, ending: Ending) -> str:
        """The error of the script, which a setting that was tried may have made; empty if it had another reason."""
        has_other_reason = isinstance(ending.problem, KeyboardInterrupt) or self._refusal_of(ending) is not None
        return ending.text if ending.exit_code and not has_other_reason else ""

    def _save_records(self) -> None:
        """Save what the diagnosis has so far."""
        if self._diagnosis and self._diagnosis.records:
            self._keep(self._diagnosis.records[0])

    def _keep(self, record: Record) -> Journal:
        journal = super()._keep(record)
        if self._diagnosis:
            journal.job.records = self._diagnosis.records or [record]
            journal.job.diagnosis = None if self._diagnosis.is_only_watched else self._diagnosis.diagnosis
            self._protection.run_unprotected(journal.save)
        return journal

    def _judged(self, journal: Journal) -> Journal:
        """Write the diff of what is advised beside the record."""
        diagnosis = journal.job.diagnosis
        if self._diagnosis is None or diagnosis is None or diagnosis.advice is None or self._request.output.redact:
            return journal
        from ddpbench.script.edits.script_edit import advised_diff, compiled_diff

        advice, places, baseline = diagnosis.advice, self._diagnosis.places, journal.job.records[0]
        try:
            diff = advised_diff(advice, places, self._cwd)
            if diff is not None and (diff.text or diff.arguments):
                write_diff_file(diff, file := journal.path.with_suffix(".diff"))
                diff = self._with_commands(diff, file, baseline, advice)
            diagnosis.diff = diff
            may_compile = diagnosis.screening and self._diagnosis.windows.has_steady_shapes
            compiled = compiled_diff(advice, places, self._cwd) if may_compile else None
            if compiled is not None:
                write_diff_file(compiled, file := journal.path.with_suffix(".compile.diff"))
                compiled = msgspec.structs.replace(self._with_commands(compiled, file, baseline, advice), plan=None)
            diagnosis.compile_diff = compiled
        except Exception as problem:  # the page must not miss for it
            self.print_line(f"ddpbench: note: cannot write a diff of {self._program.name}: {problem}")
        journal.save()
        return journal

    @property
    def _may_prove(self) -> bool:
        """Whether ddpbench has started all ranks, on one node, so that it can start them again."""
        started = self._successor is not None or EnvVar.DDPBENCH_EXIT_STATUS in os.environ
        return started and self._is_on_one_node and not self._request.output.redact

    def _with_commands(self, diff: ScriptDiff, file: Path, baseline: Record, advice: Advice) -> ScriptDiff:
        """``diff``, which is in ``file``, with the commands that train with it and prove it."""
        assert self._diagnosis is not None, "it has advised something"
        program, env, step_ms = self._program, self._rank_env, summarize(baseline).step_ms
        changed = replace(program, arguments=tuple(with_arguments(program.arguments, shlex.split(diff.arguments))))
        without_loader = advice.change is None or diff.missing == "loader"
        still_waits = advice.code != "screened" and without_loader  # for data: the change does not show
        plan = self._diagnosis.plan_of_proof(step_ms / 1000) if step_ms else None
        diff = msgspec.structs.replace(diff, file=self._shown(file), compute_only=still_waits, plan=plan)
        flags = proof_flags(diff, env.world_size if env.launched else None)
        return msgspec.structs.replace(
            diff,
            command=shlex.join(mask_command(changed.argv)) if diff.arguments else "",
            proof=shlex.join(["ddpbench", "ab", *flags, *mask_command(program.argv)]) if self._is_on_one_node else "",
        )

    @property
    def _is_on_one_node(self) -> bool:
        """As the ranks that ab starts are."""
        return self._rank_env.world_size == self._rank_env.local_world_size

    def _close(self, record: Record, status: Status, fault: Fault | None) -> Journal:
        if self._states and (paths := self._states.changed()):
            self.print_line(f"ddpbench: note: {unprevented_text(self._program.name, list(map(self._shown, map(Path, paths))))}")
        journal = super()._close(record, status, fault)
        if changed := self._protection.changed:
            written = f"{pluralize(len(changed), 'file')} of {self._program.name}"
            self.print_line(f"ddpbench: note: {written} would have changed; the versions written are in {self._protection.scratch}")
        size = self._protection.run_unprotected(folder_size, Path(self._protection.scratch))
        if size >= LARGE_SCRATCH_BYTES:
            self.print_line(f"ddpbench: note: {scratch_size_text(self._protection.scratch, size)}")
        self._to_prove, verdict = to_prove(journal.job), journal.job.records[0].verdict
        self._has_verdict = verdict is not None and not isinstance(verdict.evidence, TooShort)
        self._gate_error = gate_error(journal.job.records[:1], journal.job)
        return journal

    def _report(self, record: Record | None, ending: Ending) -> None:
        if record is None and (refusal := self._refusal_of(ending)):
            self.print_line(f"ddpbench: note: {refusal_text(refusal.action, refusal.name)} ({REFUSAL_HINT})")
        super()._report(record, ending)

    def _on_stall(self, seconds: float) -> None:
        """End the process of a script that has made no step for ``seconds``, after the time limit: it hangs, or does something else."""
        if self._ender.is_ending and seconds < LAST_LINES_S:
            timer = threading.Timer(LAST_LINES_S, self._on_stall, (seconds + LAST_LINES_S,))
            timer.daemon = True
            timer.start()
            return
        assert self._observation is not None, "it has trained"
        outside, line = self._observation.observer.outside_kind, self._user_line()
        doing = f" ({OUTSIDE_NAMES[outside]})" if outside else ""
        message = f"has made no step for {seconds:.0f} s after the time limit{doing}"
        if not (outside or self._ender.has_raised):
            self._hang = Fault(message=f"{self._program.name} {message}", hint=f"it was in {line}" if line else "")
        self._end_process(f"{message}: {line}" if line else message)

    def _user_line(self) -> str:
        """Where the script stands."""
        from ddpbench.script.ranks.stack import user_line

        thread = self._observation.observer.thread if self._observation else None
        return user_line(not self._request.output.redact, thread)

    # the end

    def _end(self, ending: Ending) -> None:
        """Report, and end all processes that the script has started: some would train on for ever."""
        super()._end(ending)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # that of torch raises an error when a worker ends
            end_children(TERMINATE_S)
        else:
            end_children(timeout_s=0.0)  # the script is still running, and should not see their end
        if (self._hang or self._failed_in_trial) and not self._rank_env.is_rank0:
            time.sleep(REPORT_S)

    def exit_process(self, ending: Ending) -> NoReturn:
        """End this process with its exit code, as the script's own exception ends one."""
        from ddpbench.bench.terminator import exit_at_once

        exit_code = self._exit_code(ending)
        last = threading.Timer(LAST_THREADS_S, exit_at_once, (exit_code,))
        last.daemon = True
        last.start()
        if self._gate_error and exit_code == self._gate_error.exit_code:
            exit_with_error(self._gate_error)
        if self._to_prove and self._successor and exit_code == ExitCode.OK:
            diff, plan = self._to_prove
            self.print_progress(proof_line(plan))
            output = msgspec.structs.replace(self._request.output, output_dir=self._shown(Path(self._request.output.output_dir)))
            command = proof_command(diff, plan, self._program.argv, output, ranks=None)
            self._successor.become(command, proof_environment(self._environment, plan))
        if exit_code == ending.exit_code:
            ending.exit_process()
        sys.exit(exit_code)

    @property
    def _failed_in_trial(self) -> bool:
        """Whether the script ended with an error that a cure is the reason of, which was on."""
        return self._diagnosis is not None and self._diagnosis.failed_cure is not None

    def _exit_code(self, ending: Ending) -> int:
        """That of the script if it has failed or never begun to train; else whether the diagnosis has led to a verdict."""
        own_code = 0 if self._failed_in_trial and self._rank_env.is_rank0 else ending.exit_code
        if own_code or self._has_verdict or self._has_left_at_once(ending):
            return own_code or (self._gate_error.exit_code if self._gate_error else ExitCode.OK)
        return ExitCode.HUNG if self._hang else ExitCode.FAILED

    def _outcome(self, ending: Ending, record: Record) -> tuple[Status, Fault | None]:
        if self._refusal_of(ending):
            return super()._outcome(ending, record)
        if self._hang:
            return "hung", self._hang
        if self._ended_at_start:
            message = f"{self._program.name} made no step with an optimizer of torch within {self._start_limit_s:.0f} s"
            return "failed", Fault(message=message, hint=START_HINT)
        if self._diagnosis and self._diagnosis.problem and not ending.exit_code:
            return "failed", Fault(message=self._diagnosis.problem)
        status, fault = super()._outcome(Ending() if self._failed_in_trial else ending, record)
        if fault and status == "failed" and ending.exit_code and self._diagnosis and self._diagnosis.has_forked:
            return status, msgspec.structs.replace(fault, hint=AFTER_FORK_HINT)
        return status, fault
