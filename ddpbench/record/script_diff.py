"""What makes a user's script train as a diagnosis advises: a diff of its sources, arguments of its own, or both."""

from __future__ import annotations

from typing import Literal

import msgspec

from ddpbench.record.private import FileMessage, SourceText
from ddpbench.record.ranges import AtLeastOne, Seconds

EditObstacle = Literal[
    "by-hand",  # more is to do than arguments and lines: the workers must open files for themselves, say
    "no-source",  # of the user makes the object: a library does, or a cell of a notebook
    "no-name",  # the model, or torch, is no variable there
    "no-safe-place",  # the call has arguments that are not written there, or is not a statement of its own
    "source-changed",  # since the script began
    "elsewhere",  # the source is outside of the working directory
]
"""Why there is no diff."""

Part = Literal["loader", "computing"]


class ProofPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A proof that fits into the time of a diagnosis."""

    steps: AtLeastOne  # batches of each launch
    seconds: Seconds  # of all launches, about


class ScriptDiff(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``text``, ``arguments``, or both; or why there are none. With ``missing`` they are a part of what is advised."""

    text: SourceText = ""  # a unified diff; paths are relative to the working directory of the script
    arguments: SourceText = ""  # of the script, in place of those that it had, or besides them: --workers 14
    obstacle: EditObstacle | None = None
    missing: Part | None = None  # what ``obstacle`` prevents, if the other part is there
    file: FileMessage = ""  # that holds the diff, and the arguments in a line above it
    command: SourceText = ""  # the script with the arguments; here and in ``proof``, what may be a password is masked
    proof: SourceText = ""  # the command of ddpbench that proves the change
    compute_only: bool = False  # it does so on batches that are ready
    plan: ProofPlan | None = None  # of the proof that follows the diagnosis; None if none does
