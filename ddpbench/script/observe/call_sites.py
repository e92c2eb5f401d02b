"""Where the user's own sources make what they train with, under which names models are known there, and what arguments the script got."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

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
        is_direct: The constructor is called there, not in a library that is called there.
        class_names: Under which the class is known.
        version: Modification time in ns and size of the source.
        model_names: By the id of each module that a variable, or an attribute of ``self``, holds.
        torch_name: Under which torch is known; empty if it is not.
    """

    path: str
    line: int
    order: int
    is_direct: bool
    class_names: frozenset[str]
    version: tuple[int, int]
    model_names: Mapping[int, str]
    torch_name: str

    @property
    def has_changed(self) -> bool:
        """Whether the source is not what it was."""
        return _version(self.path) != self.version


@dataclass(frozen=True)
class ParsedArguments:
    """What a parser made of the script's arguments, as it was then."""

    parser: ArgumentParser
    values: Mapping[str, Any]


class CallSites:
    """Notes the place of every object that it is told of, while that exists."""

    def __init__(self) -> None:
        self._sites: WeakKeyDictionary[Any, CallSite] = WeakKeyDictionary()
        self._loaders: dict[tuple[int, str, int], CallSite] = {}  # by dataset and place, also of loaders that a library has replaced
        self._count = 0
        self.arguments: list[ParsedArguments] = []
        self.trainer_arguments: CallSite | None = None  # of the Trainer of transformers, which makes its loaders by them

    def noted(self, constructor: Callable[..., None]) -> Callable[..., None]:
        """``constructor``, an ``__init__``, which notes the place where its objects are made."""

        @wraps(constructor)
        def noted_init(made: Any, *arguments: Any, **options: Any) -> None:
            with suppress(Exception):  # of the user's own classes: it is not known then
                if made not in self._sites and (site := self._site_of(made, sys._getframe(1))):
                    self._sites[made] = site
            constructor(made, *arguments, **options)
            with suppress(Exception):
                if isinstance(made, DataLoader) and (found := self._sites.get(made)):
                    self._loaders[id(made.dataset), found.path, found.line] = found

        return noted_init

    def noted_arguments(self, post_init: Callable[..., None]) -> Callable[..., None]:
        """``TrainingArguments.__post_init__`` of transformers, which notes where the script makes them. They have no hash."""

        @wraps(post_init)
        def noted_post_init(made: Any, *arguments: Any, **options: Any) -> None:
            with suppress(Exception):
                self.trainer_arguments = self._site_of(made, sys._getframe(1))
            post_init(made, *arguments, **options)

        return noted_post_init

    def noted_parse(self, parse: Callable[..., Any]) -> Callable[..., Any]:
        """``ArgumentParser.parse_known_args``, which notes what it has parsed."""

        @wraps(parse)
        def noted_parse(parser: ArgumentParser, *arguments: Any, **options: Any) -> Any:
            parsed = parse(parser, *arguments, **options)
            with suppress(Exception):
                self.arguments.append(ParsedArguments(parser, dict(vars(parsed[0]))))
            return parsed

        return noted_parse

    def of(self, made: object) -> CallSite | None:
        """Where ``made`` was made; None if no source of the user is known."""
        return self._sites.get(made)

    def of_loader(self, loader: DataLoader[Any]) -> CallSite | None:
        """Where the script itself made ``loader``, or one of the same dataset that a library has replaced; None if that is unknown."""
        own = self.of(loader)
        if own is not None and own.is_direct:
            return own
        return next((site for (dataset, *_), site in self._loaders.items() if dataset == id(loader.dataset) and site.is_direct), None)

    def _site_of(self, made: Any, caller: FrameType | None) -> CallSite | None:
        frame = caller
        while frame is not None and frame.f_code.co_name in CONSTRUCTORS and _self_of(frame) is made:
            frame = frame.f_back  # of a subclass
        user = _user_frame(frame)
        if user is None:
            return None
        self._count += 1
        return _call_site(user, made, self._count, is_direct=user is frame)


def _call_site(frame: FrameType, made: Any, order: int, is_direct: bool) -> CallSite:
    with _variables(frame) as names:
        known = {**frame.f_globals, **names}
        own = names.get("self")
        attributes = {**vars(own), **vars(own).get("_modules", {})} if own is not None and hasattr(own, "__dict__") else {}
        models = {id(value): f"self.{name}" for name, value in attributes.items() if isinstance(value, nn.Module)}
        models |= {id(value): name for name, value in names.items() if isinstance(value, nn.Module)}
    class_names = {type(made).__name__} | {name for name, value in known.items() if value is type(made)}
    torch_name = next((name for name, value in known.items() if value is torch), "")
    path = os.path.realpath(frame.f_code.co_filename)
    return CallSite(path, frame.f_lineno, order, is_direct, frozenset(class_names), _version(path), models, torch_name)


@contextmanager
def _variables(frame: FrameType) -> Iterator[Mapping[str, Any]]:
    """The variables of a frame. That of a function would keep a copy of them until it ends, and all that they hold."""
    names = frame.f_locals
    try:
        yield dict(names)
    finally:
        if isinstance(names, dict) and frame.f_code.co_flags & CO_OPTIMIZED:
            names.clear()  # before Python 3.13


def _self_of(frame: FrameType) -> Any:
    with _variables(frame) as names:
        return names.get("self")


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
