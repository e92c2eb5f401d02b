"""Looking a name up in a registry, with "did you mean" when it is not there."""

from __future__ import annotations

import difflib
import importlib
import traceback
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from ddpbench.record.errors import UsageError

Entry = TypeVar("Entry")

SYNONYMS = {
    "train": "run",
    "gpu": "cuda",
    "float32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
}
"""What people call a thing whose name here looks unlike it."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``did you mean 'resnet50'?``, or an empty string if nothing known is close to ``name``; of a list, that one is taken."""
    names = {_spelled(other): other for other in known}
    listed = [part for part in name.split(",") if part in names.values()]
    if len(listed) > 1:
        return f"one command takes one of them: {' or '.join(map(repr, listed))}"
    names |= {synonym: meant for synonym, meant in SYNONYMS.items() if meant in names}
    near = difflib.get_close_matches(_spelled(name), names, n=1)
    return f"did you mean '{names[near[0]]}'?" if near else ""


def lookup(kind: str, name: str, registry: Mapping[str, Entry]) -> Entry:
    """The entry called ``name``; raises UsageError naming what is close, or where the names are listed."""
    if name in registry:
        return registry[name]
    raise UsageError(f"unknown {kind} '{name}'", did_you_mean(name, registry) or f"'ddpbench list' shows every {kind}")


def find(kind: str, name: str, registry: Mapping[str, Entry], entry_type: type[Entry]) -> Entry:
    """The entry called ``name``, or the one that ``package.module:name`` points at: an ``entry_type``, or a function that returns one.

    Raises UsageError, with "did you mean", where there is none.
    """
    if ":" not in name:
        return lookup(kind, name, registry)
    found = import_object(name)
    entry = found() if callable(found) else found
    if not isinstance(entry, entry_type):
        raise UsageError(
            f"'{name}' is no {kind}", f"it must be a {entry_type.__name__} of {entry_type.__module__}, or a function that returns one"
        )
    return entry


def import_object(target: str) -> Any:
    """The object that ``package.module:name`` points at; raises UsageError when there is none."""
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, SyntaxError) as problem:
        raise UsageError(f"cannot load '{target}': {problem}", "give it as package.module:name, importable here") from problem
    except Exception as problem:  # whatever somebody's module does
        frame = traceback.extract_tb(problem.__traceback__)[-1]
        raised = f"{type(problem).__name__}: {problem}"
        raise UsageError(f"cannot load '{target}': {raised}", f"raised in {frame.filename}:{frame.lineno}") from problem


def _spelled(name: str) -> str:
    """``name`` without what does not matter: case, leading dashes, underscores for dashes."""
    return name.casefold().replace("_", "-").lstrip("-")
