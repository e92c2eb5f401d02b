"""What an object of the user's code holds: attributes, items, and variables of functions."""

from __future__ import annotations

import functools
import gc
import logging
import os
import sys
import sysconfig
import threading
import types
from collections import deque
from collections.abc import Iterator, MutableMapping, MutableSequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

MAX_ITEMS = 200
"""Items of a container that are looked at: the first, and the last of a list."""

PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, type, types.ModuleType, np.generic)

SHARED_ON_PURPOSE = ("multiprocessing", "torch", "threading", "logging", "_thread")
"""Packages whose objects are made for several processes, or are tensors. ``torch.utils.data`` is an exception: it wraps datasets."""

OWN_PACKAGE = __name__.partition(".")[0]
"""Its objects are behind functions that it has put in place of Python's; its subclasses of Python's files and connections are files."""

IN_MEMORY = ("tokenizers", "pandas", "pyarrow", "sentencepiece", "numpy")
"""Packages whose objects hold data in memory, or map files read-only."""

C_METHODS, BOUND_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType), ("instancemethod", "nb_method")
"""Methods of classes in C, and the names of those that pybind11 and nanobind make."""

INSTALLED = tuple(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))


@dataclass(frozen=True)
class Link:
    """An object, its name as seen from the dataset, and the namespace or container that holds it under ``key``.

    ``holder`` is None if it cannot be taken out.
    """

    name: str
    value: Any
    holder: MutableMapping[Any, Any] | MutableSequence[Any] | None = None
    key: Any = None


def is_leaf(value: Any) -> bool:
    """Whether there is nothing to search in ``value``."""
    kind = type(value)  # isinstance() would ask the user's class
    if issubclass(kind, (*PLAIN_TYPES, torch.Tensor, logging.Logger, types.BuiltinFunctionType)):
        return True
    if issubclass(kind, types.FunctionType) and value.__code__.co_filename.startswith(_OWN):
        return True  # one in place of a function of Python's library
    origin = next(each for each in kind.__mro__ if each.__module__.partition(".")[0] != OWN_PACKAGE)
    if origin is object and kind is not object:
        return True
    module = origin.__module__
    package = module.partition(".")[0]
    if issubclass(kind, torch.nn.Module):  # a transform, or several
        return package == "torch" and not vars(value).get("_modules")
    if issubclass(kind, threading.local):
        return False
    if package in IN_MEMORY:
        return not issubclass(kind, np.ndarray)
    return package in SHARED_ON_PURPOSE and not module.startswith("torch.utils.data")


def is_opaque(value: Any) -> bool:
    """Whether ``value`` is of a class in C, C++ or Rust of an unknown library: what it holds cannot be seen."""
    return any(
        isinstance(each, C_METHODS) or type(each).__name__ in BOUND_METHODS
        for owner in type(value).__mro__
        if owner.__module__.partition(".")[0] not in (*sys.stdlib_module_names, *SHARED_ON_PURPOSE, *IN_MEMORY, OWN_PACKAGE, "PIL")
        for each in vars(owner).values()
    )


def is_truncated(value: Any) -> bool:
    """Whether ``parts`` returns only some of its items."""
    return issubclass(type(value), (dict, list, tuple, set, frozenset, deque)) and len(value) > MAX_ITEMS


def parts(link: Link) -> Iterator[Link]:
    """What ``link.value`` holds directly."""
    name, value = link.name, link.value
    match value:
        case dict():
            yield from (Link(f"{name}[{_short(key)}]", each, value, key) for key, each in islice(value.items(), MAX_ITEMS))
        case list():
            indices = [*range(min(len(value), MAX_ITEMS // 2)), *range(max(MAX_ITEMS // 2, len(value) - MAX_ITEMS // 2), len(value))]
            yield from (Link(f"{name}[{index}]", value[index], value, index) for index in indices)
        case tuple() | set() | frozenset() | deque():
            yield from (Link(f"{name}[{index}]", each) for index, each in enumerate(islice(value, MAX_ITEMS)))
        case np.ndarray():
            if value.dtype == object:
                yield from (Link(f"{name}[{index}]", each) for index, each in enumerate(islice(value.flat, MAX_ITEMS)))
        case functools.partial():
            yield Link(name, value.func)
            yield Link(name, value.args)
            yield from (Link(f"{name}.{key}", each, value.keywords, key) for key, each in value.keywords.items())
        case types.MethodType():
            yield Link(name, value.__self__)
            yield Link(name, value.__func__)
        case types.FunctionType():
            yield from _variables(name, value)
        case types.GeneratorType():
            if value.gi_frame is not None:
                yield from (Link(f"{name}.{key}", each) for key, each in value.gi_frame.f_locals.items())
        case functools._lru_cache_wrapper():
            yield from (Link(name, each) for each in _cached(value))
    yield from _attributes(name, value)


def _attributes(name: str, value: Any) -> Iterator[Link]:
    """Attributes of an instance and of the user's classes, and the variables that methods of these use."""
    namespace = getattr(value, "__dict__", None)
    if isinstance(namespace, dict) and not isinstance(value, types.FunctionType):
        yield from (Link(f"{name}.{key}", each, namespace, key) for key, each in namespace.items())
    for owner in type(value).__mro__:
        for key, each in vars(owner).items():
            function = getattr(each, "fget", None) or getattr(each, "__func__", None) or each  # of a property or static method
            if isinstance(each, types.MemberDescriptorType) and not key.startswith("__"):  # a slot
                yield from (Link(f"{name}.{key}", found) for found in _slot(each, value))
            elif isinstance(function, types.FunctionType):
                if _is_users(function):
                    yield from _variables(name, function)
            elif not key.startswith("__") and not hasattr(type(each), "__get__") and _is_users_class(owner):
                yield Link(f"{name}.{key}", each)


def _slot(slot: types.MemberDescriptorType, value: Any) -> Iterator[Any]:
    try:
        yield slot.__get__(value)
    except AttributeError:  # it is empty
        return


def _cached(function: Any) -> Iterator[Any]:
    """The function behind ``functools.lru_cache``, and the results that it keeps."""
    for each in gc.get_referents(function):
        found = each.values() if isinstance(each, dict) else [each]
        for value in islice(found, MAX_ITEMS):
            yield from gc.get_referents(value) if type(value).__name__ == "_lru_list_elem" else [value]


def _variables(name: str, function: types.FunctionType) -> Iterator[Link]:
    """Variables of enclosing functions, defaults, and global variables that a function of the user uses."""
    code = function.__code__
    for key, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if key != "__class__" and cell != types.CellType():
            yield Link(f"{name}.{key}", cell.cell_contents)
    yield from (Link(name, each) for each in function.__defaults__ or ())
    if _is_users(function):
        variables = function.__globals__
        yield from (Link(key, variables[key], variables, key) for key in code.co_names if key in variables)


def _is_users(function: types.FunctionType) -> bool:
    """Whether ``function`` is of the user's own code."""
    return _is_users_file(function.__code__.co_filename)


def _is_users_class(owner: type) -> bool:
    file = getattr(sys.modules.get(owner.__module__), "__file__", None)
    return owner.__module__ == "__main__" or (file is not None and _is_users_file(file))


def _is_users_file(path: str) -> bool:
    return not path.startswith((*INSTALLED, "<frozen")) and "site-packages" not in path and not path.startswith(_OWN)


_OWN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
"""The folder of ddpbench."""


def _short(key: Any) -> str:
    """A key as it may stand in a record: a text may be a path."""
    if isinstance(key, int) or (isinstance(key, str) and (key.isidentifier() or key.isdecimal()) and len(key) <= 40):
        return repr(key)
    return "..."
