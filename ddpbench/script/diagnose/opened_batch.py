"""Takes a batch of any classes apart, and builds new ones of the same classes from other tensors.

Containers, arrays and objects are new each time, so that a script may change them. What is immutable or cannot be opened, such as a path
or an image of PIL, is the same in all of them. Attributes are read and set beside the class: its ``__init__``, ``__getattr__``,
``__setattr__`` and properties may do anything.
"""

from __future__ import annotations

import copy
import types
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, MappingView, Sequence
from enum import Enum
from functools import partial
from operator import itemgetter, setitem
from pathlib import PurePath
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

NUMBERS = (int, float, complex, bool, np.generic)
VALUES = (*NUMBERS, str, bytes, type(None), range, slice, torch.dtype, torch.device, torch.Size, Enum, PurePath)
"""Immutable values."""

FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
SHARED = (*FUNCTIONS, types.ModuleType, type, nn.Module, Dataset, DataLoader, Optimizer)
"""What belongs to the script, and not to one batch."""

CONTAINERS = (list, dict, OrderedDict, defaultdict, Counter, deque, set, bytearray, array)
"""Classes, without their subclasses, that ``copy.copy`` copies."""

Made = dict[int, Any]
"""What takes the place of a part in the new batch, by the part's id: the tensors, then what is built. A memo of ``copy.deepcopy``."""

Build = Callable[[Made], Any]
Set = Callable[[Any, Any, Any], None]
"""Sets one part of a new container: ``set_item(new, key, value)``."""

Setter = Callable[[Any, Any], None]
"""Sets one part of a new object: ``setter(new, value)``."""


class CannotOpen(Exception):
    """A part can neither be built nor be handed out a second time. Its class is the message."""


