"""Runs a Python file or module as ``python SCRIPT`` or ``python -m MODULE`` would, in this process.

The interpreter's own start is repeated step by step: ``sys.argv``, ``sys.path[0]``, and a module ``__main__`` that stays in
``sys.modules`` until the interpreter ends, since pickles, spawned workers and atexit functions look it up. ``runpy`` does part of that,
and removes its ``__main__`` at the end.
"""

from __future__ import annotations

import atexit
import builtins
import importlib.util
import io
import os
import signal
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import NoReturn

from ddpbench.machine.garbage import collect_as_usual
from ddpbench.record.errors import ExitCode, UsageError
from ddpbench.script.own_modules import OWN_MODULES
from ddpbench.script.patched_sources import patched_path

MAIN_FILE = "__main__.py"
"""What python runs of a folder or a zip file."""

OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
IMPORT_SYSTEM = (importlib.util.__file__, "<frozen importlib")

PROCESSES_HINT = "processes that a script starts are not watched: start ranks with torchrun or --gpus N"


@dataclass(frozen=True)
class Program:
    """A file, or a module with ``is_module``, and its arguments."""

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def name(self) -> str:
        """The name on pages and in records: that of the file, or of the module."""
        return self.target if self.is_module else Path(self.target).name

    @property
    def argv(self) -> list[str]:
        """Its words on a command line of ddpbench."""
        return [*(["-m"] if self.is_module else []), self.target, *self.arguments]


@dataclass(frozen=True)
class Ending:
    """How a program ended: the exception that reached the top, if any. Its traceback is printed already."""

    problem: BaseException | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of the process, as a shell shows it."""
        if isinstance(self.problem, KeyboardInterrupt):
            return ExitCode.INTERRUPTED
        if not isinstance(self.problem, SystemExit):
            return 0 if self.problem is None else 1
        code = self.problem.code
        return code if isinstance(code, int) else 0 if code is None else 1

    @property
    def text(self) -> str:
        """What ended it, in one line."""
        if isinstance(self.problem, SystemExit):
            return f"exit code {self.exit_code}"
        return f"{type(self.problem).__name__}: {self.problem}".partition("\n")[0].removesuffix(": ")

    def exit_process(self) -> NoReturn:
        """End this process as the interpreter would have ended the program's."""
        if isinstance(self.problem, KeyboardInterrupt):
            _die_of_sigint()
        raise self.problem if isinstance(self.problem, SystemExit) else SystemExit(self.exit_code)


LAUNCHER_HINTS = {
    "python": "ddpbench runs the script itself: leave out the interpreter",
    "torchrun": "the launcher comes first: torchrun --nproc_per_node=N -m ddpbench watch SCRIPT",
    "accelerate": "the launcher comes first: accelerate launch -m ddpbench watch SCRIPT",
}
"""What is meant by a command that is given in place of a script."""


def check_program(program: Program) -> None:
    """Raises UsageError if the file, or the top-level package of the module, does not exist. Imports nothing."""
    if not program.is_module:
        path = Path(program.target)
        if not path.is_file() and not path.joinpath(MAIN_FILE).is_file():
            kind = f"a folder without {MAIN_FILE}" if path.is_dir() else "no such file"
            hint = LAUNCHER_HINTS.get(path.name.rstrip(".0123456789"), "give a Python file, or -m MODULE; flags of ddpbench come first")
            raise UsageError(f"cannot run '{program.target}': {kind}", hint)
    elif importlib.util.find_spec(program.target.partition(".")[0]) is None:
        raise _no_module(program.target)


def run_program(program: Program) -> Ending:
    """Run the program to its end. An exception is printed as the interpreter prints it, without frames of ddpbench.

    Raises UsageError if a module does not exist.
    """
    collect_as_usual()
    try:
        module, code = _prepare_module(program) if program.is_module else _prepare_file(program)
        sys.modules["__main__"] = module
        exec(code, vars(module))
    except UsageError:
        raise
    except SystemExit as ended:
        return Ending(ended)
    except BaseException as problem:
        _remove_own_frames(problem)
        sys.excepthook(type(problem), problem, problem.__traceback__)
        ending = Ending(problem)
    else:
        ending = Ending()
    if not program.is_module:  # the interpreter, too, removes both after the last line of a file, but not after SystemExit
        for name in ("__file__", "__cached__"):
            vars(sys.modules["__main__"]).pop(name, None)
    return ending


