"""Models that a script calls in its steps and does not train, such as a frozen teacher: found in the first steps of the training.

Hooks on all modules slow down every call, and would make compiled models compile again: they stay for a few updates only, and are not
installed beside a compiled model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks

LOOK_FOR_UPDATES = 3
MAX_MODELS = 4


class EarlierModels:
    """``is_timed`` says whether the calls of a model are timed already; ``found`` is called with each other one that has parameters."""

    def __init__(self, is_timed: Callable[[nn.Module], bool], found: Callable[[nn.Module], None]) -> None:
        self._is_timed, self._found = is_timed, found
        self._thread = 0
        self._outermost: nn.Module | None = None  # that is being called
        self._models: list[nn.Module] = []
        self._updates = 0
        self._handles: list[Any] = []

    def look(self) -> None:
        """Look for models from now on, in this thread, once."""
        if self._updates or self._handles or torch.compiler.is_compiling():
            return
        self._thread = threading.get_ident()
        self._handles = [
            hooks.register_module_forward_pre_hook(self._begin_call),
            hooks.register_module_forward_hook(self._end_call, always_call=True),
        ]

    def after_update(self) -> None:
        """An optimizer has made its step."""
        if not self._handles:
            return
        self._updates += 1
        if self._updates >= LOOK_FOR_UPDATES:
            self.remove()
            for model in self._models[:MAX_MODELS]:
                self._found(model)
            self._models.clear()

    def remove(self) -> None:
        """Look for no more models."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._outermost = [], None

    def _begin_call(self, module: nn.Module, _: Any) -> None:
        if self._outermost is not None or threading.get_ident() != self._thread or torch.compiler.is_compiling():
            return
        self._outermost = module
        is_known = self._is_timed(module) or any(module is each for each in self._models)
        if not is_known and next(module.parameters(), None) is not None:
            self._models.append(module)

    def _end_call(self, module: nn.Module, *_: Any) -> None:
        if module is self._outermost and threading.get_ident() == self._thread:
            self._outermost = None
