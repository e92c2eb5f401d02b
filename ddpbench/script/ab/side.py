"""One launch of ``ab`` in one process: the script as it is, or with the change, watched for a number of steps."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NoReturn

import msgspec

from ddpbench.machine.rank_env import RankEnv, from_env
from ddpbench.machine.variables import EnvVar
from ddpbench.record.errors import BenchError
from ddpbench.record.request import Request, WatchOptions
from ddpbench.script.patched_sources import use_patched_sources
from ddpbench.script.protected_session import ProtectedSession
from ddpbench.script.run_script import Ending, Program, check_program
from ddpbench.script.watch import WatchSession

if TYPE_CHECKING:  # these import torch, which the script must do itself
    from ddpbench.script.observe.steering import Steering


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """What a launch does besides watching."""

    patched: dict[str, str] = {}  # paths of sources to compile, by those of the script's own
    compute_only: bool = False  # the script gets its first batches again and again


def present_side() -> Side | None:
    """What ``ab`` wants of this process, which it has started; None if it has not."""
    text = os.environ.get(EnvVar.DDPBENCH_AB)
    return msgspec.json.decode(text, type=Side) if text else None


def run_side(program: Program, request: Request, options: WatchOptions, side: Side) -> NoReturn:
    """Run ``program`` in this process, then end the process as ``program`` would have."""
    check_program(program)
    SideSession(program, request, from_env(), options, side).run().exit_process()


class SideSession(ProtectedSession, WatchSession):
    """Changes no file of the user, nor a source."""

    def __init__(self, program: Program, request: Request, rank_env: RankEnv, options: WatchOptions, side: Side) -> None:
        super().__init__(program, request, rank_env, options)
        self._side = side
        self._protect(rank_env)

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
        """Batches cannot be repeated: this launch proves nothing."""
        self._problem = problem.message
        self._ender.request_end()
