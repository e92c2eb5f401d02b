"""SGD in Triton kernels, faster than torch's search for infinite gradients and fused SGD, also of unaligned views of DDP's buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddpbench.kernels.update import check_kernel, copy_kernel, update_kernel

BLOCK, WARPS = 2048, 4
"""Elements of a program, and its warps. ``sgd_blocks`` in ``results/kernels/trials-vgg16-cifar10-h200.json`` compares others."""

Row = tuple[int, int, int, int]
"""The addresses of a weight, its gradient and its momentum, and the number of elements."""

Tensors = tuple[Tensor, Tensor, Tensor | None]
"""A weight, its gradient and its momentum."""


@dataclass(frozen=True, eq=False)
class Table:
    """The tensors of a group of parameters, for kernels."""

    rows: list[Row]
    tensors: Tensor  # (tensors, 4), int64: ``rows``
    blocks: Tensor  # (programs, 2), int64: the number of a row, and of an element
    spare: tuple[Tensor, Tensor] | None  # two more like ``tensors``: in pinned memory of the host, and on the device

    @classmethod
    def of(cls, rows: list[Row], device: torch.device, known: Table | None) -> Table:
        """The table of ``rows``; ``known`` is the one before."""
        tensors = _to_device(rows, device)
        blocks = known.blocks if known is not None and _sizes(known.rows) == _sizes(rows) else _to_device(_divide(rows), device)
        spare = torch.tensor(rows, pin_memory=device.type == "cuda"), torch.empty_like(tensors)
        _copy(*spare)  # compiles the kernel, which a capture cannot
        return cls(rows, tensors, blocks, spare)

    def captured(self, rows: list[Row]) -> Table:
        """The table of gradients at other addresses, in a graph that is being captured: each replay copies it from the host.

        Raises:
            RuntimeError: Another capture has used the memory for it.
        """
        if self.spare is None or _sizes(self.rows) != _sizes(rows):
            raise RuntimeError(NEEDS_STEP)
        on_host, on_device = self.spare
        _copy(on_host.copy_(torch.tensor(rows)), on_device)
        return Table(rows, on_device, self.blocks, None)


NEEDS_STEP = "SGD in Triton needs a step with the same gradients, outside of CUDA graphs, before each capture"


def _copy(source: Tensor, target: Tensor) -> None:
    copy_kernel[(-(-target.numel() // BLOCK),)](source, target, target.numel(), BLOCK=BLOCK, num_warps=WARPS)


def _to_device(rows: list[Any], device: torch.device) -> Tensor:
    """``rows`` as a tensor. The host does not wait for the copy."""
    return torch.tensor(rows, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def _sizes(rows: list[Row]) -> list[int]:
    return [size for *_, size in rows]


def _divide(rows: list[Row]) -> list[tuple[int, int]]:
    """What each program of a kernel updates."""
    return [(number, first) for number, size in enumerate(_sizes(rows)) for first in range(0, size, BLOCK)]


class SGD(torch.optim.SGD):
    """``torch.optim.SGD`` for float32 parameters on one GPU, with the same state.

    It unscales gradients itself for ``torch.amp.GradScaler``. A CUDA graph can capture it after a step with gradients of the same
    parameters. Fastest where gradients keep their addresses, as DDP's views of its buckets do.

    Raises:
        ValueError: A parameter has another dtype, or is not dense, or a group has ``dampening``, ``maximize``, or a tensor as ``lr``.
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
        self._prepare()
        super().__init__(params, lr, momentum, weight_decay=weight_decay, nesterov=nesterov, fused=True)

    def _prepare(self) -> None:
        self._tables: dict[int, Table] = {}  # number of a group -> of its last step
        self._captured: set[Table | None] = set()  # which graphs read as long as they live

    def __setstate__(self, state: dict[str, Any]) -> None:
        """After unpickling, and after ``load_state_dict``."""
        if not hasattr(self, "_tables"):
            self._prepare()
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        for group in self.param_groups:
            _check_options(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch. Raises ValueError as the constructor does."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        _check_options(group)
        for parameter in group["params"]:
            if parameter.dtype != torch.float32 or not _is_dense(parameter):
                found = f"{parameter.dtype} with strides {parameter.stride()} at {parameter.data_ptr():#x}"
                raise ValueError(f"SGD in Triton needs dense float32 parameters, aligned to 16 bytes, not {found}")

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
        """Every group that has gradients, and the table of its tensors, while their device is the current one."""
        for number, group in enumerate(self.param_groups):
            updated = [parameter for parameter in group["params"] if parameter.grad is not None]
            if updated:
                with torch.cuda.device_of(updated[0]):
                    yield group, self._table(number, [self._tensors(each, group["momentum"] != 0) for each in updated])

    def _tensors(self, parameter: Tensor, has_momentum: bool) -> Tensors:
        """The parameter, its gradient and its momentum, which begins with zeros."""
        assert parameter.grad is not None
        if not has_momentum:
            return parameter, parameter.grad, None
        state = self.state[parameter]
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        return parameter, parameter.grad, state["momentum_buffer"]

    def _table(self, number: int, tensors: list[Tensors]) -> Table:
        """The table of the group ``number``: that of the last step, unless a tensor has moved."""
        rows = [
            (weight.data_ptr(), gradient.data_ptr(), 0 if momentum is None else momentum.data_ptr(), weight.numel())
            for weight, gradient, momentum in tensors
        ]
        device = tensors[0][0].device
        in_graph = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        table = known = self._tables.get(number)
        if known is None or known.rows != rows or (known.spare is None and not in_graph):  # a captured one is empty until a replay
            _check_layout(tensors, device)
            if in_graph and known is None:
                raise RuntimeError(NEEDS_STEP)
            self._tables[number] = table = known.captured(rows) if in_graph and known else Table.of(rows, device, known)
        assert table is not None
        if in_graph:
            self._captured |= {table, known}
        return table


def _check_options(group: dict[str, Any]) -> None:
    """Raise ValueError if the kernels would ignore an option."""
    for name in ("dampening", "maximize"):
        if group[name]:
            raise ValueError(f"SGD in Triton knows no {name}")
    if isinstance(group["lr"], Tensor):
        raise ValueError("SGD in Triton knows no learning rate in a tensor")


def _check_layout(tensors: list[Tensors], device: torch.device) -> None:
    """Raise RuntimeError if the kernels cannot read the tensors of each parameter together."""
    for weight, gradient, momentum in tensors:
        for each in (gradient, *(() if momentum is None else (momentum,))):
            if (each.dtype, each.device, _strides(each)) != (torch.float32, device, _strides(weight)):
                raise RuntimeError(
                    f"SGD in Triton needs float32 gradients and momenta on one device, with the strides of their parameters, "
                    f"{weight.stride()}, not {each.dtype} with {each.stride()}"
                )
        if not _is_dense(weight) or (momentum is not None and not _is_dense(momentum)):
            raise RuntimeError("SGD in Triton needs parameters and momenta that are dense")


def _strides(tensor: Tensor) -> list[tuple[int, int]]:
    """Sizes and strides, of dimensions in which there is more than one element."""
    return [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements fill a stretch of memory, in any order, that begins at a multiple of 16 bytes."""
    return 1 + sum((size - 1) * stride for size, stride in _strides(tensor)) == tensor.numel() and tensor.data_ptr() % 16 == 0
