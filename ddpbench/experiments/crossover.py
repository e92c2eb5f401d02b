"""Where one device overtakes another as the model grows: both train every depth in one job, and the crossing is fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from ddpbench.experiments.cells import Cell, kept_as, request_of
from ddpbench.experiments.job import carry_out
from ddpbench.experiments.recipe import ContinuedRecipe
from ddpbench.machine.host import usable_cores
from ddpbench.machine.say import refuse
from ddpbench.machine.seat import take_seat
from ddpbench.record.config import Config
from ddpbench.record.errors import UsageError
from ddpbench.record.record import slug
from ddpbench.record.request import Output, Racing
from ddpbench.report.crossover import render_crossover

EPOCHS, ROUNDS = 100, 3

Side = tuple[str, int | None]
"""A device, and where that is the processor the threads that a rank computes with."""


def crossover(asked: Racing, given: Mapping[str, Any], output: Output, command: Sequence[str]) -> NoReturn:
    """Times both sides at every depth that is asked for, or what the journal lacks of them, and ends the process with the exit code.

    ``given`` are fields of Config that hold in every cell.
    """
    try:
        chosen = sides(asked.devices, asked.threads)
    except UsageError as error:
        refuse(error)
    stem = slug(" ".join(["crossover", asked.family, *(label(side) for side in chosen)]))
    request = request_of(cells(asked.family, chosen, asked.layers), given, output, command)
    carry_out(request, ContinuedRecipe(kept_as(stem, "crossover"), render_crossover))


def sides(devices: Sequence[str] = (), threads: Sequence[int] = ()) -> list[Side]:
    """The two sides asked for; else the processor with a rank's share of its cores against the GPU or, without one, a single thread.

    Raises UsageError where they are not two.
    """
    cores = max(1, int(usable_cores() / take_seat().local_world_size))
    devices = devices or (["cpu", "cuda"] if torch.cuda.is_available() and len(threads) < 2 else ["cpu"])
    threads = threads or ([cores] if "cuda" in devices else [1, max(2, cores)])
    found: list[Side] = [(device, count) for device in devices for count in (threads if device == "cpu" else [None])]
    if len(set(found)) != 2:
        raise UsageError(
            f"a crossover has two sides, and these are {len(set(found))}: {'; '.join(dict.fromkeys(map(label, found)))}",
            "--device cpu,cuda, or --device cpu --threads 1,8",
        )
    return found


def label(side: Side) -> str:
    """``GPU``, or ``CPU, 8 threads``."""
    device, threads = side
    return "GPU" if device == "cuda" else f"CPU, {threads} thread{'s' * (threads != 1)}"


def cells(family: str, sides: Sequence[Side], layers: range, epochs: int = EPOCHS, rounds: int = ROUNDS) -> list[Cell]:
    """Every depth on both sides: a thousand points, a hundred a step, in the same order every epoch, as it was published."""
    return [
        Cell(
            Config(
                workload=f"{family}-{depth}",
                precision="fp32",
                device=device,  # type: ignore[arg-type]  # one of its words
                threads=threads,
                batch_size=100,
                loader="tensor",
                shuffle=False,
                epochs=epochs,
                rounds=rounds,
                fresh=True,
            ),
            label((device, threads)),
        )
        for depth in layers
        for device, threads in sides
    ]
