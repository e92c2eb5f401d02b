"""Which trainings a diagnosis is made of: the one that was asked for, and the same under other conditions."""

from __future__ import annotations

import msgspec

from ddpbench.bench.resolve import default_loader
from ddpbench.bench.sweep import ArmSpec
from ddpbench.data import registry as loaders
from ddpbench.record.config import Config
from ddpbench.record.diagnosis import BASELINE, COMPUTE_ONLY, INDEPENDENT, LOADER_IN_BACKGROUND, REPLAY
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.workloads import registry as workloads

MIN_WARMUP_STEPS = 2


def with_loader(config: Config) -> Config:
    """``config`` with a loader that has something to do: ``torch``, on a made set, where none was named but the resident batch.

    Raises UsageError where the workload's data set is not loaded at all.
    """
    spec = workloads.find_workload(config.workload)
    loader = config.loader or default_loader(config, spec)
    if loader != SYNTHETIC:
        return msgspec.structs.replace(config, loader=loader)
    if spec.dataset not in loaders.find_loader("torch").datasets:
        raise UsageError(f"{config.workload} trains on made numbers, which no loader loads", f"ddpbench run {config.workload}")
    return msgspec.structs.replace(config, loader="torch")


def control_runs(baseline: Config, world_size: int) -> tuple[list[ArmSpec], dict[str, str]]:
    """The trainings in the order in which the first turns are taken, and why others are none; ``baseline`` is the one asked for.

    Each warms up anew in every turn: where nobody says how long, two steps at least, and on until two windows agree.
    """
    baseline = msgspec.structs.replace(baseline, warmup=baseline.warmup or MIN_WARMUP_STEPS)
    resident = msgspec.structs.replace(baseline, loader=SYNTHETIC, data_dir=None, download=False)
    cells, left_out = [ArmSpec(baseline, BASELINE), ArmSpec(resident, COMPUTE_ONLY)], {}
    if baseline.loader == "tensor" or baseline.workers == 0:
        left_out[LOADER_IN_BACKGROUND] = "nothing of the loader works beside the training"
    else:
        cells.append(ArmSpec(baseline, LOADER_IN_BACKGROUND))
    if loaders.find_loader(baseline.loader or "").on_device:
        left_out[REPLAY] = f"the batches of {baseline.loader} are made on the device"
    else:
        cells.append(ArmSpec(baseline, REPLAY))
    if world_size > 1:
        cells.append(ArmSpec(msgspec.structs.replace(resident, engine="none"), INDEPENDENT))
    return cells, left_out
