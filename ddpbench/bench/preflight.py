"""Checks that a job can run, alike on every rank, before rendezvous."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import TypeVar

import msgspec

from ddpbench.analysis.checks.machine import check_node_balance
from ddpbench.bench.fast import check_norms_to_fuse
from ddpbench.bench.gate import check_gate_applies
from ddpbench.bench.resolve import resolve_config
from ddpbench.data.preflight import check_loader, dataset_fingerprint
from ddpbench.distributed.interconnect import gloo_transports
from ddpbench.distributed.rank_store import RankInfo
from ddpbench.distributed.world import World, rendezvous
from ddpbench.machine.device import Device, open_device, placement_of
from ddpbench.machine.fingerprint import collect_environment, collect_software
from ddpbench.machine.host import machine_id, usable_cores
from ddpbench.machine.rank_env import RankEnv, from_env
from ddpbench.machine.streams import print_note, redirect_stdout
from ddpbench.machine.variables import EnvVar
from ddpbench.record.config import USUAL_VALUES, Config, ResolvedConfig
from ddpbench.record.cuda_graph import check_graph_supported
from ddpbench.record.errors import UsageError
from ddpbench.record.flags import flag_fields
from ddpbench.record.io import check_output_paths
from ddpbench.record.loaders import REPLAY, SYNTHETIC, find_loader, loader_spec
from ddpbench.record.packages import require_modules
from ddpbench.record.record import Record
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.request import Request
from ddpbench.record.roles import RUN, Role
from ddpbench.record.text import mask_text, pluralize
from ddpbench.report.messages.roles import role_name
from ddpbench.report.progress import count_progress
from ddpbench.training.optimizer import check_optimizer_supported
from ddpbench.training.precision import check_precision_supported
from ddpbench.workloads import registry as workloads
from ddpbench.workloads.model_cost import check_batch_of_one, workload_cost
from ddpbench.workloads.registry import find_workload

AnyConfig = TypeVar("AnyConfig", bound=Config)

RENDEZVOUS_TIMEOUT_FACTOR = 2.5
"""Rendezvous timeout, as a multiple of the hang timeout."""

PER_NODE_FIELDS = ("data_dir", "workers", "cores", "threads")
"""Fields whose values may differ between nodes."""

COLLECTIVE_TIMEOUT_FACTOR = 20
"""torch's timeout for collectives, as a multiple of the hang timeout: ours must fire first, since NCCL's watchdog aborts the process."""


def prepare_job(request: Request) -> tuple[list[ResolvedConfig], World, float]:
    """Resolved arms, the world that runs them, and the seconds spent generating their data. Raises UsageError."""
    first = next((arm for arm in request.arms if arm.device != "cpu"), request.arms[0])
    rank_env = from_env()
    check_output_paths(request.output)
    if request.output.json == "-":
        redirect_stdout()
    device = open_device(first.device, rank_env, first.share_gpu)
    cpu = open_device("cpu", rank_env, first.share_gpu)
    arms = [resolve_and_check(config, cpu if config.device == "cpu" else device, rank_env) for config in request.arms]
    arms = with_one_benchmark_limit(arms)
    check_gate_applies(arms)
    begin = perf_counter()
    arms = with_generated_images(arms, rank_env.world_size, request.output.quiet)
    generated_s = perf_counter() - begin
    world = rendezvous_ranks(rank_env, device, first, data_fingerprint(arms), requested_flags(request))
    note_unused_flags(request.arms, arms, world)
    return arms, world, generated_s


def resolve_and_check(requested: Config, device: Device, rank_env: RankEnv) -> ResolvedConfig:
    """``requested``, resolved and checked for all that one rank can check: names, precision, data, input size."""
    spec = workloads.find_workload(requested.workload)
    require_modules(f"workload '{spec.name}'", *spec.modules)
    spec.input_shape(requested.image_size)
    if requested.image_size or ":" in requested.workload:  # other models support their own images
        workload_cost(requested.workload, requested.image_size or spec.image_size)
    config = resolve_config(requested, device.is_cuda, rank_env.local_world_size)
    if config.batch_size == 1:
        check_batch_of_one(config.workload, config.image_size)
    if config.engine == "accelerate":
        require_modules("engine 'accelerate'", "accelerate")
    check_precision_supported(PRECISIONS[config.precision], device, config.engine, config.static_loss_scale)
    check_optimizer_supported(config, device.is_cuda)
    if config.roofline and (config.compile != "off" or (config.cuda_graph and device.is_cuda)):
        raise UsageError(
            "--roofline needs an eager model: compiled and replayed kernels belong to no layer", "use --compile off --no-cuda-graph"
        )
    if config.cuda_graph and device.is_cuda:
        check_graph_supported(config)
    if config.cores and config.cores * rank_env.local_world_size > usable_cores():
        raise UsageError(
            f"--cores {config.cores} for {pluralize(rank_env.local_world_size, 'rank')} exceeds {pluralize(usable_cores(), 'usable core')}",
            "use fewer --cores or fewer ranks",
        )
    if config.epochs and config.loader == SYNTHETIC:
        raise UsageError("--epochs needs a finite dataset; synthetic data is endless", "use --steps N or --data-dir DIR")
    check_loader(config, spec.dataset, spec.classes, rank_env.world_size)
    if config.runs_fused_kernels(device.is_cuda):
        check_norms_to_fuse(config.workload, config.image_size)
    return config


def with_one_benchmark_limit(arms: Sequence[ResolvedConfig]) -> list[ResolvedConfig]:
    """All arms with the ``--cudnn-benchmark-limit`` that any of them has instead of the usual one.

    cuDNN keeps the algorithm that it has chosen for a shape as long as the process runs: arms cannot differ.
    """
    usual = USUAL_VALUES["cudnn_benchmark_limit"]
    limit = next((arm.cudnn_benchmark_limit for arm in arms if arm.cudnn_benchmark_limit != usual), usual)
    return [msgspec.structs.replace(arm, cudnn_benchmark_limit=limit) for arm in arms]


def data_fingerprint(arms: Sequence[ResolvedConfig]) -> str:
    """Fingerprint of the images that arms read by index: if one rank's folder differed, ranks would train on the wrong shards."""
    fingerprints = (dataset_fingerprint(config, workloads.find_workload(config.workload).dataset) for config in arms)
    return "; ".join(dict.fromkeys(filter(None, fingerprints)))


