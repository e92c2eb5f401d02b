"""Rules for a loader: each returns one remedy, with the scenario that predicts it and the command that tries it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from shlex import quote

from msgspec.structs import replace

from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.cpu_demand import all_cores_workers, cpu_demand
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.pipeline import rates
from ddpbench.analysis.pipeline.interference import decodes_on_device
from ddpbench.analysis.pipeline.model import PipelineModel, worker_startup
from ddpbench.analysis.worker_memory import WorkersThatFit, memory_limit, workers_that_fit
from ddpbench.record.diagnosis import SHM_DIR, WorkerMemory
from ddpbench.record.environment import Software
from ddpbench.record.loaders import DALI_SPEC, LOADERS, SYNTHETIC, LoaderSpec, loader_spec
from ddpbench.record.packages import dali_package
from ddpbench.record.prediction import MIN_WORTHWHILE_GAIN, Scenario
from ddpbench.record.record import Record
from ddpbench.record.remedy import (
    DataInMemory,
    DecodeOnDevice,
    DecodeOnGpu,
    FewerWorkers,
    MoreCores,
    MoreWorkers,
    PersistentWorkers,
    Remedy,
)
from ddpbench.record.script import WatchedScript

DEFAULT_HW_DECODER_LOAD, MAX_HW_DECODER_LOAD = 0.65, 0.99
"""Fraction of JPEGs that DALI leaves to the GPU's hardware decoder by default, and the largest that can be set."""

MAX_MEMORY_FRACTION = 0.5
"""Fraction of the free shared memory that a dataset may take: workers hand batches over in the rest, and processes need memory."""


@dataclass(frozen=True)
class LoaderContext:
    """A run, its measurements, and the model of its data pipeline."""

    builder: CommandBuilder
    inputs: AnalysisInput
    pipeline: PipelineModel

    @property
    def record(self) -> Record:
        return self.inputs.record

    @property
    def has_measured_costs(self) -> bool:
        """Whether a diagnosis measured the cost per image with less contention for the cores: a run alone shows it under its own load."""
        return self.inputs.controls.diagnosis is not None

    def can_use(self, spec: LoaderSpec) -> bool:
        """Whether ``spec`` loads the data of the run on its devices: JPEGs in class folders, or a dataset that fits on the device."""
        data, device_type = self.record.data, self.record.environment.device_type
        if data is None or (spec.needs_gpu and device_type != "cuda"):
            return False
        return "imagenet" in spec.datasets and data.is_jpeg if data.is_image_folder else spec.device_resident


LoaderRule = Callable[[LoaderContext], Remedy | None]
"""Returns a remedy, or None if it does not apply."""


def more_workers(context: LoaderContext) -> Remedy | None:
    pipeline = context.pipeline
    workers, needed, useful = pipeline.recommended_workers, pipeline.workers_needed, pipeline.max_useful_workers
    if workers is None or needed is None or useful is None or workers <= pipeline.workers or pipeline.is_contended:
        return None
    remedy = MoreWorkers(
        workers=workers,
        workers_needed=needed,
        max_useful_workers=useful,
        is_handoff_bound=pipeline.is_handoff_bound,
        command=_workers_command(context, workers),
        scenario=Scenario(workers=workers) if context.record.honors_num_workers else None,
    )
    diagnosis = context.inputs.controls.diagnosis
    return _fitting(remedy, context, diagnosis.worker_memory) if diagnosis and diagnosis.worker_memory else remedy


def _fitting(remedy: MoreWorkers, context: LoaderContext, memory: WorkerMemory) -> MoreWorkers:
    """``remedy`` with as many workers as fit in memory; without a scenario if these are no more than there are."""
    prefetch, running = context.record.config.prefetch, context.pipeline.workers
    limit = memory_limit(remedy.workers, prefetch, memory)
    if limit is None:
        return remedy
    workers, fitting = workers_that_fit(remedy.workers, prefetch, memory) or (0, prefetch)
    scenario = Scenario(workers=workers, prefetch=fitting) if workers > running else None
    return replace(remedy, workers=max(workers, running), wanted_workers=remedy.workers, limited_by=limit, scenario=scenario)


