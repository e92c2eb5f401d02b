"""Rules for a loader: each returns one remedy, with the scenario that predicts it and the command that tries it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from shlex import quote

from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.pipeline.interference import decodes_on_device
from ddpbench.analysis.pipeline.model import PipelineModel, worker_startup
from ddpbench.analysis.pipeline.rates import max_workers
from ddpbench.analysis.text import device_noun
from ddpbench.record.diagnosis import SHM_DIR
from ddpbench.record.loaders import DALI_SPEC, SYNTHETIC, loader_spec
from ddpbench.record.prediction import Scenario
from ddpbench.record.record import Record
from ddpbench.record.text import format_3sig, pluralize

MIN_WORTHWHILE_GAIN = 1.05
"""A predicted gain below this is too small to matter."""

DEFAULT_HW_DECODER_LOAD, MAX_HW_DECODER_LOAD = 0.65, 0.99
"""Fraction of JPEGs that DALI leaves to the GPU's hardware decoder by default, and the largest that can be set."""

MAX_MEMORY_FRACTION = 0.5
"""Fraction of the free shared memory that a dataset may take: workers hand batches over in the rest, and processes need memory."""


@dataclass(frozen=True)
class Remedy:
    """Something to try against a bottleneck.

    ``command`` measures it beside the original run; empty if it cannot be tried here. ``gain`` is predicted for ``scenario``, as a multiple
    of the images/s; None if something has to be measured first.
    """

    name: str
    reason: str
    command: str = ""
    scenario: Scenario | None = None
    gain: float | None = None


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
    def device_noun(self) -> str:
        return device_noun(self.record.environment)

    @property
    def has_measured_costs(self) -> bool:
        """Whether a diagnosis measured the cost per image with less contention for the cores: a run alone shows it under its own load."""
        return self.inputs.controls.diagnosis is not None

    @property
    def reads_jpegs(self) -> bool:
        return self.record.data is not None and self.record.data.is_jpeg


Rule = Callable[[LoaderContext], Remedy | None]
"""Returns a remedy, or None if it does not apply."""


def more_workers(context: LoaderContext) -> Remedy | None:
    given = context.pipeline
    if given.workers_needed is None or given.max_useful_workers is None or given.worker_image_s is None or given.is_contended:
        return None
    workers = min(given.workers_needed, given.max_useful_workers)
    if workers <= given.workers:
        return None
    with_what = " with the trainer process" if given.is_handoff_bound else ""
    why = f"{given.workers_needed} would keep up{with_what}, and the cores have work for {given.max_useful_workers}"
    return _change_workers(context, workers, why, Scenario(workers=workers))


def fewer_workers(context: LoaderContext) -> Remedy | None:
    """As many workers as keep the cores busy, or as there are cores for if costs are unknown."""
    given = context.pipeline
    workers = given.max_useful_workers or max(1, max_workers(given.usable_cores, given.trainer_cores, given.ranks_per_node))
    if not given.is_contended or workers >= given.workers:
        return None
    why = (
        f"{pluralize(given.ranks_per_node * given.workers, 'worker')} take turns on "
        f"{pluralize(given.usable_cores, 'core')}, and every turn costs"
    )
    return _change_workers(context, workers, why, Scenario(workers=workers) if context.has_measured_costs else None)


def _change_workers(context: LoaderContext, workers: int, reason: str, scenario: Scenario | None) -> Remedy:
    """A remedy with a command, unless a user-defined loader ignores --workers."""
    config = context.record.config
    if not context.record.honors_num_workers:
        return Remedy(pluralize(workers, "worker"), f"{reason}; {config.loader} starts {context.pipeline.workers} whatever --workers says")
    return Remedy(pluralize(workers, "worker"), reason, context.builder.command(workers=(config.workers, workers)), scenario)


