"""How fast the node reads the files of the data set."""

from __future__ import annotations

from ddpbench.bench.diagnose.scene import Experiment, Scene
from ddpbench.bench.together import on_rank_zero
from ddpbench.data.datasets import image_folder
from ddpbench.data.registry import find
from ddpbench.machine.storage import storage
from ddpbench.record.diagnosis import Storage
from ddpbench.workloads import registry as workloads

BUDGET_S = 3.0


def measure_storage(scene: Scene) -> Storage | None:
    """Rank 0's node's, while every rank waits. The files that it reads lie in the page cache no longer, or again."""
    directory = scene.config.data_dir
    assert directory, "told by why_not"
    return on_rank_zero(scene.ground.world, lambda: storage(directory, image_folder.read(directory).files, _readers(scene), BUDGET_S))


def _readers(scene: Scene) -> int:
    """As many as the loaders of a node have workers."""
    return max(1, scene.config.workers * scene.ground.world.seat.local_world_size)


def _no_files(scene: Scene) -> str:
    config = scene.config
    if workloads.find(config.workload).dataset != "imagenet":
        return "the data set lies in memory"
    return "" if find(config.loader).reads_files and config.data_dir else f"the loader {config.loader} reads no folder of images"


STORAGE = Experiment("storage", "measuring the storage", measure_storage, BUDGET_S + 1.0, why_not=_no_files)