def as_many_workers_as_cores(context: LoaderContext) -> Remedy | None:
    """As many workers as there are cores, for a script whose loader the model does not explain: what anyone would try first.

    As many as fit in memory. None if its threads nearly fill the cores already, or if the cores are busy.
    """
    pipeline, record = context.pipeline, context.record
    workers = all_cores_workers(pipeline.usable_cores, pipeline.ranks_per_node, pipeline.workers)
    if record.script is None or not context.has_measured_costs or pipeline.is_contended or workers is None or workers <= pipeline.workers:
        return None
    diagnosis, wanted = context.inputs.controls.diagnosis, WorkersThatFit(workers, record.config.prefetch)
    fitting = workers_that_fit(*wanted, diagnosis.worker_memory) if diagnosis and diagnosis.worker_memory else wanted
    if fitting is None or fitting.workers <= pipeline.workers:
        return None
    prefetch = fitting.prefetch if fitting != wanted else None
    return Remedy(code="all-cores-workers", scenario=Scenario(workers=fitting.workers, prefetch=prefetch))


def fewer_workers(context: LoaderContext) -> Remedy | None:
    """As many workers as keep the cores busy, or as there are cores for if costs are unknown."""
    pipeline = context.pipeline
    workers = pipeline.max_useful_workers or max(1, cpu_demand(context.record).max_workers)
    if not pipeline.is_contended or workers >= pipeline.workers:
        return None
    return FewerWorkers(
        workers=workers,
        workers_per_node=pipeline.ranks_per_node * pipeline.workers,
        usable_cores=pipeline.usable_cores,
        command=_workers_command(context, workers),
        scenario=Scenario(workers=workers) if context.record.honors_num_workers and context.has_measured_costs else None,
    )


def _workers_command(context: LoaderContext, workers: int) -> str:
    """Empty if a user-defined loader ignores --workers."""
    record = context.record
    return context.builder.command(workers=(record.config.workers, workers)) if record.honors_num_workers else ""


def no_workers(context: LoaderContext) -> Remedy | None:
    """For ranks that compute on the cores that load: a worker may only take turns with its trainer."""
    pipeline, config = context.pipeline, context.record.config
    if (
        context.record.environment.device_type != "cpu"
        or not pipeline.workers
        or not pipeline.is_contended
        or loader_spec(config.loader).uses_threads
    ):
        return None
    if not context.has_measured_costs or not context.record.honors_num_workers:
        return None
    return Remedy(code="no-workers", command=context.builder.command(workers=(config.workers, 0)), scenario=Scenario(workers=0))


def more_cores(context: LoaderContext) -> Remedy | None:
    pipeline = context.pipeline
    needed, whole_cores = pipeline.cores_needed, pipeline.whole_cores_needed
    if needed is None or whole_cores is None or pipeline.ranks_per_node * needed <= pipeline.usable_cores:
        return None
    workers = max(pipeline.workers, pipeline.workers_needed or 0)
    return MoreCores(
        cores=whole_cores,
        workers=workers,
        is_handoff_bound=pipeline.is_handoff_bound,
        scenario=Scenario(cores_per_gpu=whole_cores, workers=workers),
    )


@cache  # equal names give the same rule, so that a rule of two tables applies once
def other_loader(name: str) -> LoaderRule:
    """The rule that recommends the loader ``name`` in place of the present one. Raises KeyError unless it is in ``LOADERS``."""
    spec = LOADERS[name]

    def rule(context: LoaderContext) -> Remedy | None:
        present, software = context.record.config.loader, context.record.environment.software
        if present not in spec.replaces or not context.can_use(spec):
            return None
        return Remedy(
            code="other-loader",
            command=_install_command(spec, software) + context.builder.command(loader=(present, name)),
            scenario=Scenario(loader=name),
        )

    return rule