def no_workers(context: LoaderContext) -> Remedy | None:
    """For ranks that compute on the cores that load: a worker may only take turns with its trainer."""
    given, config = context.pipeline, context.record.config
    if (
        context.record.environment.device_type != "cpu"
        or not given.workers
        or not given.is_contended
        or loader_spec(config.loader).uses_threads
    ):
        return None
    if not context.has_measured_costs or not context.record.honors_num_workers:
        return None
    return Remedy(
        "--workers 0",
        "a rank that makes its batches itself takes turns with nobody",
        context.builder.command(workers=(config.workers, 0)),
        Scenario(workers=0),
    )


def more_cores(context: LoaderContext) -> Remedy | None:
    given = context.pipeline
    wanted, whole = given.cores_needed, given.whole_cores_needed
    if wanted is None or whole is None or given.ranks_per_node * wanted <= given.usable_cores:
        return None
    workers = max(given.workers, given.workers_needed or 0)
    with_workers = f" and {pluralize(workers, 'worker')}" if workers > given.workers else ""
    as_fast = "one trainer process hands over" if given.is_handoff_bound else f"the {context.device_noun} trains"
    return Remedy(
        f"{pluralize(whole, 'core')}{with_workers} a {context.device_noun}",
        f"loads as fast as {as_fast}",
        scenario=Scenario(cores_per_gpu=whole, workers=workers),
    )


def tensor_loader(context: LoaderContext) -> Remedy | None:
    """For datasets that fit in memory: their samples need no worker process."""
    record = context.record
    if record.config.loader not in ("torch", "torch-uint8") or record.data is None or record.data.is_image_folder:
        return None
    return Remedy(
        "--loader tensor",
        "the whole set lies on the device, and is cropped and flipped a batch at a time",
        context.builder.command(loader=(record.config.loader, "tensor")),
        Scenario(loader="tensor"),
    )


def torch_uint8_loader(context: LoaderContext) -> Remedy | None:
    if context.record.config.loader != "torch" or not context.reads_jpegs:
        return None
    return Remedy(
        "--loader torch-uint8",
        "decodes with libjpeg-turbo and keeps bytes: fewer cores an image, and a quarter of the bytes to copy",
        context.builder.command(loader=("torch", "torch-uint8")),
        Scenario(loader="torch-uint8"),
    )


def dali_cpu_loader(context: LoaderContext) -> Remedy | None:
    loader = context.record.config.loader
    if loader not in ("torch", "torch-uint8", "dali-gpu") or not context.reads_jpegs:
        return None
    return Remedy(
        "--loader dali-cpu",
        "threads in place of worker processes, and nothing to collate",
        _dali_install_command(context.record) + context.builder.command(loader=(loader, "dali-cpu")),
        Scenario(loader="dali-cpu"),
    )


def dali_gpu_loader(context: LoaderContext) -> Remedy | None:
    record = context.record
    loader = record.config.loader
    if loader not in ("torch", "torch-uint8", "dali-cpu") or not context.reads_jpegs or record.environment.device_type != "cuda":
        return None
    return Remedy(
        "--loader dali-gpu",
        "decodes on the GPU: a few cores are enough, and the GPU shares its time",
        _dali_install_command(record) + context.builder.command(loader=(loader, "dali-gpu")),
        Scenario(loader="dali-gpu"),
    )


def more_hw_decoding(context: LoaderContext) -> Remedy | None:
    """Decode more images with the GPU's hardware decoder, which training does not use."""
    share = context.record.config.hw_decoder_load
    share = DEFAULT_HW_DECODER_LOAD if share is None else share
    if not decodes_on_device(context.record) or share >= MAX_HW_DECODER_LOAD:
        return None
    return Remedy(
        f"--hw-decoder-load {MAX_HW_DECODER_LOAD}",
        "the GPU's JPEG unit decodes nearly all images, and leaves its multiprocessors to training",
        context.builder.command(hw_decoder_load=(share, MAX_HW_DECODER_LOAD)),
        Scenario(hw_decoder_load=MAX_HW_DECODER_LOAD),
    )


