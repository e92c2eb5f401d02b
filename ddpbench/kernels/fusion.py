"""``fuse`` gives a model the fused kernels: in each module whose forward method has a BatchNorm before a ReLU."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from typing import Any, TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ddpbench.kernels.patterns import CannotTrace, Rewriter, has_hooks, is_plain, trace

ModelT = TypeVar("ModelT", bound=nn.Module)

logger = logging.getLogger(__name__)


def fuse(model: ModelT) -> ModelT:
    """``model``, which trains with fused kernels of BatchNorm, addition, ReLU and max-pool from now on, and gives the same results.

    Class, modules, parameters and state_dict stay the same, and in eval mode it runs as before. The kernels need a GPU, and feature maps
    (N, C, H, W) in channels-last order; others run as before. Call it before DistributedDataParallel and torch.compile. A warning is
    logged for each BatchNorm that is not fused.
    """
    for name, reason in fuse_modules(model).items():
        logger.warning("%s is not fused: %s", name, reason)
    return model


def fuse_modules(model: nn.Module) -> dict[str, str]:
    """Fuse ``model`` as ``fuse`` does. Returns the names of the BatchNorms that are not fused, and why not."""
    fused: set[str] = set()
    untraceable: dict[str, str] = {}
    for name, module in model.named_modules():
        if not isinstance(module, _BatchNorm) and any(isinstance(each, _BatchNorm) for each in module.modules()):
            try:
                fused |= {f"{name}.{each}".lstrip(".") for each in _fuse_module(module)}
            except CannotTrace as problem:
                untraceable[name] = str(problem)
    norms = {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm) and name not in fused}
    return {name: _reason(name, norm, untraceable) for name, norm in norms.items()}


def _fuse_module(module: nn.Module) -> list[str]:
    """Fuse the forward method of ``module``, if it has patterns. Returns the names of the modules that it replaces."""
    present = vars(module).get("forward")
    if isinstance(present, FusedForward):
        return present.replaced
    if present is not None:
        raise CannotTrace("its forward method has been replaced")
    was_training = {each: each.training for each in module.modules()}
    try:
        graph = trace(module.train())
    finally:
        for each, training in was_training.items():
            each.training = training
    replaced = Rewriter(module, graph).rewrite()
    if replaced:
        code = graph.python_code("self")
        namespace = dict(code.globals)
        exec(compile(code.src, f"<fused {type(module).__name__}>", "exec"), namespace)
        module.forward = FusedForward(module, namespace["forward"], replaced)
    return replaced


def _reason(name: str, norm: nn.Module, untraceable: dict[str, str]) -> str:
    """Why the BatchNorm ``name`` is not fused."""
    if not is_plain(norm, nn.BatchNorm2d):
        return f"it is a {type(norm).__name__}" if not isinstance(norm, nn.BatchNorm2d) else "it has hooks or a parametrization"
    return untraceable.get(name.rpartition(".")[0], "no ReLU follows, or something else uses its output")


class FusedForward:
    """The forward method of one module. It uses ``fused`` in training mode, as long as nothing has changed that this relies on.

    Copies of the module are fused, too; pickled ones are not.
    """

    def __init__(self, module: nn.Module, fused: Any, replaced: list[str]) -> None:
        self._module, self._fused, self.replaced = module, fused, replaced
        self._children = [*_children(module, replaced)]
        self._settings = _settings(module)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        module = self._module
        forward = self._fused if module.training and self._is_unchanged() else type(module).forward
        return forward(module, *arguments, **options)

    def _is_unchanged(self) -> bool:
        """Whether the replaced modules are still there and unobserved, and the module has the settings with which it was traced."""
        for siblings, name, child in self._children:
            if siblings.get(name) is not child or has_hooks(child):
                return False
        return _settings(self._module) == self._settings

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedForward:
        twin = memo[id(self)] = object.__new__(type(self))
        vars(twin).update(copy.deepcopy(vars(self), memo))
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._module, "forward")


def _children(module: nn.Module, names: list[str]) -> Iterator[tuple[dict[str, Any], str, nn.Module]]:
    """The modules ``names`` and those between them and ``module``, each with its siblings and its name among them."""
    paths = {tuple(name.split(".")[: depth + 1]) for name in names for depth in range(name.count(".") + 1)}
    for path in sorted(paths):
        parent = module.get_submodule(".".join(path[:-1]))
        yield parent._modules, path[-1], module.get_submodule(".".join(path))


def _settings(module: nn.Module) -> dict[str, Any]:
    """Attributes that decide what a forward method does, which a traced one does not look at."""
    return {name: value for name, value in vars(module).items() if isinstance(value, bool | int | float | str) and name != "training"}