def _install_command(spec: LoaderSpec, software: Software) -> str:
    """``pip install PACKAGE && ``, for the CUDA version of the run; empty if the run had the package, or needs none."""
    if not spec.packages or (software.dali and spec.packages == DALI_SPEC.packages):
        return ""
    return f"pip install {dali_package(software.cuda)} && "


def more_hw_decoding(context: LoaderContext) -> Remedy | None:
    """Decode more images with the GPU's hardware decoder, which training does not use."""
    load = context.record.config.hw_decoder_load
    load = DEFAULT_HW_DECODER_LOAD if load is None else load
    if not decodes_on_device(context.record) or load >= MAX_HW_DECODER_LOAD:
        return None
    return Remedy(
        code="more-hw-decoding",
        command=context.builder.command(hw_decoder_load=(load, MAX_HW_DECODER_LOAD)),
        scenario=Scenario(hw_decoder_load=MAX_HW_DECODER_LOAD),
    )


def data_in_memory(context: LoaderContext) -> Remedy | None:
    diagnosis, scenario = context.inputs.controls.diagnosis, Scenario(data_in_memory=True)
    storage, directory = diagnosis.storage if diagnosis else None, context.record.config.data_dir
    if storage is None:
        return DataInMemory(scenario=scenario)
    dataset_bytes = storage.num_files * storage.bytes_per_file
    free_bytes = min((each.shm_free_bytes or 0 for each in diagnosis.node_states), default=0) if diagnosis else 0
    if directory is None or dataset_bytes > MAX_MEMORY_FRACTION * free_bytes:
        return DataInMemory(dataset_bytes=dataset_bytes, shm_free_bytes=free_bytes, scenario=scenario)
    copy_dir = f"{SHM_DIR}/ddpbench-data"
    copy_and_run = f"cp -r {quote(directory)} {copy_dir} && {context.builder.command(data_dir=(copy_dir,))}"
    on_one_node = context.record.environment.nodes == 1
    return DataInMemory(
        dataset_bytes=dataset_bytes, shm_free_bytes=free_bytes, fits=True, command=copy_and_run if on_one_node else "", scenario=scenario
    )


def more_prefetch(context: LoaderContext) -> Remedy | None:
    config = context.record.config
    diagnosis = context.inputs.controls.diagnosis
    memory = diagnosis.worker_memory if diagnosis else None
    if not context.record.workers or not context.record.honors_num_workers:
        return None
    if memory and memory_limit(context.record.workers, 2 * config.prefetch, memory):
        return None
    return Remedy(
        code="more-prefetch",
        command=context.builder.command(prefetch=(config.prefetch, 2 * config.prefetch)),
        scenario=Scenario(prefetch=2 * config.prefetch),
    )


def out_of_order(context: LoaderContext) -> Remedy | None:
    """For the DataLoader of a script: return batches as they become ready, so that a late one holds up no other."""
    script = context.record.script
    if script is None or not script.in_order or context.record.workers < 2:
        return None
    return Remedy(code="out-of-order", scenario=Scenario(in_order=False))


def persistent_workers(context: LoaderContext) -> Remedy | None:
    """For a user-defined DataLoader; built-in loaders keep their workers."""
    record, diagnosis, pipeline = context.record, context.inputs.controls.diagnosis, context.pipeline
    if record.data is None or not record.data.respawns_workers or diagnosis is None:
        return None
    if record.script is not None:
        return _persistent_workers_of_script(record.script, context)
    startup = worker_startup(record, pipeline, diagnosis)
    # its rounds include the starts, and are no faster than the device without them
    max_gain = min(startup.max_gain, pipeline.device_rate / pipeline.achieved_rate) if startup else 1.0
    if startup is None or max_gain < MIN_WORTHWHILE_GAIN:
        return None
    return PersistentWorkers(max_gain=max_gain, epoch_s=startup.epoch_s, first_batch_s=startup.first_batch_s)


