"""Where in the user's own sources optimizers and DDP are made, and under which names models are known there."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

LIBRARIES = tuple(
    os.path.realpath(each) + os.sep
    for each in {
        os.path.dirname(os.path.dirname(torch.__file__)),
        os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__)))) + "/ddpbench",
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        *site.getsitepackages(),
        site.getusersitepackages(),
    }
)
"""Folders of sources that are not the user's."""


@dataclass(frozen=True)
class CallSite:
    """A call in a source of the user."""

    path: str
    line: int
    order: int  # of all sites
    version: tuple[int, int]  # modification time in ns and size of the source
    model_names: Mapping[int, str]  # by the id of each module that a variable holds
    torch_name: str  # under which torch is known there; empty if it is not

    @property
    def has_changed(self) -> bool:
        """Whether the source is not what it was."""
        return _version(self.path) != self.version


class CallSites:
    """Notes the place of every object that it is told of, while that exists."""

    def __init__(self) -> None:
        self._sites: WeakKeyDictionary[Any, CallSite] = WeakKeyDictionary()
        self._count = 0

    def noted(self, constructor: Callable[..., None]) -> Callable[..., None]:
        """``constructor``, an ``__init__``, which notes the place where its objects are made."""

        @wraps(constructor)
        def noted_init(made: Any, *arguments: Any, **options: Any) -> None:
            frame = _user_frame(sys._getframe(1))
            if frame is not None and made not in self._sites:
                self._sites[made] = self._site(frame)
            constructor(made, *arguments, **options)

        return noted_init

    def of(self, made: object) -> CallSite | None:
        """Where ``made`` was made; None if no source of the user is known."""
        return self._sites.get(made)

    def _site(self, frame: FrameType) -> CallSite:
        self._count += 1
        known = {**frame.f_globals, **frame.f_locals}
        models = {id(value): name for name, value in frame.f_locals.items() if isinstance(value, nn.Module)}
        torch_name = next((name for name, value in known.items() if value is torch), "")
        path = os.path.realpath(frame.f_code.co_filename)
        return CallSite(path, frame.f_lineno, self._count, _version(path), models, torch_name)


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
