"""The arms of a diagnosis: the requested training and its control runs."""

from __future__ import annotations

import msgspec

from ddpbench.bench.arm_specs import ArmSpec
from ddpbench.bench.resolve import default_loader
from ddpbench.record.config import Config
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import DEFAULT_LOADER, SYNTHETIC, find_loader
from ddpbench.record.roles import BASELINE, COMPUTE_ONLY, INDEPENDENT, LOADER_IN_BACKGROUND, REPLAY, SkippedMeasurement
from ddpbench.workloads import registry as workloads

MIN_WARMUP_STEPS = 2


def with_loader(config: Config) -> Config:
    """``config`` with a loader that does work: the default one on generated data, if it names none or only synthetic data.

    Raises UsageError if the workload's dataset has no loader.
    """
    spec = workloads.find_workload(config.workload)
    loader = config.loader or default_loader(config, spec)
    if loader != SYNTHETIC:
        return msgspec.structs.replace(config, loader=loader)
    if spec.dataset not in find_loader(DEFAULT_LOADER).datasets:
        raise UsageError(f"{config.workload} trains on generated numbers, which need no loader", f"use 'ddpbench run {config.workload}'")
    return msgspec.structs.replace(config, loader=DEFAULT_LOADER)


def control_runs(baseline: Config, world_size: int) -> tuple[list[ArmSpec], list[SkippedMeasurement]]:
    """The arms in the order of their first turns, and the control runs that are skipped; ``baseline`` is the requested training.

    Each arm warms up again in every turn: at least two steps unless the user set the warm-up, and on until two windows agree.
    """
    baseline = msgspec.structs.replace(baseline, warmup=baseline.warmup or MIN_WARMUP_STEPS)
    synthetic = msgspec.structs.replace(baseline, loader=SYNTHETIC, data_dir=None, download=False)
    arms = [ArmSpec(baseline, BASELINE), ArmSpec(synthetic, COMPUTE_ONLY)]
    skipped: list[SkippedMeasurement] = []
    loader = find_loader(baseline.loader or "")
    if loader.device_resident or baseline.workers == 0:
        skipped.append(SkippedMeasurement(LOADER_IN_BACKGROUND, "trainer_loads"))
    else:
        arms.append(ArmSpec(baseline, LOADER_IN_BACKGROUND))
    if loader.on_device:
        skipped.append(SkippedMeasurement(REPLAY, "batches_made_on_device", baseline.loader or ""))
    else:
        arms.append(ArmSpec(baseline, REPLAY))
    if world_size > 1:
        arms.append(ArmSpec(msgspec.structs.replace(synthetic, engine="none"), INDEPENDENT))
    return arms, skipped
