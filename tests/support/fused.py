"""The fused functions beside what torch computes, and the errors of both against float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ddpbench.kernels.deferred import FusedBatchNorm2d

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])]
"""The interpreter truncates to bfloat16, where a GPU rounds."""

INTERPRETED = pytest.mark.skipif(DEVICE == "cuda", reason="Triton compiles for the GPU here, and its interpreter is off")

Norms = tuple[nn.BatchNorm2d, nn.BatchNorm2d]
Function = Callable[[Tensor, Tensor, Norms], Tensor]


def add_twice(y: Tensor, other: Tensor, norms: Norms) -> Tensor:
    """A sum that is used in another sum and besides, so that it has two gradients."""
    first = functional.relu(norms[0](y) + other)
    return functional.relu(norms[1](other) + first) + first


KINDS: dict[str, Function] = {
    "relu": lambda y, _, norms: functional.relu(norms[0](y)),
    "add": lambda y, other, norms: functional.relu(norms[0](y) + other),
    "add-norm": lambda y, other, norms: functional.relu(norms[0](y) + norms[1](other)),
    "add-twice": add_twice,
    "pool": lambda y, _, norms: functional.max_pool2d(functional.relu(norms[0](y)), 3, 2, 1),
}
"""Functions of ``y``, ``other`` and two BatchNorms that run in the kernels if the BatchNorms are fused."""


def fused(norms: Norms, pools: bool = False) -> Norms:
    for norm in norms:
        norm.__class__ = FusedBatchNorm2d
        norm.pools = pools
    return norms


@dataclass(frozen=True)
class Inputs:
    """Two feature maps, two BatchNorms, and a gradient of a result, which is no larger."""

    y: Tensor
    other: Tensor
    norms: Norms
    grad: Tensor

    @classmethod
    def random(cls, seed: int, shape: tuple[int, int, int, int], dtype: torch.dtype, mean: float = 0.0) -> Inputs:
        """Maps with a standard deviation of 1; ``mean`` is that of ``y`` and ``other``."""
        generator = torch.Generator().manual_seed(seed)

        def feature_map(mean: float = 0.0) -> Tensor:
            return channels_last((torch.randn(shape, generator=generator) + mean).to(DEVICE, dtype))

        def norm() -> nn.BatchNorm2d:
            made = nn.BatchNorm2d(shape[1])
            with torch.no_grad():
                for parameter in made.parameters():
                    parameter.copy_(torch.randn(shape[1], generator=generator) + 1)
            return made.to(DEVICE)

        return cls(feature_map(mean), feature_map(mean), (norm(), norm()), feature_map())

    def double(self) -> Inputs:
        norms = (self.norms[0].double(), self.norms[1].double())
        return Inputs(self.y.double(), self.other.double(), norms, self.grad.double())


def channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def results(inputs: Inputs, kind: str, is_fused: bool = False) -> dict[str, Tensor]:
    """Output, gradients and running statistics, by name."""
    inputs = copy.deepcopy(inputs)
    y, other = inputs.y.requires_grad_(), inputs.other.requires_grad_()
    norms = fused(inputs.norms, kind == "pool") if is_fused else inputs.norms
    out = KINDS[kind](y, other, norms)
    height, width = out.shape[2:]
    out.backward(inputs.grad[:, :, :height, :width])
    named = {"out": out.detach(), "y": y.grad, "other": other.grad}
    for name, norm in zip(("first", "second"), norms, strict=True):
        named |= {f"{name} {key}": parameter.grad for key, parameter in norm.named_parameters()}
        named |= {f"{name} {key}": buffer for key, buffer in norm.named_buffers()}
    return {name: value for name, value in named.items() if value is not None}


def errors(inputs: Inputs, kind: str) -> Mapping[str, tuple[float, float, float]]:
    """Largest errors against float64, by result: of the fused function, of torch in the same dtype, and of one rounding."""
    ours, plain = results(inputs, kind, is_fused=True), results(inputs, kind)
    exact = results(copy.deepcopy(inputs).double(), kind)
    assert ours.keys() == plain.keys() == exact.keys()
    found = {}
    for name, value in exact.items():
        error, torch_error = ((each[name].double() - value.double()).abs().max().item() for each in (ours, plain))
        dtype = plain[name].dtype
        rounding = torch.finfo(dtype).eps * value.abs().max().item() if dtype.is_floating_point else 0.0
        found[name] = (error, torch_error, rounding)
    return found