def requested_flags(request: Request) -> dict[str, str]:
    """What must be the same on every rank: each flag set by the user, with its values in all arms, and the first arm's role."""
    flags = {"arm": role_name(request.roles[0])} if request.roles else {}
    for name in Config.__struct_fields__:
        values = [*dict.fromkeys(getattr(arm, name) for arm in request.arms)]
        if name not in PER_NODE_FIELDS and values != [getattr(Config(workload=""), name)]:
            flags[f"--{name.replace('_', '-')}"] = ",".join(map(str, values))
    return flags


def rendezvous_ranks(rank_env: RankEnv, device: Device, config: Config, data: str, requested: dict[str, str]) -> World:
    """Rendezvous with the other ranks; each publishes its placement, software, data and flags."""
    hang_timeout_s = config.hang_timeout
    info = RankInfo(placement_of(device, rank_env), collect_software(device.is_cuda), data, machine_id(), requested)
    return rendezvous(
        rank_env, device, info, config.share_gpu, RENDEZVOUS_TIMEOUT_FACTOR * hang_timeout_s, COLLECTIVE_TIMEOUT_FACTOR * hang_timeout_s
    )


def new_record(requested: Config, config: ResolvedConfig, world: World, role: Role = RUN) -> Record:
    """The record of an arm before it begins: what was requested, what that resolves to, and the environment."""
    environment = collect_environment(
        world.rank_infos[0].software,
        world.placements,
        world.rank_env.launcher,
        world.backend,
        "cuda" if world.device.is_cuda else "cpu",
        world.device.health_unavailable_reason,
        gloo_transports(world.placements) if world.backend == "gloo" else [],
    )
    return Record(
        config=_masked(config),
        environment=environment,
        requested=_masked(requested),
        role=role,
        sample_unit=workloads.find_workload(config.workload).sample_unit,
    )