def _persistent_workers_of_script(script: WatchedScript, context: LoaderContext) -> Remedy | None:
    """By how long the starts of its epochs take, which its rounds include."""
    step_ms, start_ms, batches = context.inputs.step_ms, context.inputs.summary.epoch_start_ms, script.epoch_batches
    data, max_gain = context.record.data, step_ms / max(step_ms - start_ms, 1e-3)
    if data is None or not batches or max_gain < MIN_WORTHWHILE_GAIN:
        return None
    return PersistentWorkers(
        max_gain=max_gain,
        epoch_s=batches * step_ms / 1000,
        first_batch_s=batches * start_ms / 1000,
        is_rebuilt=data.is_rebuilt,
        scenario=None if data.is_rebuilt else Scenario(persistent_workers=True),
    )


def resident_data(context: LoaderContext) -> Remedy | None:
    """For a script whose data could stay on the device, as a benchmark has shown."""
    diagnosis = context.inputs.controls.diagnosis
    if diagnosis is None or not diagnosis.resident_loader_benchmarks:
        return None
    return Remedy(code="resident-data", scenario=Scenario(resident=True))


def decode_on_gpu(context: LoaderContext) -> Remedy | None:
    """For a script of images that its GPU could decode, as a benchmark has shown."""
    diagnosis = context.inputs.controls.diagnosis
    if diagnosis is None or not diagnosis.gpu_decoding_benchmarks or diagnosis.pixel_difference is None:
        return None
    pixels = diagnosis.pixel_difference
    return DecodeOnGpu(scenario=Scenario(decode_on_gpu=True), mean_difference=pixels.mean, max_difference=pixels.max)


def ready_indices(context: LoaderContext) -> Remedy | None:
    """For a script whose sampler takes as long as a good part of the wait: it could draw the indices of an epoch at once."""
    if context.record.script is None or not context.has_measured_costs:
        return None
    return Remedy(code="ready-indices", scenario=Scenario(ready_indices=True))


def dataloader_with_workers(context: LoaderContext) -> Remedy | None:
    """For a user-defined loader whose batches the trainer process itself makes."""
    record = context.record
    if not loader_spec(record.config.loader).user_defined or record.workers:
        return None
    return Remedy(code="dataloader-with-workers")


def pinned_memory(context: LoaderContext) -> Remedy | None:
    """A DataLoader without workers has no thread that pins batches: the trainer process would wait for each."""
    if context.record.config.pin_memory or context.record.environment.device_type != "cuda":
        return None
    if context.record.script is not None and not context.record.workers:
        return Remedy(code="pinned-memory-and-worker")
    return Remedy(
        code="pinned-memory",
        command=context.builder.command(pin_memory=(False, True)),
        scenario=Scenario(pin_memory=True),
    )


def decode_on_device(context: LoaderContext) -> Remedy | None:
    """For a script that decodes JPEG files: the GPU could do that, and the augmentation. Its loader would still read the files."""
    diagnosis, pipeline, cost = context.inputs.controls.diagnosis, context.pipeline, context.pipeline.cost
    if diagnosis is None or diagnosis.device_decoding is None or cost is None or "decode" not in cost.wall_s_by_stage:
        return None
    if diagnosis.gpu_decoding_benchmarks:  # ddpbench does that itself
        return None
    left_s = cost.wall_s - sum(cost.wall_s_by_stage.get(stage, 0.0) for stage in ("decode", "augment"))
    decoding_rate = diagnosis.device_decoding.images_per_s

    def with_loading(rate: float) -> float:
        loaded = min(rate, rates.worker_rate(pipeline.workers, left_s)) if pipeline.workers else 1 / (1 / rate + left_s)
        return min(loaded, pipeline.storage_rate or loaded)

    low, high = map(with_loading, rates.decoding_step_rates(pipeline.device_rate, decoding_rate))
    return DecodeOnDevice(low=low, high=high, decoding_rate=decoding_rate, gain=low / pipeline.achieved_rate)


def without_loader(context: LoaderContext) -> Remedy | None:
    """Measures what the loader costs in total, by comparison with synthetic data."""
    loader = context.record.config.loader
    if loader == SYNTHETIC:
        return None
    return Remedy(code="without-loader", command=context.builder.command(loader=(loader, SYNTHETIC)))
