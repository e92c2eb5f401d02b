"""Which trainings a scaling job is made of: the rungs of its ladder, and the same under other conditions on the whole world."""

from __future__ import annotations

from math import lcm

import msgspec

from ddpbench.bench.cells import Cell
from ddpbench.bench.resolve import default_loader
from ddpbench.machine.rank_env import Seat
from ddpbench.record.config import Config
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.registry import WITHOUT_SYNC
from ddpbench.record.scaling import ALONE, APART, COMMUNICATION, SHARE, UNSYNCED, WITH_DATA, rung
from ddpbench.workloads import registry as workloads


def ladder(world_size: int, a_node: int) -> list[int]:
    """1, 2, 4 ... ranks of the first node, then of 1, 2, 4 ... nodes, and at last all.

    Nodes that have not ``a_node`` ranks each are no steps: then ranks alone double.
    """
    whole = world_size % a_node == 0
    steps = [*_doubling(a_node), *(nodes * a_node for nodes in _doubling(world_size // a_node))] if whole else _doubling(world_size)
    return sorted({*steps, world_size})


def refuse_no_ladder(config: Config, seat: Seat) -> None:
    """Raises UsageError where there is nothing to scale: one rank, or ranks that DDP does not tie together."""
    if config.engine != "ddp":
        raise UsageError(f"scale takes DDP apart, and --engine {config.engine} is another", "leave --engine out")
    if seat.world_size == 1:
        raise UsageError("one rank has nothing to scale to", "--gpus N, or torchrun --nproc_per_node=N -m ddpbench scale WORKLOAD")


def trainings(asked: Config, rungs: list[int], strong_batch: int | None = None) -> tuple[list[Cell], dict[str, int], dict[str, str]]:
    """The trainings in the order in which the first turns are taken, on how many ranks each is, and why others are none.

    With ``strong_batch`` that is the batch of one rank, of which every rank of a rung takes its share; raises UsageError where a rung
    does not divide it.
    """
    ranks = rungs[-1]
    if strong_batch:
        refuse_uneven(strong_batch, rungs)
    resident = msgspec.structs.replace(asked, loader=SYNTHETIC, data_dir=None, download=False)

    def shared(config: Config, among: int) -> Config:
        return msgspec.structs.replace(config, batch_size=strong_batch // among) if strong_batch else config

    full = shared(resident, ranks)
    bare, unsynced = (msgspec.structs.replace(full, engine=engine) for engine in WITHOUT_SYNC)
    cells = [(Cell(shared(resident, count), rung(count)), count) for count in rungs]
    cells += [(Cell(full, SHARE), 1)] if strong_batch else []
    cells += [(Cell(bare, ALONE), 1), (Cell(bare, APART), ranks), (Cell(unsynced, UNSYNCED), ranks), (Cell(full, COMMUNICATION), ranks)]
    left_out = {}
    loader = asked.loader or default_loader(asked, workloads.find(asked.workload))
    if loader == SYNTHETIC:
        left_out[WITH_DATA] = "synthetic data; add --data-dir DIR"
    else:
        cells.append((Cell(msgspec.structs.replace(shared(asked, ranks), loader=loader), WITH_DATA), ranks))
    return [cell for cell, _ in cells], {cell.label: count for cell, count in cells}, left_out


def refuse_uneven(batch: int, rungs: list[int]) -> None:
    """Raises UsageError where ``batch`` cannot be shared evenly on every rung."""
    uneven = next((count for count in rungs if batch % count), None)
    if uneven:
        even = lcm(*rungs)
        raise UsageError(
            f"--strong shares a batch of {batch} among the ranks, and {uneven} do not divide it", f"-b {max(1, batch // even) * even}"
        )


def _doubling(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length())]
