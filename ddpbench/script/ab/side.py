"""One launch of ``ab`` in one process: the script as it is, or with the change, watched for a number of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ddpbench.machine.rank_env import RankEnv, from_env
from ddpbench.record.errors import BenchError, Status
from ddpbench.record.record import Fault, Record
from ddpbench.record.request import Request, WatchOptions
from ddpbench.report.messages.roles import ONLY_WATCHED_REASONS
from ddpbench.script.patched_sources import Side, has_compiled_patched_source, use_patched_sources
from ddpbench.script.protected_session import ProtectedSession
from ddpbench.script.run_script import Ending, Program, check_program
from ddpbench.script.watch import WatchSession

if TYPE_CHECKING:  # these import torch, which the script must do itself
    from ddpbench.script.observe.steering import Steering


def run_side(program: Program, request: Request, options: WatchOptions, side: Side) -> NoReturn:
    """Run ``program`` in this process, then end the process as ``program`` would have."""
    check_program(program)
    SideSession(program, request, from_env(), options, side).run().exit_process()


class SideSession(ProtectedSession, WatchSession):
    """Changes no file of the user, nor a source."""

    def __init__(self, program: Program, request: Request, rank_env: RankEnv, options: WatchOptions, side: Side) -> None:
        super().__init__(program, request, rank_env, options)
        self._side = side
        self._not_repeated = ""  # why batches could not be

    def _run_program(self) -> Ending:
        if self._side.patched:
            use_patched_sources(self._side.patched)
        return super()._run_program()

    def _create_steering(self) -> Steering | None:
        if not self._side.compute_only:
            return None
        from ddpbench.script.diagnose.stage import ENDLESS, Stage
        from ddpbench.script.diagnose.windows import Windows

        def repeated(number: int) -> Stage:
            return Stage(kind="window", first=number, batches=ENDLESS, source="repeated")

        self._windows = Windows(self._rank_env, lambda: None, repeated, self._ender.request_end, self._fail)
        return self._windows

    def _observe(self) -> None:
        super()._observe()
        if self._side.compute_only:
            assert self._observation is not None, "it has just begun"
            self._windows.observation = self._observation

    def _fail(self, problem: BenchError) -> None:
        """Batches cannot be repeated."""
        self._not_repeated = problem.message
        self._ender.request_end()

    def _outcome(self, ending: Ending, record: Record) -> tuple[Status, Fault | None]:
        """Failed, too, if the launch does not do what it is for."""
        status, fault = super()._outcome(ending, record)
        if status != "ok":
            return status, fault
        if self._side.patched and not has_compiled_patched_source():
            return "failed", Fault(message=f"{self._program.name} imports no source that the diff changes")
        if self._side.compute_only and (self._not_repeated or self._windows.only_watched):
            watched = self._windows.only_watched
            reason = self._not_repeated or (ONLY_WATCHED_REASONS[watched] if watched else "")
            return "failed", Fault(message=f"its batches cannot be repeated: {reason}", hint="leave out --compute-only")
        return status, fault

    # the reporter's thread writes while the script runs

    def save(self, record: Record, fault: Fault | None = None) -> None:
        self._protection.run_unprotected(super().save, record, fault)

    def mark_failed(self, fault: Fault) -> None:
        self._protection.run_unprotected(super().mark_failed, fault)

    def abort(self, record: Record, error: BenchError, fault: Fault) -> bool:
        return self._protection.run_unprotected(super().abort, record, error, fault)
