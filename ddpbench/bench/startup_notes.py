"""Notes before a run: flags without effect, a single rank where more are possible, unequal nodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from ddpbench.analysis.checks.node import unequal_nodes
from ddpbench.distributed.world import World
from ddpbench.machine.streams import print_note
from ddpbench.record.config import Config, ResolvedConfig
from ddpbench.record.flags import flag_fields
from ddpbench.record.loaders import REPLAY, SYNTHETIC, loader_spec
from ddpbench.record.record import Record
from ddpbench.workloads.registry import find_workload

DDP_FLAGS = ("broadcast_buffers", "bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "comm_hook")
"""Config fields that only DDP reads."""

LOADER_FLAGS = ("workers", "prefetch", "shuffle", "augment", "skip_bad", "download")
"""Config fields that only loaders that read a dataset use."""


def note_unused_flags(requested: Sequence[Config], resolved: Sequence[ResolvedConfig], world: World) -> None:
    """Note the flags that are set in some ``requested`` arm and have no effect in any ``resolved`` arm. Rank 0 prints."""
    if not world.rank_env.is_rank0:
        return
    note = partial(_note_if_unused, requested, resolved)
    tied = "leave --engine none out" if world.is_distributed else "start ranks with --gpus N or torchrun"
    note(DDP_FLAGS, lambda arm: not world.is_distributed or arm.engine == "none", "without DDP", tied)
    note(["momentum"], lambda arm: arm.optimizer != "sgd", "without SGD", "add --optimizer sgd")
    note(LOADER_FLAGS, lambda arm: arm.loader == SYNTHETIC, "with synthetic data", "add --loader NAME or --data-dir DIR")
    note(["workers", "prefetch"], _is_device_resident, "where all data lie on the device", "leave it out")
    note(["prefetch"], lambda arm: not arm.workers and not loader_spec(arm.loader).device_resident, "without workers", "-j 1 or more")
    note(["skip_bad"], _reads_no_images, "on data that are no image files", "leave it out")
    note(["hw_decoder_load"], lambda arm: not loader_spec(arm.loader).needs_gpu, "without a decoder on the GPU", "add --loader dali-gpu")
    note(["pin_memory"], _controls_its_copies, "with that loader", "leave it out")


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
) -> None:
    given = [
        field.negated_option if field.default is True else field.option
        for field in flag_fields(Config)
        if field.name in names and any(getattr(config, field.name) != field.default for config in requested)
    ]
    if given and all(map(is_unused, resolved)):
        does = "does" if len(given) == 1 else "do"
        print_note(f"{', '.join(given)} {does} nothing {where}; {hint}")


def startup_warnings(world: World, record: Record, variables: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Warnings about a single rank despite several GPUs or nodes, and about unequal nodes; one sentence each."""
    if world.size == 1:
        yield from _single_rank_warnings(world, variables)
    if unequal := unequal_nodes(record):
        yield f"{unequal.sentence}: {unequal.hint}"


def _single_rank_warnings(world: World, variables: Mapping[str, str]) -> Iterator[str]:
    nodes, gpus = variables.get("SLURM_JOB_NUM_NODES", "1"), world.device.num_visible_gpus
    if nodes.isdecimal() and int(nodes) > 1:
        yield f"one rank alone, in a job of {nodes} nodes: sbatch launch/slurm_multi_node.sbatch WORKLOAD trains on all"
    elif gpus > 1 and not world.rank_env.launched:
        yield f"one of {gpus} GPUs trains: --gpus {gpus} for all"
