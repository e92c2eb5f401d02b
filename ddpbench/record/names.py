"""Looking a name up in a registry, with "did you mean" when it is not there."""

from __future__ import annotations

import difflib
import importlib
import re
import traceback
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from ddpbench.record.errors import UsageError

Entry = TypeVar("Entry")

NEAR = 0.54
"""The least likeness of a name that is offered; that of 'fpp' and 'fp32' is 0.57."""

TIE = 0.03
"""Names that fall this little behind the nearest are offered beside it."""

WORD = 0.95
"""What likeness to one word of a name counts, so that a name that is alike as a whole comes first."""

BEGINNING = 0.98
"""What likeness to the beginning of a name counts at least: '--gpu' is '--gpus' before it is '--share-gpu'."""

SYNONYMS = {
    "train": "run",
    "replicate": "reproduce",
    "draw": "plot",
    "gpu": "cuda",
    "float32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
}
"""What people call a thing whose name here looks unlike it."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``did you mean 'resnet50'?``, or an empty string when nothing known is close to ``name``; of a list, that one is taken."""
    likeness = {other: _likeness(name, other) for other in known}
    listed = [part for part in name.split(",") if part in likeness]
    if len(listed) > 1:
        return f"one command takes one of them: {' or '.join(map(repr, listed))}"
    least = max(NEAR, max(likeness.values(), default=0.0) - TIE)
    near = sorted((other for other in likeness if likeness[other] >= least), key=lambda other: -likeness[other])[:3]
    meant = SYNONYMS.get(name.casefold())
    offered = [meant] if meant in likeness else near
    return f"did you mean {' or '.join(repr(other) for other in offered)}?" if offered else ""


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
    except (ImportError, AttributeError, ValueError, SyntaxError) as problem:
        raise UsageError(f"cannot load '{target}': {problem}", "give it as package.module:name, importable here") from problem
    except Exception as problem:  # whatever somebody's module does
        frame = traceback.extract_tb(problem.__traceback__)[-1]
        raised = f"{type(problem).__name__}: {problem}"
        raise UsageError(f"cannot load '{target}': {raised}", f"raised in {frame.filename}:{frame.lineno}") from problem


def _likeness(name: str, other: str) -> float:
    """0 to 1, whatever the case: how much ``name`` is like ``other``, like its beginning, or like a word of it.

    'fp16' is a word of 'amp-fp16'.
    """
    typed, meant = (text.casefold().replace("_", "-").lstrip("-") for text in (name, other))
    weights = {word: WORD for word in re.split("-+", meant) if len(word) > 2 or word == typed} | {meant: 1.0}
    likeness = max(weight * difflib.SequenceMatcher(None, typed, text).ratio() for text, weight in weights.items())
    if typed and meant.startswith(typed):
        return BEGINNING + (1 - BEGINNING) * likeness
    return likeness
