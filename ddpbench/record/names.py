"""Registry lookup by name, with "did you mean" for unknown names."""

from __future__ import annotations

import difflib
import importlib
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from ddpbench.record.errors import BenchError, UsageError
from ddpbench.record.packages import PACKAGES, missing_module_error

Entry = TypeVar("Entry")
Result = TypeVar("Result")

SYNONYMS = {
    "train": "run",
    "gpu": "cuda",
    "float32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
}
"""Common names for things that are spelled differently here."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``did you mean 'resnet50'?``, or an empty string if no known name is close to ``name``.

    For a comma list of known names, the text says instead that only one is allowed.
    """
    names = {_spelled(other): other for other in known}
    known_parts = [part for part in name.split(",") if part in names.values()]
    if len(known_parts) > 1:
        return f"use only one: {' or '.join(map(repr, known_parts))}"
    names |= {synonym: target for synonym, target in SYNONYMS.items() if target in names}
    near = difflib.get_close_matches(_spelled(name), names, n=1)
    return f"did you mean '{names[near[0]]}'?" if near else ""


def lookup(kind: str, name: str, registry: Mapping[str, Entry]) -> Entry:
    """The entry called ``name``. Raises UsageError with a close name, or with the command that lists the names."""
    if name in registry:
        return registry[name]
    raise UsageError(f"unknown {kind} '{name}'", did_you_mean(name, registry) or f"'ddpbench list' shows all {kind}s")


def find(kind: str, name: str, registry: Mapping[str, Entry], entry_type: type[Entry]) -> Entry:
    """The entry called ``name``, or the object at ``package.module:name``: an ``entry_type``, or a function that returns one.

    Raises UsageError, with "did you mean", if there is none.
    """
    if ":" not in name:
        return lookup(kind, name, registry)
    found = import_object(name)
    entry = call_object(name, found) if callable(found) else found
    if not isinstance(entry, entry_type):
        raise UsageError(
            f"'{name}' is not a {kind}", f"it must be a {entry_type.__module__}.{entry_type.__name__}, or a function that returns one"
        )
    return entry


def import_object(target: str) -> Any:
    """The object at ``package.module:name``.

    Raises UsageError if it cannot be imported, with the command that installs a missing optional package.
    """
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, SyntaxError) as problem:
        if isinstance(problem, ModuleNotFoundError) and problem.name and problem.name in PACKAGES:
            raise missing_module_error(f"'{target}'", problem.name) from problem
        raise UsageError(
            f"cannot load '{target}': {problem}", "use package.module:name, importable from the working directory"
        ) from problem
    except BenchError:
        raise
    except Exception as problem:  # a user module may raise anything
        raise user_code_error(f"cannot load '{target}'", problem) from problem


def call_object(target: str, function: Callable[..., Result], *arguments: object) -> Result:
    """What ``function``, imported from ``target``, returns for ``arguments``. Raises UsageError if it fails."""
    try:
        return function(*arguments)
    except BenchError:
        raise
    except Exception as problem:
        if problem.__traceback__ and problem.__traceback__.tb_next is None:  # it does not accept these arguments
            raise UsageError(f"cannot call '{target}': {problem}", f"its arguments are ({', '.join(map(repr, arguments))})") from problem
        raise user_code_error(f"'{target}' failed", problem) from problem


def user_code_error(what_failed: str, problem: Exception) -> UsageError:
    """The error for ``problem``, which user-defined code raised; the hint names the line."""
    frame = traceback.extract_tb(problem.__traceback__)[-1]
    return UsageError(f"{what_failed}: {type(problem).__name__}: {problem}", f"raised in {frame.filename}:{frame.lineno}")


def _spelled(name: str) -> str:
    """``name`` normalised: lower case, no leading dashes, dashes for underscores."""
    return name.casefold().replace("_", "-").lstrip("-")