class OpenedBatch:
    """The parts of ``batch``, which must not change any more. Raises CannotOpen."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self.tensors: list[Tensor] = []  # each one once
        self.array_bytes = 0
        self._builds: dict[int, Build | None] = {}  # by the part's id; None if it is handed on
        self._parts: list[Any] = []  # keeps ids unique
        self._build = self._open(batch)

    def build(self, tensors: Sequence[Tensor]) -> Any:
        """A new batch with ``tensors`` in place of its own."""
        if self._build is None:
            return self._batch
        return self._build({id(own): new for own, new in zip(self.tensors, tensors, strict=True)})

    def _open(self, part: Any) -> Build | None:
        if isinstance(part, (*VALUES, *SHARED)):
            return None
        key = id(part)
        if key not in self._builds:
            self._parts.append(part)
            self._builds[key] = itemgetter(key)  # of a part that contains itself
            self._builds[key] = self._open_new(part, key)
        return self._builds[key]

    def _open_new(self, part: Any, key: int) -> Build | None:
        if isinstance(part, Tensor):
            self.tensors.append(part)
            return itemgetter(key)
        if isinstance(part, np.ndarray):
            self.array_bytes += part.nbytes
            elements = enumerate(part.flat) if part.dtype == object else ()
            return _builder(key, part.copy, _set_element, self._open_all(elements))
        if type(part) in CONTAINERS:
            items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, (list, deque)) else ()
            return _builder(key, partial(copy.copy, part), setitem, self._open_all(items))
        if isinstance(part, tuple):
            return self._open_tuple(part, key)
        if isinstance(part, ref):
            return partial(_new_reference, part)
        return self._open_object(part, key)

    def _open_all(self, parts: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Build]]:
        """How those of ``parts`` that are not handed on are built, each with its key."""
        return [(key, build) for key, part in parts if (build := self._open(part)) is not None]

    def _open_tuple(self, part: Any, key: int) -> Build | None:
        cls, builds = type(part), [self._open(each) for each in part]
        if not any(builds):
            return None
        try:
            make: Callable[[Any], Any] = partial(tuple.__new__, cls)
            make(part)
        except TypeError:  # of a named result of torch
            make = cls
        return lambda made: make([each if build is None else build(made) for each, build in zip(tuple.__iter__(part), builds, strict=True)])

    def _open_object(self, part: Any, key: int) -> Build | None:
        cls, before = type(part), (len(self.tensors), self.array_bytes)
        attributes = list(_attributes(part))
        builds = self._open_all([*attributes, *_items(part)])
        has_data = before != (len(self.tensors), self.array_bytes)
        if not attributes and not isinstance(part, (dict, list)):
            if isinstance(part, (Iterator, MappingView)):  # it can be read once, or shows another part
                raise CannotOpen(cls.__name__)
            return None
        try:
            make = _maker(part, attributes)
            if make is None:
                copy.deepcopy(part)
                return partial(copy.deepcopy, part)
        except Exception as problem:
            if has_data:
                raise CannotOpen(cls.__name__) from problem
            return None
        if not has_data and any(self._is_opaque(each) for _, each in attributes):
            return None
        return _builder(key, make, _set_by, builds)

    def _is_opaque(self, part: Any) -> bool:
        """Whether nothing is known of ``part``, and so of what a copy would share with it."""
        return not isinstance(part, (*VALUES, *SHARED, tuple, frozenset)) and self._builds[id(part)] is None


def _builder(key: int, make: Callable[[], Any], set_item: Set, builds: Sequence[tuple[Any, Build]]) -> Build:
    """Makes a copy of a part, then builds what in it is not handed on."""

    def build(made: Made) -> Any:
        if key not in made:
            new = made[key] = make()
            for item, build_part in builds:
                set_item(new, item, build_part(made))
        return made[key]

    return build


def _maker(part: Any, attributes: Sequence[tuple[Setter, Any]]) -> Callable[[], Any] | None:
    """What makes an object with the class and attributes of ``part``; None if only the class itself says how to copy one.

    Raises CannotOpen, and what ``copy.copy`` raises.
    """
    cls = type(part)
    base: Any = next(each for each in (OrderedDict, dict, list, object) if isinstance(part, each))
    if base is object and any(name in vars(each) for each in cls.__mro__[:-1] for name in ("__reduce__", "__reduce_ex__")):
        return None
    if hasattr(cls, "__del__"):  # it owns what its copy would free
        raise CannotOpen(cls.__name__)
    try:
        base.__new__(cls)
    except TypeError:  # a class that is written in C
        copy.copy(part)
        return partial(copy.copy, part)

    def make() -> Any:
        new = base.__new__(cls)
        for setter, value in attributes:
            setter(new, value)
        if base is list:
            list.extend(new, part)
        elif base is not object:
            for key in base.__iter__(part):
                base.__setitem__(new, key, base.__getitem__(part, key))
        return new

    return make


def _items(part: Any) -> Iterator[tuple[Setter, Any]]:
    """The items of an object that is also a list or a dict, and what sets each."""
    base: Any = next((each for each in (OrderedDict, dict, list) if isinstance(part, each)), None)
    keys = () if base is None else range(list.__len__(part)) if base is list else base.__iter__(part)
    yield from ((partial(_set_item, base, key), base.__getitem__(part, key)) for key in keys)


def _attributes(part: Any) -> Iterator[tuple[Setter, Any]]:
    """The attributes of an object, and what sets each."""
    try:
        in_dict = object.__getattribute__(part, "__dict__")
    except AttributeError:
        in_dict = {}
    yield from ((partial(_set_attribute, name), value) for name, value in in_dict.items())
    for cls in type(part).__mro__:
        for slot in vars(cls).values() if "__slots__" in vars(cls) else ():
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    yield slot.__set__, slot.__get__(part)
                except AttributeError:  # it has not been set
                    continue


def _set_item(base: Any, key: Any, new: Any, value: Any) -> None:
    base.__setitem__(new, key, value)


def _set_element(new: Any, index: int, value: Any) -> None:
    new.flat[index] = value


def _set_by(new: Any, setter: Setter, value: Any) -> None:
    setter(new, value)


def _set_attribute(name: str, new: Any, value: Any) -> None:
    object.__getattribute__(new, "__dict__")[name] = value


def _new_reference(reference: Any, made: Made) -> Any:
    """A weak reference to what has taken the place of its target; the same one if that is no part of the batch."""
    new = made.get(id(reference()))
    return reference if new is None else ref(new)
