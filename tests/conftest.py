"""Shared fixtures: one thread per process, skips without GPU, and launched programs that leave no process."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddpbench.machine.garbage import gc_freeze
from ddpbench.published import views

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported; two ranks of a test share two cores
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported: without a GPU its kernels are interpreted
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "COLUMNS")
MARK = "DDPBENCH_TEST_LAUNCH"
views.register()
LEAVE_S = 5.0
"""Seconds after the launcher's end within which all processes must have exited."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``cuda`` without a GPU; import torch only if there are any."""
    marked = [item for item in items if item.get_closest_marker("cuda")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no GPU here"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip slow tests that would begin after DDPBENCH_TESTS_END, in seconds since the epoch: on a slow machine, some are left out."""
    end_s = os.environ.get("DDPBENCH_TESTS_END")
    if end_s and time.time() > float(end_s) and item.get_closest_marker("slow"):
        pytest.skip("no time left on this machine")


@dataclass(frozen=True)
class Finished:
    """How a program ended and what it printed."""

    returncode: int
    stdout: str
    stderr: str


class Running:
    """A program in its own session. Its output goes to files, because orphans could keep pipes open."""

    def __init__(self, argv: Sequence[str], folder: Path, env: Mapping[str, str], cwd: Path | None) -> None:
        self._mark = uuid.uuid4().hex
        self._out, self._err = folder / f"{self._mark}.out", folder / f"{self._mark}.err"
        inherited = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
        modules = filter(None, [env.get("PYTHONPATH"), inherited.get("PYTHONPATH")])  # may contain packages
        environment = {**inherited, **env, "PYTHONPATH": os.pathsep.join(modules), MARK: self._mark}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background shell ignores SIGINT, which children would inherit
            try:
                self._process = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd, env=environment, start_new_session=True
                )
            finally:
                signal.signal(signal.SIGINT, before)
        self.pid = self._process.pid

    def until(self, condition: Callable[[], bool], timeout: float = 60.0) -> None:
        """Wait for ``condition``. Raises AssertionError with the output if the program ends before or the timeout passes."""
        deadline = time.monotonic() + timeout
        while not condition():
            running = self._process.poll() is None
            assert running or condition(), f"it ended before\n{self._printed()}"
            assert time.monotonic() < deadline, f"not within {timeout} s\n{self._printed()}"
            time.sleep(0.02)

    def wait(self, timeout: float) -> Finished:
        """Wait for the program, not its orphans. Raises AssertionError with the output if the timeout passes."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"{late}\n{self._printed()}") from late
        return Finished(self._process.returncode, self._out.read_text(errors="replace"), self._err.read_text(errors="replace"))

    def errors(self) -> str:
        """Stderr so far."""
        return self._err.read_text(errors="replace")

    def left_behind(self, within: float = LEAVE_S) -> list[str]:
        """Command lines of processes alive after ``within`` seconds; returns early if there are none."""
        deadline = time.monotonic() + within
        while (alive := self.survivors()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return [_command(process) for process in alive]

    def survivors(self) -> list[psutil.Process]:
        """All live processes of this launch, including orphans in other sessions."""
        return [process for process in psutil.process_iter() if _environment(process).get(MARK) == self._mark]

    def reap(self) -> None:
        """Kill all remaining processes."""
        for process in self.survivors():
            process.kill()
        self._process.wait()

    def _printed(self) -> str:
        return f"{self._out.read_text(errors='replace')}\n{self._err.read_text(errors='replace')}"


def _environment(process: psutil.Process) -> Mapping[str, str]:
    try:
        return {} if process.status() == psutil.STATUS_ZOMBIE else process.environ()
    except psutil.Error:
        return {}


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return f"process {process.pid}, gone by now"


@pytest.fixture
def without_preparing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a script without Lightning and Accelerate, which other tests of this process may have used."""
    for name in ("lightning.pytorch", "pytorch_lightning", "lightning.fabric", "lightning_fabric"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    if "accelerate.state" in sys.modules:
        monkeypatch.setattr(sys.modules["accelerate.state"].PartialState, "_shared_state", {})


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Generate default datasets once for all tests, outside of the user's home."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def frozen_gc() -> None:
    """Freeze gc as a run does, because collecting a million imported objects is slow."""
    gc.collect()
    gc_freeze()


@pytest.fixture(scope="session", autouse=True)
def unfreeze_gc_at_exit() -> Iterator[None]:
    """Otherwise libraries report leaked objects at exit."""
    yield
    gc.unfreeze()


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Output folder of a run; does not exist yet."""
    return tmp_path / "runs"


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _starter(folder: Path) -> Iterator[Callable[..., Running]]:
    """A function that starts programs with output in ``folder``; they are killed at the end of the block."""
    running: list[Running] = []

    def go(argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Running:
        running.append(Running(argv, folder, env or {}, cwd))
        return running[-1]

    yield go
    for program in running:
        program.reap()


def _run_with(start: Callable[..., Running]) -> Callable[..., Finished]:
    """A function that runs a program to its end, which must leave no process."""

    def go(argv: Sequence[str], timeout: float = 100.0, **how: Any) -> Finished:
        running = start(argv, **how)
        done = running.wait(timeout)
        assert running.left_behind() == [], f"alive {LEAVE_S:.0f} s after the end\n{done.stderr}"
        return done

    return go


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Running]]:
    """``start(argv, env=, cwd=)`` starts a program and returns a Running, which is killed at the end of the test."""
    with _starter(tmp_path_factory.mktemp("launch")) as go:
        yield go


@pytest.fixture
def launch(start: Callable[..., Running]) -> Callable[..., Finished]:
    """``launch(argv, timeout=, env=, cwd=)`` runs a program to its end, which must leave no process."""
    return _run_with(start)


@pytest.fixture(scope="module")
def launch_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Finished]]:
    """Module-scoped ``launch``: one run for several tests."""
    with _starter(tmp_path_factory.mktemp("launch")) as start:
        yield _run_with(start)