def _masked(config: AnyConfig) -> AnyConfig:
    """``config`` without the password that the data directory of a user-defined loader may hold, as in a URL."""
    return msgspec.structs.replace(config, data_dir=config.data_dir and mask_text(config.data_dir))


def with_generated_images(arms: Sequence[ResolvedConfig], world_size: int, quiet: bool) -> list[ResolvedConfig]:
    """The arms, those that need an image folder and name none with the generated dataset; all of them share it.

    It holds at least one batch per rank. All ranks may call this at the same time: one per node generates it, with progress on
    stderr unless ``quiet``, and the others wait. Raises UsageError if it cannot be written.
    """
    without_folder = [arm for arm in arms if _needs_generated_images(arm)]
    if not without_folder:
        return list(arms)
    from ddpbench.data.generated.folder import cache_dir, generate
    from ddpbench.data.generated.registry import default_imagenet

    num_images = max(arm.batch_size for arm in without_folder) * world_size
    classes = min(workloads.find_workload(arm.workload).classes for arm in without_folder)
    dataset = default_imagenet(num_images, classes, cuda=any(arm.device == "cuda" for arm in without_folder))
    folder = cache_dir() / dataset.name
    with count_progress(
        None if quiet else sys.stderr, f"generating {dataset.title} in '{folder}'", dataset.train_images + dataset.held_out_images, "images"
    ) as report:
        generate(folder, dataset, report)
    return [msgspec.structs.replace(arm, data_dir=str(folder)) if _needs_generated_images(arm) else arm for arm in arms]


def _needs_generated_images(arm: ResolvedConfig) -> bool:
    spec = find_loader(arm.loader)
    return (
        spec.reads_dataset
        and not spec.user_defined
        and arm.data_dir is None
        and workloads.find_workload(arm.workload).dataset == "imagenet"
    )