def data_in_memory(context: LoaderContext) -> Remedy | None:
    diagnosis, change = context.inputs.controls.diagnosis, Scenario(data_in_memory=True)
    files, directory = diagnosis.storage if diagnosis else None, context.record.config.data_dir
    if files is None:
        return Remedy("data in memory", "no file is waited for", scenario=change)
    gigabytes = files.num_files * files.bytes_per_file / 1e9
    room = min((each.shm_free_bytes or 0 for each in diagnosis.node_states), default=0) / 1e9 if diagnosis else 0.0
    if directory is None or gigabytes > MAX_MEMORY_FRACTION * room:
        return Remedy("data in memory", f"its {format_3sig(gigabytes)} GB; of {SHM_DIR} {format_3sig(room)} are free", scenario=change)
    if context.record.environment.nodes > 1:
        return Remedy("data in memory", f"its {format_3sig(gigabytes)} GB fit in {SHM_DIR}, where every node needs a copy", scenario=change)
    copied = f"{SHM_DIR}/ddpbench-data"
    return Remedy(
        "data in memory",
        f"its {format_3sig(gigabytes)} GB fit in {SHM_DIR}",
        f"cp -r {quote(directory)} {copied} && {context.builder.command(data_dir=(copied,))}",
        change,
    )


def more_prefetch(context: LoaderContext) -> Remedy | None:
    config = context.record.config
    if not context.record.workers or not context.record.honors_num_workers:
        return None
    return Remedy(
        f"--prefetch {2 * config.prefetch}",
        "batches that are ready in advance bridge the time of a slow one",
        context.builder.command(prefetch=(config.prefetch, 2 * config.prefetch)),
        Scenario(prefetch=2 * config.prefetch),
    )


def persistent_workers(context: LoaderContext) -> Remedy | None:
    """For a user-defined DataLoader; built-in loaders keep their workers."""
    record, diagnosis, given = context.record, context.inputs.controls.diagnosis, context.pipeline
    if record.data is None or not record.data.respawns_workers or diagnosis is None:
        return None
    start = worker_startup(record, given, diagnosis)
    most = min(start.max_gain, given.device_rate / given.achieved_rate) if start else 1.0
    if start is None or most < MIN_WORTHWHILE_GAIN:
        return None
    return Remedy(
        "persistent_workers=True",
        f"at most {format_3sig(most)}x: your DataLoader starts its workers anew for every epoch of {format_3sig(start.epoch_s)} s, and "
        f"{format_3sig(start.first_batch_s)} s pass until there is a batch, which also takes its time where they stay",
    )


def dataloader_with_workers(context: LoaderContext) -> Remedy | None:
    """For a user-defined loader whose batches the trainer process itself makes."""
    record = context.record
    if not loader_spec(record.config.loader).user_defined or record.workers:
        return None
    return Remedy(
        "a DataLoader with workers",
        "the training process makes its batches itself, one after the other, and nobody makes the next one while it trains",
    )


def pinned_memory(context: LoaderContext) -> Remedy | None:
    if context.record.config.pin_memory or context.record.environment.device_type != "cuda":
        return None
    return Remedy(
        "--pin-memory",
        "the GPU fetches batches itself from page-locked memory, while it trains",
        context.builder.command(pin_memory=(False, True)),
        Scenario(pin_memory=True),
    )


def without_loader(context: LoaderContext) -> Remedy | None:
    """Measures what the loader costs in total, by comparison with synthetic data."""
    loader = context.record.config.loader
    if loader == SYNTHETIC:
        return None
    command = context.builder.command(loader=(loader, SYNTHETIC))
    return Remedy("without a loader", "what is left when no batch is loaded or copied", command)


def _dali_install_command(record: Record) -> str:
    software = record.environment.software
    if software.dali:
        return ""
    for_cuda_13, for_cuda_12 = DALI_SPEC.packages
    return f"pip install {for_cuda_12 if (software.cuda or '').startswith('12') else for_cuda_13} && "
