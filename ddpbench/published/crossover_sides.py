"""The arms of a crossover: every model size on both sides. Torch-free unless the sides are left open."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.bench.arm_specs import ArmSpec
from ddpbench.machine.host import usable_cores
from ddpbench.machine.rank_env import from_env
from ddpbench.record.config import Config
from ddpbench.record.errors import UsageError
from ddpbench.record.roles import side_role
from ddpbench.record.text import pluralize

CROSSOVER_EPOCHS, CROSSOVER_ROUNDS = 100, 3

CrossoverSide = tuple[str, int | None]
"""A device and, for the CPU, the number of compute threads per rank."""


def resolve_sides(devices: Sequence[str] = (), threads: Sequence[int] = ()) -> list[CrossoverSide]:
    """The two requested sides, or defaults.

    With a GPU the default is the CPU, with a rank's share of its cores, against the GPU; without one, a single CPU thread against
    that share. Raises UsageError unless there are two sides.
    """
    import torch  # only here: the other experiments do not need it

    cores = max(1, int(usable_cores() / from_env().local_world_size))
    devices = devices or (["cpu", "cuda"] if torch.cuda.is_available() and len(threads) < 2 else ["cpu"])
    threads = threads or ([cores] if "cuda" in devices else [1, max(2, cores)])
    found: list[CrossoverSide] = [(device, number) for device in devices for number in (threads if device == "cpu" else [None])]
    if len(set(found)) != 2:
        raise UsageError(
            f"a crossover needs two sides, not {len(set(found))}: {'; '.join(dict.fromkeys(map(side_label, found)))}",
            "use --device cpu,cuda, or --device cpu --threads 1,8",
        )
    return found


def side_label(side: CrossoverSide) -> str:
    """``GPU``, or ``CPU, 8 threads``."""
    _, threads = side
    return f"CPU, {pluralize(threads, 'thread')}" if threads else "GPU"


def crossover_arms(
    family: str, sides: Sequence[CrossoverSide], layers: range, epochs: int = CROSSOVER_EPOCHS, rounds: int = CROSSOVER_ROUNDS
) -> list[ArmSpec]:
    """Arms of every depth on both sides, as published.

    A thousand points, batch size 100, in the same order every epoch.
    """
    return [
        ArmSpec(
            Config(
                workload=f"{family}-{depth}",
                precision="fp32",
                device=device,  # type: ignore[arg-type]  # a value of its Literal
                threads=threads,
                batch_size=100,
                loader="tensor",
                shuffle=False,
                epochs=epochs,
                rounds=rounds,
                fresh=True,
            ),
            side_role(side_label((device, threads))),
        )
        for depth in layers
        for device, threads in sides
    ]
