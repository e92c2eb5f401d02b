"""Where the user's own sources make what they train with, under which names models are known there, and what arguments the script got."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.utils.data import DataLoader

LIBRARIES = tuple(
    os.path.realpath(each) + os.sep
    for each in {
        os.path.dirname(os.path.dirname(torch.__file__)),
        os.path.dirname(os.path.dirname(os.path.dirname(__file__))),  # ddpbench
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        *site.getsitepackages(),
        site.getusersitepackages(),
    }
)
"""Folders of sources that are not the user's."""

CONSTRUCTORS = ("__init__", "__post_init__")


@dataclass(frozen=True)
class CallSite:
    """The place in a source of the user from which an object was made.

    Args:
        path: The source.
        line: Counts from 1.
        order: Of all sites.
        class_name: Of the object.
        is_direct: The constructor is called there, not in a library that is called there.
        is_of_subclass: A class of its own has called it, with other arguments.
        version: Modification time in ns and size of the source.
        model_names: By the id of each module that a variable, or an attribute of ``self``, holds.
        torch_name: Under which torch is known; empty if it is not.
    """

    path: str
    line: int
    order: int
    class_name: str
    is_direct: bool
    is_of_subclass: bool
    version: tuple[int, int]
    model_names: Mapping[int, str]
    torch_name: str

    @property
    def has_changed(self) -> bool:
        """Whether the source is not what it was."""
        return _version(self.path) != self.version


@dataclass(frozen=True)
class ParsedArguments:
    """What a parser made of the command line of the script, as it was then."""

    parser: ArgumentParser
    words: Sequence[str]
    values: Mapping[str, Any]
    unknown: Sequence[str]