def _prepare_file(program: Program) -> tuple[ModuleType, CodeType]:
    path = os.path.join(os.getcwd(), program.target)  # not normalised: in link/../t.py, .. is that of the link's target
    if os.path.isdir(path) or zipfile.is_zipfile(path):
        return _prepare_archive(program, path)
    _set_command_line([program.target, *program.arguments], os.path.dirname(os.path.realpath(path)))
    module = _main_module(file=path, loader=SourceFileLoader("__main__", path))
    with io.open_code(patched_path(path)) as source:
        return module, compile(source.read(), path, "exec", dont_inherit=True)


def _prepare_archive(program: Program, path: str) -> tuple[ModuleType, CodeType]:
    """A folder or a zip file with a ``__main__.py``, in which its other modules are."""
    _set_command_line([program.target, *program.arguments], path)
    spec = PathFinder.find_spec("__main__", [path])
    code = spec.loader.get_code("__main__") if spec and spec.loader and hasattr(spec.loader, "get_code") else None
    if spec is None or code is None:
        raise UsageError(f"cannot run '{program.target}': it has no {MAIN_FILE}", "give a Python file, or -m MODULE")
    return _main_module(file=spec.origin, loader=spec.loader, spec=spec), code


def _prepare_module(program: Program) -> tuple[ModuleType, CodeType]:
    """As ``runpy`` finds it: the ``__main__`` of a package. Its parent packages are imported, and may raise anything."""
    _set_command_line(["-m", *program.arguments], os.getcwd())
    spec = _find_spec(program.target)
    if spec.submodule_search_locations is not None:
        spec = _find_spec(f"{program.target}.__main__")
    code = spec.loader.get_code(spec.name) if spec.loader and hasattr(spec.loader, "get_code") else None
    if code is None:
        raise UsageError(f"cannot run module '{program.target}': it has no Python code", "give a module or package with Python code")
    sys.argv[0] = spec.origin or program.target
    return _main_module(file=spec.origin, loader=spec.loader, spec=spec), code


def _find_spec(name: str) -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as problem:
        if problem.name is None or not f"{name}.".startswith(f"{problem.name}."):
            raise  # an import inside a parent package
        spec = None
    if spec is None:
        raise _no_module(name)
    return spec


def _no_module(name: str) -> UsageError:
    return UsageError(f"no module named '{name}'", "-m takes a module that can be imported from the working directory, as 'python -m' does")


def _set_command_line(argv: list[str], folder: str) -> None:
    """Set ``sys.argv``, and put ``folder`` in place of the folder from which ddpbench was started. Its modules come first."""
    sys.argv[:] = argv
    if not getattr(sys.flags, "safe_path", False):  # Python 3.11 and newer
        sys.path[:] = [folder, *(entry for entry in sys.path[1:] if entry)]  # ddpbench itself adds the empty entry
        OWN_MODULES.hide(folder)


def _main_module(file: str | None, loader: object, spec: ModuleSpec | None = None) -> ModuleType:
    module = ModuleType("__main__")
    package = spec.parent if spec else None
    vars(module).update(
        __annotations__={},
        __builtins__=builtins,
        __file__=file,
        __cached__=spec and spec.cached,
        __loader__=loader,
        __spec__=spec,
        __package__=package,
    )
    return module


def _remove_own_frames(problem: BaseException | None) -> None:
    """Remove the frames of ddpbench from the traceback of ``problem`` and of those that it follows, and the import system's below them."""
    seen: set[int] = set()
    while problem and id(problem) not in seen:
        seen.add(id(problem))
        kept = [each for each in _frames(problem.__traceback__) if not each.tb_frame.f_code.co_filename.startswith(OWN_FOLDER)]
        while kept and kept[0].tb_frame.f_code.co_filename.startswith(IMPORT_SYSTEM):
            kept.pop(0)
        frames = None
        for each in reversed(kept):
            frames = TracebackType(frames, each.tb_frame, each.tb_lasti, each.tb_lineno)
        problem.__traceback__ = frames
        problem = problem.__cause__ or problem.__context__


def _frames(frames: TracebackType | None) -> Iterator[TracebackType]:
    while frames:
        yield frames
        frames = frames.tb_next


def _die_of_sigint() -> NoReturn:
    """End by SIGINT, as the interpreter does after a KeyboardInterrupt, so that a calling shell stops, too."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit(128 + signal.SIGINT)
