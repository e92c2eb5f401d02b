"""SGD in Triton kernels that reach the memory bandwidth of a GPU, also where gradients are views of DDP's buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddpbench.kernels.update import check_kernel, update_kernel

BLOCK, WARPS = 4096, 8
"""Elements of a program, and its warps."""

Row = tuple[int, int, int, int]
"""The addresses of a weight, its gradient and its momentum, and the number of elements."""


@dataclass(frozen=True)
class Table:
    """The tensors of a group of parameters, for kernels."""

    rows: list[Row]
    tensors: Tensor  # (tensors, 4), int64: ``rows``
    blocks: Tensor  # (programs, 2), int64: the number of a row, and of an element
    spare: Tensor | None  # like ``tensors``, in pinned memory of the host

    @classmethod
    def of(cls, rows: list[Row], device: torch.device, known: Table | None) -> Table:
        """The table of ``rows``; ``known`` is the one before. The host does not wait for the device."""
        is_cuda = device.type == "cuda"
        on_host = torch.tensor(rows, pin_memory=is_cuda)
        blocks = known.blocks if known is not None and _sizes(known.rows) == _sizes(rows) else _divide(rows).to(device)
        return cls(rows, on_host.to(device, non_blocking=True), blocks, torch.empty_like(on_host, pin_memory=is_cuda))

    def captured(self, rows: list[Row]) -> Table:
        """The table of gradients at new addresses, for a graph that is being captured, into which the host can copy nothing."""
        if self.spare is None:
            raise RuntimeError("SGD in Triton needs a step before each capture")
        return Table(rows, self.spare.copy_(torch.tensor(rows)), self.blocks, None)


def _sizes(rows: list[Row]) -> list[int]:
    return [size for *_, size in rows]


def _divide(rows: list[Row]) -> Tensor:
    """What each program of a kernel updates: (programs, 2)."""
    return torch.tensor([(number, first) for number, size in enumerate(_sizes(rows)) for first in range(0, size, BLOCK)])


class SGD(torch.optim.SGD):
    """``torch.optim.SGD`` for float32 parameters on one GPU, with the same state.

    It unscales gradients itself for ``torch.amp.GradScaler``, and can be captured in a CUDA graph after a step. Fastest where gradients
    keep their addresses, as DDP's views of its buckets do.

    Raises:
        ValueError: A parameter has another dtype, or is not dense.
    """

    implementation = "triton"

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        nesterov: bool = False,
    ) -> None:
        super().__init__(params, lr, momentum, weight_decay=weight_decay, nesterov=nesterov, fused=True)
        self._tables: dict[int, Table] = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch. Raises ValueError as the constructor does."""
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            if parameter.dtype != torch.float32 or not _is_dense(parameter):
                raise ValueError(f"SGD in Triton needs dense float32 parameters, not {parameter.dtype} with strides {parameter.stride()}")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have gradients. Returns the loss that ``closure`` returns.

        Raises:
            RuntimeError: A gradient has another layout than its parameter, or a graph is captured without a step before it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, table in self._groups():
            update_kernel[(len(table.blocks),)](
                table.tensors,
                table.blocks,
                float(group["lr"]),
                float(group["weight_decay"]),
                float(group["momentum"]),
                getattr(self, "grad_scale", None),
                getattr(self, "found_inf", None),
                HAS_MOMENTUM=group["momentum"] != 0,
                NESTEROV=group["nesterov"],
                BLOCK=BLOCK,
                num_warps=WARPS,
            )
        return loss

    @torch.no_grad()
    def find_infinite_gradients(self) -> Tensor:
        """1 if any gradient is infinite or NaN, else 0, on the device; gradients are only read. Raises what ``step`` raises."""
        found_inf = torch.zeros((), device=self.param_groups[0]["params"][0].device)
        for _, table in self._groups():
            check_kernel[(len(table.blocks),)](table.tensors, table.blocks, found_inf, BLOCK=BLOCK, num_warps=WARPS)
        return found_inf

    def _groups(self) -> Iterable[tuple[dict[str, Any], Table]]:
        """Every group that has gradients, and the table of its tensors."""
        for number, group in enumerate(self.param_groups):
            updated = [parameter for parameter in group["params"] if parameter.grad is not None]
            if updated:
                yield group, self._table(number, [self._tensors(each, group["momentum"] != 0) for each in updated])

    def _tensors(self, parameter: Tensor, has_momentum: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """The parameter, its gradient and its momentum, which begins with zeros."""
        assert parameter.grad is not None
        if not has_momentum:
            return parameter, parameter.grad, None
        state = self.state[parameter]
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        return parameter, parameter.grad, state["momentum_buffer"]

    def _table(self, number: int, tensors: list[tuple[Tensor, Tensor, Tensor | None]]) -> Table:
        """The table of the group ``number``: that of the last step, unless a tensor has moved."""
        rows = [
            (weight.data_ptr(), gradient.data_ptr(), 0 if momentum is None else momentum.data_ptr(), weight.numel())
            for weight, gradient, momentum in tensors
        ]
        known = self._tables.get(number)
        if known is not None and known.rows == rows:
            return known
        for weight, *others in tensors:
            _check_layout(weight, *(each for each in others if each is not None))
        device = tensors[0][0].device
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            if known is None or _sizes(known.rows) != _sizes(rows):
                raise RuntimeError("SGD in Triton needs a step with the same gradients before a capture")
            table = known.captured(rows)
        else:
            table = Table.of(rows, device, known)
        self._tables[number] = table
        return table


def _check_layout(weight: Tensor, *others: Tensor) -> None:
    """Raise RuntimeError if the kernels cannot read ``others`` along with ``weight``."""
    for each in others:
        if each.dtype != torch.float32 or _strides(each) != _strides(weight) or each.device != weight.device:
            raise RuntimeError(
                f"SGD in Triton needs float32 gradients in the layout of their parameters, {weight.stride()}, "
                f"not {each.dtype} with strides {each.stride()}"
            )


def _strides(tensor: Tensor) -> list[tuple[int, int]]:
    """Sizes and strides, of dimensions in which there is more than one element."""
    return [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements fill a stretch of memory, in any order, that begins at a multiple of 16 bytes."""
    return 1 + sum((size - 1) * stride for size, stride in _strides(tensor)) == tensor.numel() and tensor.data_ptr() % 16 == 0
