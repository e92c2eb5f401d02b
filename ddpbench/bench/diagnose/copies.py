"""How fast batches cross to the devices, from page-locked memory and from any."""

from __future__ import annotations

from ddpbench.bench.diagnose.scene import Experiment, Scene
from ddpbench.data.registry import find
from ddpbench.distributed.h2d_bandwidth import copies
from ddpbench.record.diagnosis import Copies
from ddpbench.record.errors import ArmOver


def measure_copies(scene: Scene) -> Copies | None:
    """All ranks at once, with as many bytes as a batch of the loader has."""
    if not scene.batch_bytes:
        raise ArmOver("there was no time to take a batch, whose size it would be")
    return copies(scene.ground.world, scene.batch_bytes, scene.config.batch_size)


def _no_copies(scene: Scene) -> str:
    if not scene.ground.world.device.cuda:
        return "ranks on processors copy no batches"
    return f"the batches of {scene.config.loader} are made on the device" if find(scene.config.loader).on_device else ""


COPIES = Experiment("copies", "measuring copies to the device", measure_copies, 2.0, why_not=_no_copies)
