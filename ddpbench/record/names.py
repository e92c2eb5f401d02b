"""Looking a name up in a registry, with "did you mean" when it is not there."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from ddpbench.record.errors import UsageError

Entry = TypeVar("Entry")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``did you mean 'resnet50'?``, or an empty string when nothing known is close to ``name``."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(repr(match) for match in close)}?" if close else ""


def lookup(kind: str, name: str, registry: Mapping[str, Entry]) -> Entry:
    """The entry called ``name``; raises UsageError naming what is close, or where the names are listed."""
    if name in registry:
        return registry[name]
    raise UsageError(f"unknown {kind} '{name}'", did_you_mean(name, registry) or f"'ddpbench list' shows every {kind}")


def find(kind: str, name: str, registry: Mapping[str, Entry], of: type[Entry]) -> Entry:
    """The entry called ``name``, or the one that ``package.module:name`` points at: an ``of``, or a function that returns one.

    Raises UsageError, with "did you mean", where there is none.
    """
    if ":" not in name:
        return lookup(kind, name, registry)
    found = resolve(name)
    entry = found() if callable(found) else found
    if not isinstance(entry, of):
        raise UsageError(f"'{name}' is no {kind}", f"it must be a {of.__name__} of {of.__module__}, or a function that returns one")
    return entry


def resolve(target: str) -> Any:
    """The object that ``package.module:name`` points at; raises UsageError when there is none."""
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as problem:
        raise UsageError(f"cannot load '{target}': {problem}", "give it as package.module:name, importable here") from problem
