"""Finds BatchNorm with addition, ReLU and max-pool in the forward method of one module, with torch.fx.

A forward method is traced as far as the modules that it calls. The graph only shows what is used where: it never runs.
"""

from __future__ import annotations

import copy
import operator
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

from ddpbench.machine.random_states import kept_random_states

RELU_FUNCTIONS = (functional.relu, torch.relu, torch.relu_)
ADD_FUNCTIONS = (operator.add, operator.iadd, torch.add)


class CannotTrace(Exception):
    """A forward method that torch.fx cannot trace. The text says why."""


def has_hooks(module: nn.Module) -> bool:
    """Whether something sees what goes into ``module`` or comes out of it, or changes it."""
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks))


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether ``module`` is exactly a ``kind``, whose forward method is its own and has no hooks."""
    return type(module) is kind and not has_hooks(module) and not parametrize.is_parametrized(module) and "forward" not in vars(module)


class _ChildTracer(fx.Tracer):
    """Traces one forward method. The modules that it calls are leaves, except for a Sequential that ends with a BatchNorm."""

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return not _ends_with_norm(module)


def _ends_with_norm(module: nn.Module) -> bool:
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward and not has_hooks(module):
        return len(module) > 0 and (is_plain(module[-1], nn.BatchNorm2d) or _ends_with_norm(module[-1]))
    return False


class _NoTensorWork(TorchDispatchMode):
    """Refuses to compute: tracing must not change a buffer, nor draw random numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise CannotTrace(f"its forward method computes {func} of tensors other than its inputs")


def trace(module: nn.Module) -> fx.Graph:
    """The graph of the forward method of ``module``. Does not change the module.

    Raises:
        CannotTrace: It depends on values, or changes or creates tensors that do not come from its inputs.
    """
    try:
        twin = object.__new__(type(module))  # what the method sets or appends is lost with it
        vars(twin).update(
            {name: copy.copy(value) if isinstance(value, dict | list | set) else value for name, value in vars(module).items()}
        )
        twin.training = True
        with kept_random_states(), _NoTensorWork(), redirect_stdout(StringIO()):  # type: ignore[no-untyped-call]
            return _ChildTracer().trace(twin)
    except CannotTrace:
        raise
    except Exception as problem:  # whatever the forward method does with a proxy
        raise CannotTrace(f"torch.fx cannot trace it: {problem}".partition("\n")[0]) from problem


class Finder:
    """Finds the BatchNorms in the graph of ``module`` that can be fused.

    ``norms`` says for each whether a max-pool follows its ReLU. ``shortcuts`` are convolutions before one, whose input has other uses.
    """

    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        self._modules = dict(module.named_modules())
        self.norms: dict[str, bool] = {}
        self.shortcuts: set[str] = set()
        for node in graph.nodes:
            if self._is_relu(node):
                self._add_norms_before(node)

    def _add_norms_before(self, relu: fx.Node) -> None:
        before = self._skip_identities(relu.args[0])
        if self._is_norm(before):
            self.norms[str(before.target)] = self._is_followed_by_pool(relu)
        elif self._is_add(before):
            norms = [each for each in map(self._skip_identities, before.args) if self._is_norm(each)]
            self.norms |= {str(each.target): False for each in norms}
            convolutions = [self._skip_identities(each.args[0]) for each in norms]
            self.shortcuts |= {str(each.target) for each in convolutions if self._is_shortcut(each)}

    def _is_shortcut(self, node: Any) -> bool:
        module = self._module_of(node)
        return module is not None and is_plain(module, nn.Conv2d) and len(node.args[0].users) > 1

    def _module_of(self, node: Any) -> nn.Module | None:
        is_call = isinstance(node, fx.Node) and node.op == "call_module" and len(node.args) == 1 and not node.kwargs
        return self._modules[str(node.target)] if is_call else None

    def _is_norm(self, node: Any) -> bool:
        """Whether ``node`` is a BatchNorm that only one place uses."""
        module = self._module_of(node)
        return module is not None and is_plain(module, nn.BatchNorm2d) and len(node.users) == 1

    def _is_relu(self, node: fx.Node) -> bool:
        if node.op == "call_function":
            return node.target in RELU_FUNCTIONS and len(node.args) == 1
        if node.op == "call_method":
            return node.target in ("relu", "relu_")
        module = self._module_of(node)
        return module is not None and type(module) is nn.ReLU

    def _is_add(self, node: Any) -> bool:
        if not isinstance(node, fx.Node) or len(node.users) != 1 or len(node.args) != 2 or node.kwargs:
            return False
        return node.target in ADD_FUNCTIONS if node.op == "call_function" else node.op == "call_method" and node.target in ("add", "add_")

    def _is_followed_by_pool(self, relu: fx.Node) -> bool:
        return len(relu.users) == 1 and type(self._module_of(next(iter(relu.users)))) is nn.MaxPool2d

    def _skip_identities(self, node: Any) -> Any:
        while type(self._module_of(node)) is nn.Identity and len(node.users) == 1:
            node = node.args[0]
        return node
