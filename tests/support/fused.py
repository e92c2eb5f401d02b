"""The fused functions beside what torch computes, and the errors of both against float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddpbench.kernels.functions import norm_add_relu, norm_relu, norm_relu_pool, twin

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])]
"""The interpreter truncates to bfloat16, where a GPU rounds."""

Norms = tuple[nn.BatchNorm2d, nn.BatchNorm2d]


@dataclass(frozen=True)
class Kind:
    """A fused function of ``y``, two BatchNorms and ``other``, and the same in torch. Both return two tensors to differentiate."""

    fused: Callable[[Tensor, Tensor, Norms], tuple[Tensor, Tensor]]
    torch: Callable[[Tensor, Tensor, Norms], Tensor]


def _with_twin(out: Tensor) -> tuple[Tensor, Tensor]:
    return out, twin(out)


KINDS = {
    "relu": Kind(lambda y, _, norms: _with_twin(norm_relu(y, norms[0])), lambda y, _, norms: functional.relu(norms[0](y))),
    "add": Kind(
        lambda y, other, norms: _with_twin(norm_add_relu(y, norms[0], other)), lambda y, other, norms: functional.relu(norms[0](y) + other)
    ),
    "add-norm": Kind(
        lambda y, other, norms: _with_twin(norm_add_relu(y, norms[0], other, norms[1])),
        lambda y, other, norms: functional.relu(norms[0](y) + norms[1](other)),
    ),
    "pool": Kind(
        lambda y, _, norms: _with_twin(norm_relu_pool(y, norms[0])),
        lambda y, _, norms: functional.max_pool2d(functional.relu(norms[0](y)), 3, 2, 1),
    ),
}


@dataclass(frozen=True)
class Inputs:
    """Two feature maps, two BatchNorms, and two gradients of the result, which is no larger."""

    y: Tensor
    other: Tensor
    norms: Norms
    grads: tuple[Tensor, Tensor]

    @classmethod
    def random(cls, seed: int, shape: tuple[int, int, int, int], dtype: torch.dtype, mean: float = 0.0) -> Inputs:
        """Maps with a standard deviation of 1; ``mean`` is that of ``y``."""
        generator = torch.Generator().manual_seed(seed)

        def feature_map(mean: float = 0.0) -> Tensor:
            return channels_last((torch.randn(shape, generator=generator) + mean).to(DEVICE, dtype))

        def norm() -> nn.BatchNorm2d:
            made = nn.BatchNorm2d(shape[1])
            with torch.no_grad():
                for parameter in made.parameters():
                    parameter.copy_(torch.randn(shape[1], generator=generator) + 1)
            return made.to(DEVICE)

        return cls(feature_map(mean), feature_map(), (norm(), norm()), (feature_map(), feature_map()))

    def double(self) -> Inputs:
        norms = (self.norms[0].double(), self.norms[1].double())
        return Inputs(self.y.double(), self.other.double(), norms, (self.grads[0].double(), self.grads[1].double()))


def channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def results(inputs: Inputs, function: Callable[[Tensor, Tensor, Norms], Tensor | tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Outputs, gradients and running statistics, by name."""
    inputs = copy.deepcopy(inputs)
    y, other = inputs.y.requires_grad_(), inputs.other.requires_grad_()
    out = function(y, other, inputs.norms)
    both = out if isinstance(out, tuple) else (out, out)
    height, width = both[0].shape[2:]
    torch.autograd.backward(both, [grad[:, :, :height, :width] for grad in inputs.grads])
    named = {"out": both[0].detach(), "y": y.grad, "other": other.grad}
    for name, norm in zip(("first", "second"), inputs.norms, strict=True):
        named |= {f"{name} {key}": parameter.grad for key, parameter in norm.named_parameters()}
        named |= {f"{name} {key}": buffer for key, buffer in norm.named_buffers()}
    return {name: value for name, value in named.items() if value is not None}


def errors(inputs: Inputs, kind: Kind) -> Mapping[str, tuple[float, float, float]]:
    """Largest errors against float64, by result: of the fused function, of torch in the same dtype, and of one rounding."""
    fused, plain = results(inputs, kind.fused), results(inputs, kind.torch)
    exact = results(copy.deepcopy(inputs).double(), kind.torch)
    assert fused.keys() == plain.keys() == exact.keys()
    found = {}
    for name, value in exact.items():
        error, torch_error = ((each[name].double() - value.double()).abs().max().item() for each in (fused, plain))
        dtype = plain[name].dtype
        rounding = torch.finfo(dtype).eps * value.abs().max().item() if dtype.is_floating_point else 0.0
        found[name] = (error, torch_error, rounding)
    return found
