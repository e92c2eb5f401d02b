"""How fast the node reads the files of the data set."""

from __future__ import annotations

from ddpbench.bench.diagnose.scene import DiagnosisContext, DiagnosisExperiment
from ddpbench.bench.together import run_on_rank_zero
from ddpbench.data.datasets import image_folder
from ddpbench.data.registry import find_loader
from ddpbench.machine.storage import benchmark_storage
from ddpbench.record.diagnosis import Storage
from ddpbench.workloads import registry as workloads

STORAGE_BUDGET_S = 3.0


def measure_dataset_storage(context: DiagnosisContext) -> Storage | None:
    """Rank 0's node's, while every rank waits. The files that it reads lie in the page cache no longer, or again."""
    directory = context.config.data_dir
    assert directory, "told by why_not"
    return run_on_rank_zero(
        context.job_context.world,
        lambda: benchmark_storage(directory, image_folder.read_index(directory).files, _num_readers(context), STORAGE_BUDGET_S),
    )


def _num_readers(context: DiagnosisContext) -> int:
    """As many as the loaders of a node have workers."""
    return max(1, context.config.workers * context.job_context.world.rank_env.local_world_size)


def _why_no_files(context: DiagnosisContext) -> str:
    config = context.config
    if workloads.find_workload(config.workload).dataset != "imagenet":
        return "the data set lies in memory"
    return "" if find_loader(config.loader).reads_dataset and config.data_dir else f"the loader {config.loader} reads no folder of images"


STORAGE = DiagnosisExperiment(
    "storage", "measuring the storage", measure_dataset_storage, STORAGE_BUDGET_S + 1.0, skip_reason=_why_no_files
)
