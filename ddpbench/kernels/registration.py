"""Registers functions of tensors as operators of torch, with fake kernels for tensors without values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

LIBRARY = torch.library.Library("ddpbench", "DEF")


def operator(mutates_args: tuple[str, ...] = ()) -> Callable[[Callable[..., Any]], Any]:
    """A decorator that makes a function the operator ``ddpbench::<its name>``, on CPUs and GPUs, without autograd.

    ``torch.library.custom_op`` does that, too, and counts the versions of mutated arguments, as torch's own BatchNorm does not. But a call
    of its operators costs the host more than twice as much, and a training step has hundreds of them.
    """

    def register(function: Callable[..., Any]) -> Any:
        name = function.__name__
        LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=mutates_args))
        for key in ("CPU", "CUDA"):
            LIBRARY.impl(name, function, key)
        return getattr(torch.ops.ddpbench, name).default

    return register


def fake_of(registered: Any) -> Callable[[FunctionT], FunctionT]:
    """A decorator that makes a function the fake kernel of an operator."""

    def register(function: FunctionT) -> FunctionT:
        torch.library.register_fake(registered, function, lib=LIBRARY)
        return function

    return register
