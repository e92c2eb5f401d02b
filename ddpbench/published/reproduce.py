"""A published experiment under its own protocol, and its table beside this machine's."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch

from ddpbench.bench.cells import kept_as
from ddpbench.bench.job_spec import ContinuedRecipe
from ddpbench.bench.runner import carry_out
from ddpbench.machine.device import Device
from ddpbench.published.reproduction_page import render_reproduction
from ddpbench.published.sweep_points import LEFTOVERS
from ddpbench.record.names import resolve
from ddpbench.record.request import Request
from ddpbench.workloads.registry import find


def reproduce(name: str, quick: bool, request: Request) -> NoReturn:
    """Runs the published experiment ``name``, or what its journal lacks of it, and ends the process with the exit code."""
    kept = kept_as(f"reproduce-{name}{'-quick' * quick}", f"reproduce {name}")
    carry_out(request, Reproducing(kept, render_reproduction))


class Reproducing(ContinuedRecipe):
    """One cell in the situation in which it was published: with the model of an earlier training alive."""

    def beside(self, label: str) -> Callable[[Device], object] | None:
        return earlier_model if label == LEFTOVERS else None


def earlier_model(device: Device) -> list[torch.Tensor]:
    """The float32 model and its gradients that the published script still held when it measured mixed precision.

    Its last loss held on to them, until the first one in mixed precision took the name.
    """
    spec = find("gemm-mlp")
    model = resolve(spec.model)(None, spec.classes).to(device.torch)
    return [tensor for parameter in model.parameters() for tensor in (parameter.detach(), torch.zeros_like(parameter))]
