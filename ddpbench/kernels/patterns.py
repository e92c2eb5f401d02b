"""Finds BatchNorm with addition, ReLU and max-pool in the forward method of one module, and rewrites it with the fused functions.

A forward method is traced by torch.fx as far as the modules that it calls, which stay what they are.
"""

from __future__ import annotations

import operator
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from ddpbench.kernels.functions import norm_add_relu, norm_relu, norm_relu_pool, twin

RELU_FUNCTIONS = (functional.relu, functional.relu_, torch.relu, torch.relu_)
ADD_FUNCTIONS = (operator.add, operator.iadd, torch.add)
IN_PLACE_ADDS = (operator.iadd, "add_")


class CannotTrace(Exception):
    """A forward method that torch.fx cannot trace, or that does other things in each call. The text says why."""


def has_hooks(module: nn.Module) -> bool:
    """Whether something sees what goes into ``module`` or comes out of it, or changes it."""
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks))


class _ChildTracer(fx.Tracer):
    """Traces one forward method. The modules that it calls are leaves, except for a Sequential that ends with a BatchNorm."""

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return not _ends_with_norm(module)


def _ends_with_norm(module: nn.Module) -> bool:
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward and not has_hooks(module):
        return len(module) > 0 and (is_plain(module[-1], nn.BatchNorm2d) or _ends_with_norm(module[-1]))
    return False


def trace(module: nn.Module) -> fx.Graph:
    """The graph of the forward method of ``module``, which is in training mode.

    Raises:
        CannotTrace: It depends on values, sets attributes, or draws or creates tensors that would be the same in every call.
    """
    attributes, states = dict(vars(module)), (random.getstate(), torch.get_rng_state())
    try:
        graph = _ChildTracer().trace(module)
    except Exception as problem:  # whatever the forward method does with a proxy
        raise CannotTrace(f"torch.fx cannot trace it: {problem}".partition("\n")[0]) from problem
    finally:
        drew_numbers = random.getstate() != states[0] or not torch.equal(torch.get_rng_state(), states[1])
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        changed = {name for name, value in vars(module).items() if attributes.get(name, module) is not value}
        vars(module).clear()
        vars(module).update(attributes)
    if drew_numbers:
        raise CannotTrace("its forward method draws random numbers")
    if any(name.startswith("_tensor_constant") for name in changed):  # torch.fx keeps them there
        raise CannotTrace("its forward method creates tensors")
    if changed:
        raise CannotTrace(f"its forward method sets {min(changed)}")
    return graph


class Rewriter:
    """Rewrites the graph of the forward method of ``module``."""

    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        self._modules, self._graph = dict(module.named_modules()), graph

    def rewrite(self) -> list[str]:
        """Replace all patterns in the graph. Returns the names of the modules that are called less often, or not at all, then."""
        before = self._calls()
        for node in [*self._graph.nodes]:
            if self._is_relu(node):
                self._rewrite_relu(node)
        for node in [*self._graph.nodes]:
            self._use_twin(node)
        self._graph.lint()
        return [*(before - self._calls())]

    def _calls(self) -> Counter[str]:
        return Counter(str(node.target) for node in self._graph.nodes if node.op == "call_module")

    def _rewrite_relu(self, relu: fx.Node) -> None:
        before = self._skip_identities(relu.args[0])
        if norm := self._norm_of(before):
            pool = self._pool_after(relu)
            self._replace(norm, pool or relu, norm_relu_pool if pool else norm_relu, [norm.args[0], norm])
        elif self._is_add(before):
            self._rewrite_add(before, relu)

    def _rewrite_add(self, add: fx.Node, relu: fx.Node) -> None:
        first, second = (self._skip_identities(each) for each in add.args)
        for mine, other in [(first, second), (second, first)][: 1 if add.target in IN_PLACE_ADDS else 2]:
            if isinstance(other, fx.Node) and other is not mine and (norm := self._norm_of(mine)):
                other_norm = self._norm_of(other)
                rest = [other_norm.args[0], other_norm] if other_norm else [other]
                return self._replace(add, relu, norm_add_relu, [norm.args[0], norm, *rest])

    def _replace(self, first: fx.Node, last: fx.Node, function: Callable[..., Any], arguments: list[Any]) -> None:
        """Call ``function`` where ``first`` is, in place of the nodes to ``last``. Of a BatchNorm in ``arguments`` it gets the module."""
        with self._graph.inserting_before(first):
            values = [self._graph.get_attr(str(each.target)) if self._norm_of(each) else each for each in arguments]
            new = self._graph.call_function(function, (*values,))
        last.replace_all_uses_with(new)
        self._erase(last, new.all_input_nodes)

    def _erase(self, node: fx.Node, inputs: list[fx.Node]) -> None:
        if node not in inputs and not node.users:
            before = node.all_input_nodes
            self._graph.erase_node(node)
            for each in before:
                self._erase(each, inputs)

    def _use_twin(self, node: fx.Node) -> None:
        """Give the second of two uses of a feature map its twin, if another module, or this one, may have made one."""
        if (node.op == "placeholder" or node.target is norm_add_relu) and len(node.users) == 2:
            user = [*node.users][1]
            with self._graph.inserting_before(user):
                user.replace_input_with(node, self._graph.call_function(twin, (node,)))

    # what a node is

    def _module_of(self, node: Any) -> nn.Module | None:
        is_call = isinstance(node, fx.Node) and node.op == "call_module" and len(node.args) == 1 and not node.kwargs
        return self._modules[str(node.target)] if is_call else None

    def _norm_of(self, node: Any) -> fx.Node | None:
        """``node`` if it is a BatchNorm that only one place uses."""
        module = self._module_of(node)
        return node if module is not None and is_plain(module, nn.BatchNorm2d) and len(node.users) == 1 else None

    def _is_relu(self, node: fx.Node) -> bool:
        if node.op == "call_function":
            return node.target in RELU_FUNCTIONS and len(node.args) == 1
        if node.op == "call_method":
            return node.target in ("relu", "relu_")
        module = self._module_of(node)
        return module is not None and is_plain(module, nn.ReLU)

    def _is_add(self, node: Any) -> bool:
        if not isinstance(node, fx.Node) or len(node.users) != 1 or len(node.args) != 2 or node.kwargs:
            return False
        return node.target in ADD_FUNCTIONS if node.op == "call_function" else node.op == "call_method" and node.target in ("add", "add_")

    def _pool_after(self, relu: fx.Node) -> fx.Node | None:
        """The only user of ``relu``, if it is the max-pool that is fused."""
        users = [*relu.users]
        module = self._module_of(users[0]) if len(users) == 1 else None
        if module is None or not is_plain(module, nn.MaxPool2d):
            return None
        sizes = [_pair(getattr(module, name)) for name in ("kernel_size", "stride", "padding", "dilation")]
        is_fused = sizes == [(3, 3), (2, 2), (1, 1), (1, 1)] and not module.ceil_mode and not module.return_indices
        return users[0] if is_fused else None

    def _skip_identities(self, node: Any) -> Any:
        while isinstance(self._module_of(node), nn.Identity) and len(node.users) == 1:
            node = node.args[0]
        return node


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (*size,)


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether ``module`` is exactly a ``kind``, whose forward method is its own and has no hooks."""
    return type(module) is kind and not has_hooks(module) and not parametrize.is_parametrized(module) and "forward" not in vars(module)