class CallSites:
    """Notes the places of objects, while these exist."""

    def __init__(self) -> None:
        self._sites: WeakKeyDictionary[Any, CallSite] = WeakKeyDictionary()
        self._loaders: dict[tuple[str, int], tuple[Callable[[], Any], CallSite]] = {}  # by place: the dataset of the last one
        self._shared: set[tuple[str, int]] = set()  # places that have made loaders of several datasets
        self._trainer_arguments: dict[tuple[str, int], tuple[Any, CallSite]] = {}  # by place: the number of workers
        self._count = 0
        self.arguments: list[ParsedArguments] = []

    def noted(self, constructor: Callable[..., None]) -> Callable[..., None]:
        """``constructor``, an ``__init__``, which notes the place where its objects are made."""

        @wraps(constructor)
        def noted_init(made: Any, *arguments: Any, **options: Any) -> None:
            with suppress(Exception):  # of the user's own classes: it is not known then
                if made not in self._sites and (found := self._site_of(made, sys._getframe(1))):
                    self._sites[made] = found
            constructor(made, *arguments, **options)
            with suppress(Exception):
                if isinstance(made, DataLoader) and (found := self._sites.get(made)) and found.is_direct:
                    place = found.path, found.line
                    if place in self._loaders and self._loaders[place][0]() is not made.dataset:
                        self._shared.add(place)
                    self._loaders[place] = _reference(made.dataset), found

        return noted_init

    def noted_arguments(self, post_init: Callable[..., None]) -> Callable[..., None]:
        """``TrainingArguments.__post_init__`` of transformers, which notes where the script makes them. They have no hash."""

        @wraps(post_init)
        def noted_post_init(made: Any, *arguments: Any, **options: Any) -> None:
            with suppress(Exception):
                if found := self._site_of(made, sys._getframe(1)):
                    self._trainer_arguments[found.path, found.line] = made.dataloader_num_workers, found
            post_init(made, *arguments, **options)

        return noted_post_init

    def noted_parse(self, parse: Callable[..., Any]) -> Callable[..., Any]:
        """``ArgumentParser.parse_known_args``, which notes what it has made of the command line."""

        @wraps(parse)
        def noted_parse(parser: ArgumentParser, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
            words = sys.argv[1:]
            parsed = parse(parser, args, namespace)
            with suppress(Exception):
                if args is None or [*args] == words:
                    self.arguments.append(ParsedArguments(parser, words, dict(vars(parsed[0])), parsed[1]))
            return parsed

        return noted_parse

    def of(self, made: object) -> CallSite | None:
        """Where ``made`` was made; None if no source of the user is known."""
        return self._sites.get(made)

    def of_loader(self, loader: DataLoader[Any]) -> CallSite | None:
        """Where the script itself made ``loader``, or the only one of the same dataset, which a library has replaced; None if unknown."""
        own = self.of(loader)
        if own is not None and own.is_direct:
            return own
        found = [site for dataset, site in self._loaders.values() if dataset() is loader.dataset]
        return found[0] if len(found) == 1 else None

    def makes_several_loaders(self, site: CallSite) -> bool:
        """Whether loaders of several datasets were made at ``site``."""
        return (site.path, site.line) in self._shared

    def of_trainer(self, workers: int) -> CallSite | None:
        """Where the script makes the arguments of a Trainer with so many workers; None if that is unknown, or in several places."""
        found = [site for number, site in self._trainer_arguments.values() if number == workers and site.is_direct]
        return found[0] if len(found) == len(self._trainer_arguments) == 1 else None

    def _site_of(self, made: Any, caller: FrameType | None) -> CallSite | None:
        frame, num_own = caller, 0
        while frame is not None and _constructs(frame, made):
            frame, num_own = frame.f_back, num_own + 1
        user = _user_frame(frame)
        if user is None:
            return None
        self._count += 1
        is_of_subclass = isinstance(made, DataLoader) and num_own > 0
        return _call_site(user, type(made).__name__, self._count, user is frame, is_of_subclass)


def _constructs(frame: FrameType, made: Any) -> bool:
    """Whether ``frame`` is that of a constructor of ``made``."""
    name = frame.f_code.co_name
    return name in CONSTRUCTORS and any(getattr(vars(cls).get(name), "__code__", None) is frame.f_code for cls in type(made).__mro__)


def _reference(dataset: Any) -> Callable[[], Any]:
    try:
        return ref(dataset)
    except TypeError:  # a list
        return lambda: None


def _call_site(frame: FrameType, class_name: str, order: int, is_direct: bool, is_of_subclass: bool) -> CallSite:
    with _variables(frame) as names:
        known = {**frame.f_globals, **names}
        own = names.get("self")
        attributes = {**vars(own), **vars(own).get("_modules", {})} if own is not None and hasattr(own, "__dict__") else {}
        models = {id(value): f"self.{name}" for name, value in attributes.items() if isinstance(value, nn.Module)}
        models |= {id(value): name for name, value in names.items() if isinstance(value, nn.Module)}
    torch_name = next((name for name, value in known.items() if value is torch), "")
    path = os.path.realpath(frame.f_code.co_filename)
    return CallSite(path, frame.f_lineno, order, class_name, is_direct, is_of_subclass, _version(path), models, torch_name)


REFERENCES = 3
"""To the variables of a function that has not asked for them itself: of the frame, of the name below, and of the call that counts."""


@contextmanager
def _variables(frame: FrameType) -> Iterator[Mapping[str, Any]]:
    """The variables of a frame.

    Before Python 3.13 that of a function would keep a copy of them until it ends, and all that they hold. It is emptied, unless the
    function itself has called ``locals()``, or has variables there that ``exec`` has made.
    """
    names = frame.f_locals
    try:
        yield dict(names)
    finally:
        code = frame.f_code
        is_copy = isinstance(names, dict) and code.co_flags & CO_OPTIMIZED and sys.getrefcount(names) <= REFERENCES
        if is_copy and names.keys() <= {*code.co_varnames, *code.co_cellvars, *code.co_freevars}:
            names.clear()


def _user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of a source of the user."""
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith("<") and not os.path.realpath(path).startswith(LIBRARIES):
            return frame
        frame = frame.f_back
    return None


def _version(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