DDP_FLAGS = ("broadcast_buffers", "bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "comm_hook")
"""Config fields that only DDP reads."""

LOADER_FLAGS = ("workers", "prefetch", "shuffle", "augment", "skip_bad", "download")
"""Config fields that only loaders that read a dataset use."""


def note_unused_flags(requested: Sequence[Config], resolved: Sequence[ResolvedConfig], world: World) -> None:
    """Note the flags that are set in some ``requested`` arm and have no effect in any ``resolved`` arm. Rank 0 prints.

    Raises UsageError on every rank if arms differ in such a flag: they would be the same.
    """
    note = partial(_note_if_unused, requested, resolved, prints=world.rank_env.is_rank0)
    ddp_hint = "remove --engine none" if world.is_distributed else "start ranks with --gpus N or torchrun"
    note(DDP_FLAGS, lambda arm: not world.is_distributed or arm.engine == "none", "without DDP", ddp_hint)
    note(["momentum"], lambda arm: arm.optimizer != "sgd", "without SGD", "add --optimizer sgd")
    note(LOADER_FLAGS, lambda arm: arm.loader == SYNTHETIC, "with synthetic data", "add --loader NAME or --data-dir DIR")
    note(["workers", "prefetch"], _is_device_resident, "when the whole dataset is on the device", "remove it")
    note(["prefetch"], lambda arm: not arm.workers and not loader_spec(arm.loader).device_resident, "without workers", "use -j 1 or more")
    note(["skip_bad"], _reads_no_images, "on datasets without image files", "remove it")
    note(["hw_decoder_load"], lambda arm: not loader_spec(arm.loader).needs_gpu, "without a GPU decoder", "add --loader dali-gpu")
    gpu_flags = ("fast", "combo_kernels", "fused_kernels", "cuda_graph", "cudnn_benchmark_limit")
    note(gpu_flags, lambda arm: not world.device.is_cuda, "on a CPU", "remove it")
    if world.device.is_cuda:
        note(["combo_kernels"], lambda arm: arm.compile == "off", "without --compile", "remove it")
        torch_kernels = "without channels-last, or with --compile"
        note(["fused_kernels"], lambda arm: not arm.runs_fused_kernels(is_cuda=True), torch_kernels, "remove it")
    note(["pin_memory"], _controls_its_copies, "with this loader", "remove it")


def _is_device_resident(config: ResolvedConfig) -> bool:
    return loader_spec(config.loader).device_resident and config.loader != SYNTHETIC


def _reads_no_images(config: ResolvedConfig) -> bool:
    return config.loader != SYNTHETIC and find_workload(config.workload).dataset != "imagenet"


def _controls_its_copies(config: ResolvedConfig) -> bool:
    return loader_spec(config.loader).on_device or config.loader == REPLAY


def _note_if_unused(
    requested: Sequence[Config],
    resolved: Sequence[ResolvedConfig],
    names: Collection[str],
    is_unused: Callable[[ResolvedConfig], bool],
    where: str,
    hint: str,
    prints: bool,
) -> None:
    if not all(map(is_unused, resolved)):
        return
    values = {field: {getattr(config, field.name) for config in requested} for field in flag_fields(Config) if field.name in names}
    if swept := next((field.option for field, given in values.items() if len(given) > 1), None):
        raise UsageError(f"{swept} has no effect {where}: the arms would be the same", hint)
    flags = [
        field.negated_option if USUAL_VALUES.get(field.name) is True else field.option
        for field, given in values.items()
        if not given <= {None, USUAL_VALUES.get(field.name)}
    ]
    if flags and prints:
        print_note(f"{', '.join(flags)} {'has' if len(flags) == 1 else 'have'} no effect {where}; {hint}")


def startup_warnings(world: World, records: Sequence[Record], variables: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Warnings about unused GPUs, emulated bfloat16, a single rank despite several GPUs or nodes, and unequal nodes; one sentence each."""
    record = records[0]
    allocated = variables.get("CUDA_VISIBLE_DEVICES", "")
    if (
        re.match(r"\d|GPU-|MIG-", allocated)
        and record.environment.device_type == "cpu"
        and (record.requested or record.config).device == "auto"
    ):
        yield f"trains on the CPU, since torch sees no GPU, but CUDA_VISIBLE_DEVICES is {allocated}; 'ddpbench env' shows the driver"
    if any(_emulates_its_precision(each) for each in records):
        yield "this CPU emulates bfloat16; --precision fp32 is much faster"
    if world.size == 1:
        yield from _single_rank_warnings(world, variables)
    if imbalance := check_node_balance(record):
        from ddpbench.report.messages.checks import check_hint, check_text

        yield f"{check_text(imbalance, record)}: {check_hint(imbalance, record)}"


def _emulates_its_precision(record: Record) -> bool:
    is_bfloat16 = PRECISIONS[record.config.precision].layer_dtype == "bfloat16"
    return is_bfloat16 and record.config.device == "cpu" and record.environment.emulates_bfloat16


def _single_rank_warnings(world: World, variables: Mapping[str, str]) -> Iterator[str]:
    nodes, gpus = variables.get(EnvVar.SLURM_JOB_NUM_NODES, "1"), world.device.num_visible_gpus
    if nodes.isdecimal() and int(nodes) > 1:
        yield f"only one rank runs in a job of {nodes} nodes; to use all: sbatch launch/slurm_multi_node.sbatch WORKLOAD"
    elif gpus > 1 and not world.rank_env.launched:
        yield f"only 1 of {gpus} GPUs is used; add --gpus {gpus} to use all"
