"""A published experiment under its own protocol, and its table beside this machine's."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch

from ddpbench.bench.job_spec import ResumableJobSpec
from ddpbench.bench.runner import run_job
from ddpbench.bench.sweep import resumable_journal
from ddpbench.machine.device import Device
from ddpbench.published.reproduction_page import render_reproduction
from ddpbench.published.sweep_points import EARLIER_MODEL_ALIVE
from ddpbench.record.names import import_object
from ddpbench.record.request import Request
from ddpbench.workloads.registry import find_workload


def run_reproduction(name: str, quick: bool, request: Request) -> NoReturn:
    """Runs the published experiment ``name``, or what its journal lacks of it, and ends the process with the exit code."""
    kept = resumable_journal(f"reproduce-{name}{'-quick' * quick}", f"reproduce {name}")
    run_job(request, ReproduceJobSpec(kept, render_reproduction))


class ReproduceJobSpec(ResumableJobSpec):
    """One cell in the situation in which it was published: with the model of an earlier training alive."""

    def leftover_factory(self, label: str) -> Callable[[Device], object] | None:
        return earlier_model if label == EARLIER_MODEL_ALIVE else None


def earlier_model(device: Device) -> list[torch.Tensor]:
    """The float32 model and its gradients that the published script still held when it measured mixed precision.

    Its last loss held on to them, until the first one in mixed precision took the name.
    """
    spec = find_workload("gemm-mlp")
    model = import_object(spec.model)(None, spec.classes).to(device.torch_device)
    return [tensor for parameter in model.parameters() for tensor in (parameter.detach(), torch.zeros_like(parameter))]
