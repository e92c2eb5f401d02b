"""The ``reproduce`` command: run a published experiment under its own protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch

from ddpbench.bench.arm_specs import resumable_journal
from ddpbench.bench.job_spec import ResumableJobSpec
from ddpbench.bench.runner import run_job
from ddpbench.machine.device import Device
from ddpbench.published import views
from ddpbench.record.names import import_object
from ddpbench.record.request import Request
from ddpbench.record.roles import EARLIER_MODEL_ALIVE, Role
from ddpbench.workloads.registry import find_workload


def run_reproduction(name: str, quick: bool, request: Request) -> NoReturn:
    """Run the published experiment ``name`` and exit with the job's exit code.

    Skips what the journal already holds.
    """
    views.register()
    journal = resumable_journal(f"reproduce-{name}{'-quick' * quick}", f"reproduce {name}")
    run_job(request, ReproduceJobSpec(journal))


class ReproduceJobSpec(ResumableJobSpec):
    """Job spec that keeps an earlier model alive in one arm, as the published script did."""

    def leftover_factory(self, role: Role) -> Callable[[Device], object] | None:
        return earlier_model if role == EARLIER_MODEL_ALIVE else None


def earlier_model(device: Device) -> list[torch.Tensor]:
    """The float32 model and gradients that the published script still held.

    Its last float32 loss kept them alive while it measured mixed precision, until that variable got the first mixed-precision loss.
    """
    spec = find_workload("gemm-mlp")
    model = import_object(spec.model)(None, spec.classes).to(device.torch_device)
    return [tensor for parameter in model.parameters() for tensor in (parameter.detach(), torch.zeros_like(parameter))]
