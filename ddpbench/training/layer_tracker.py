"""Which layer an operator belongs to: in the forward pass by hooks, in the backward pass by autograd's sequence numbers."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn
from torch.autograd.profiler import record_function
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

RANGE = "ddpbench layer: "
"""Prefix of the profiler ranges of layers."""

GRADIENTS = "(gradients)"
OPTIMIZER = "(optimizer)"
OTHER = "(other)"
"""Parts of a step outside of the model: accumulation and all-reduce of gradients; the optimizer's step; input, loss scale and so on."""


class LayerTracker:
    """Tracks the innermost module that is running, among those of ``names``.

    The nodes that autograd creates meanwhile have consecutive sequence numbers, by which ``layer_of_node`` finds their layer.
    """

    def __init__(self, names: Mapping[nn.Module, str]) -> None:
        self._names = names
        self._thread = threading.get_ident()
        self._stack: list[tuple[str, record_function]] = []
        self._starts: list[int] = [0]
        self._layers: list[str] = [OTHER]

    @property
    def current(self) -> str:
        """Name of the innermost layer whose forward is running, or OPTIMIZER, or OTHER."""
        return self._stack[-1][0] if self._stack else OTHER

    def layer_of_node(self, sequence_nr: int) -> str:
        """Name of the layer whose forward created the node of autograd.

        GRADIENTS for nodes that accumulate a gradient into a parameter: their numbers are above all others, or -1 in a profile.
        """
        if not 0 <= sequence_nr < 2**63:
            return GRADIENTS
        return self._layers[bisect_right(self._starts, sequence_nr) - 1]

    @contextmanager
    def track(self) -> Iterator[None]:
        """Track the modules and optimizers that run inside, by global hooks."""
        hooks = (
            module_hooks.register_module_forward_pre_hook(self._enter_module),
            module_hooks.register_module_forward_hook(self._leave_module, always_call=True),
            optimizer_hooks.register_optimizer_step_pre_hook(lambda *_: self._enter(OPTIMIZER)),
            optimizer_hooks.register_optimizer_step_post_hook(lambda *_: self._leave()),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter_module(self, module: nn.Module, _: object) -> None:
        if (name := self._names.get(module)) is not None:
            self._enter(name)

    def _leave_module(self, module: nn.Module, *_: object) -> None:
        if module in self._names:
            self._leave()

    def _enter(self, name: str) -> None:
        span = record_function(f"{RANGE}{name}")
        span.__enter__()
        self._stack.append((name, span))
        self._note_change()

    def _leave(self) -> None:
        self._stack.pop()[1].__exit__(None, None, None)
        self._note_change()

    def _note_change(self) -> None:
        if threading.get_ident() != self._thread:
            return  # a layer that is computed again in a thread of autograd, which numbers its nodes from 0
        self._starts.append(torch.autograd._get_sequence_nr())
        self._layers.append(self.current)
