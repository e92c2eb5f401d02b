"""A published experiment under its own protocol, and its table beside this machine's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ddpbench.analysis.cells import LEFTOVERS
from ddpbench.experiments import crossover
from ddpbench.experiments.cells import Cell, kept_as, request_of
from ddpbench.experiments.job import carry_out
from ddpbench.experiments.launches import start_launches
from ddpbench.experiments.protocols import PROTOCOLS
from ddpbench.experiments.recipe import ContinuedRecipe
from ddpbench.machine.device import Device
from ddpbench.record.names import resolve
from ddpbench.record.request import Output
from ddpbench.report.reproduction import render_reproduction
from ddpbench.workloads.catalogue import find

DISC = "disc-mlp-cpu-vs-gpu"


def reproduce(name: str, quick: bool, given: Mapping[str, Any], output: Output, command: Sequence[str]) -> int:
    """Runs the published experiment ``name``, or what its journal lacks of it; returns the exit code, or ends a rank with it.

    ``given`` are fields of Config that hold in every cell: where, on which data, for how long.
    """
    recipe = Reproducing(kept_as(f"reproduce-{name}{'-quick' * quick}", f"reproduce {name}"), partial(render_reproduction, name))
    if name == DISC:
        given = dict(given)
        device = given.pop("device", "auto")
        cells = disc(quick, [] if device == "auto" else [device])
    else:
        cells = PROTOCOLS[name](quick)
    request = request_of(cells, given, output, command)
    return start_launches(request) if request.starts_ranks else carry_out(request, recipe)


class Reproducing(ContinuedRecipe):
    """One cell in the situation in which it was published: with the model of an earlier training alive."""

    def beside(self, label: str) -> Callable[[Device], object] | None:
        return earlier_model if label == LEFTOVERS else None


def disc(quick: bool, devices: Sequence[str]) -> list[Cell]:
    """The crossover of the processor and the GPU, or of the one device named with itself, or the same made small for a try."""
    depths = range(2, 7) if quick else range(2, 13)
    return crossover.cells("disc-mlp", crossover.sides(devices), depths, *((5, 2) if quick else ()))


def earlier_model(device: Device) -> list[torch.Tensor]:
    """The float32 model and its gradients that the published script still held when it measured mixed precision.

    Its last loss held on to them, until the first one in mixed precision took the name.
    """
    spec = find("gemm-mlp")
    model = resolve(spec.model)(None, spec.classes).to(device.torch)
    return [tensor for parameter in model.parameters() for tensor in (parameter.detach(), torch.zeros_like(parameter))]
