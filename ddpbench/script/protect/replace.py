"""Replaces functions wherever modules that are imported already hold them: as names, in classes, as default arguments."""

from __future__ import annotations

import _io
import posix
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import FunctionType
from typing import Any


def replace_everywhere(replacements: Mapping[Any, Any]) -> None:
    """Put the values in place of the keys, except in ``posix`` and ``_io``, where the originals stay."""
    by_id = {id(original): replacement for original, replacement in replacements.items()}
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if module in (posix, _io) or not isinstance(names, dict):
            continue
        for name, value in list(names.items()):
            kind = type(value)  # isinstance would read an attribute, which warns in a deprecated object
            if id(value) in by_id:
                names[name] = by_id[id(value)]
            elif issubclass(kind, type) and value.__module__ == module.__name__:
                _replace_in_class(value, by_id)
            elif issubclass(kind, FunctionType):
                _replace_defaults(value, by_id)


def _replace_in_class(owner: type, by_id: Mapping[int, Any]) -> None:
    for name, value in list(vars(owner).items()):
        function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if id(function) in by_id:
            with suppress(TypeError):  # a class in C
                setattr(owner, name, staticmethod(by_id[id(function)]))
        elif isinstance(function, FunctionType):
            _replace_defaults(function, by_id)


def _replace_defaults(function: FunctionType, by_id: Mapping[int, Any]) -> None:
    if function.__defaults__ and any(id(value) in by_id for value in function.__defaults__):
        function.__defaults__ = tuple(by_id.get(id(value), value) for value in function.__defaults__)
