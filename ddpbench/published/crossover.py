"""The ``crossover`` command: trains every model size on two devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ddpbench.bench.job_spec import ResumableJobSpec
from ddpbench.bench.runner import run_job
from ddpbench.bench.sweep import ArmSpec, build_request, resumable_journal
from ddpbench.machine.host import usable_cores
from ddpbench.machine.rank_env import from_env
from ddpbench.published.crossover_page import render_crossover
from ddpbench.record.config import Config
from ddpbench.record.errors import UsageError
from ddpbench.record.record import slug
from ddpbench.record.request import CrossoverOptions, OutputOptions
from ddpbench.record.text import pluralize


def run_crossover(options: CrossoverOptions, overrides: Mapping[str, Any], output: OutputOptions, command: Sequence[str]) -> NoReturn:
    """Times both sides at every depth that is asked for, or what the journal lacks of them, and ends the process with the exit code.

    ``overrides`` are fields of Config that hold in every cell. Raises UsageError where there are no two sides.
    """
    chosen = resolve_sides(options.devices, options.threads)
    stem = slug(" ".join(["crossover", options.family, *(side_label(side) for side in chosen)]))
    request = build_request(crossover_arms(options.family, chosen, options.layers), overrides, output, command)
    run_job(request, ResumableJobSpec(resumable_journal(stem, "crossover"), render_crossover))


CROSSOVER_EPOCHS, CROSSOVER_ROUNDS = 100, 3

CrossoverSide = tuple[str, int | None]
"""A device, and where that is the processor the threads that a rank computes with."""


def resolve_sides(devices: Sequence[str] = (), threads: Sequence[int] = ()) -> list[CrossoverSide]:
    """The two sides asked for; else the processor with a rank's share of its cores against the GPU or, without one, a single thread.

    Raises UsageError where they are not two.
    """
    import torch  # which the protocols of the other experiments do without

    cores = max(1, int(usable_cores() / from_env().local_world_size))
    devices = devices or (["cpu", "cuda"] if torch.cuda.is_available() and len(threads) < 2 else ["cpu"])
    threads = threads or ([cores] if "cuda" in devices else [1, max(2, cores)])
    found: list[CrossoverSide] = [(device, number) for device in devices for number in (threads if device == "cpu" else [None])]
    if len(set(found)) != 2:
        raise UsageError(
            f"a crossover has two sides, and these are {len(set(found))}: {'; '.join(dict.fromkeys(map(side_label, found)))}",
            "--device cpu,cuda, or --device cpu --threads 1,8",
        )
    return found


def side_label(side: CrossoverSide) -> str:
    """``GPU``, or ``CPU, 8 threads``."""
    _, threads = side
    return f"CPU, {pluralize(threads, 'thread')}" if threads else "GPU"


def crossover_arms(
    family: str, sides: Sequence[CrossoverSide], layers: range, epochs: int = CROSSOVER_EPOCHS, rounds: int = CROSSOVER_ROUNDS
) -> list[ArmSpec]:
    """Every depth on both sides: a thousand points, a hundred a step, in the same order every epoch, as it was published."""
    return [
        ArmSpec(
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
            side_label((device, threads)),
        )
        for depth in layers
        for device, threads in sides
    ]
