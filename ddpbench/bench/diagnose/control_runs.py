"""Which trainings a diagnosis is made of: the one that was asked for, and the same under other conditions."""

from __future__ import annotations

import msgspec

from ddpbench.bench.cells import Cell
from ddpbench.bench.resolve import default_loader
from ddpbench.data import registry as loaders
from ddpbench.record.config import Config
from ddpbench.record.diagnosis import BESIDE, DEVICE, NO_SYNC, REAL, REPLAY
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.workloads import registry as workloads

LEAST_STEPS = 2


def with_a_loader(config: Config) -> Config:
    """``config`` with a loader that has something to do: ``torch``, on a made set, where none was named but the resident batch.

    Raises UsageError where the workload's data set is not loaded at all.
    """
    spec = workloads.find(config.workload)
    loader = config.loader or default_loader(config, spec)
    if loader != SYNTHETIC:
        return msgspec.structs.replace(config, loader=loader)
    if spec.dataset not in loaders.find("torch").datasets:
        raise UsageError(f"{config.workload} trains on made numbers, which no loader loads", f"ddpbench run {config.workload}")
    return msgspec.structs.replace(config, loader="torch")


def trainings(real: Config, ranks: int) -> tuple[list[Cell], dict[str, str]]:
    """The trainings in the order in which the first turns are taken, and why others are none; ``real`` is the one asked for.

    Each warms up anew in every turn: where nobody says how long, two steps at least, and on until two windows agree.
    """
    real = msgspec.structs.replace(real, warmup=real.warmup or LEAST_STEPS)
    resident = msgspec.structs.replace(real, loader=SYNTHETIC, data_dir=None, download=False)
    cells, left_out = [Cell(real, REAL), Cell(resident, DEVICE)], {}
    if real.loader == "tensor" or real.workers == 0:
        left_out[BESIDE] = "nothing of the loader works beside the training"
    else:
        cells.append(Cell(real, BESIDE))
    if loaders.find(real.loader or "").on_device:
        left_out[REPLAY] = f"the batches of {real.loader} are made on the device"
    else:
        cells.append(Cell(real, REPLAY))
    if ranks > 1:
        cells.append(Cell(msgspec.structs.replace(resident, engine="none"), NO_SYNC))
    return cells, left_out
