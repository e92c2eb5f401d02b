"""Flags that were given and do nothing here: a word on stderr before the run, since a figure would not show it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from ddpbench.distributed.world import World
from ddpbench.machine.stderr import print_note
from ddpbench.record.config import Config
from ddpbench.record.flags import flags
from ddpbench.record.loaders import REPLAY, SYNTHETIC, spec_of
from ddpbench.record.resolved import Settled
from ddpbench.workloads.registry import find

DDP_FLAGS = ("broadcast_buffers", "bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "comm_hook")
"""Fields of Config that only DDP reads."""

READING_FLAGS = ("workers", "prefetch", "shuffle", "augment", "skip_bad", "download")
"""Those that only a loader reads that has something to read."""


def note_idle_flags(asked: Sequence[Config], settled: Sequence[Settled], world: World) -> None:
    """Names the flags that some arm was given, as ``asked``, and that no arm heeds, as ``settled``. One rank speaks."""
    if not world.seat.speaks:
        return
    note = partial(_note, asked, settled)
    tied = "leave --engine none out" if world.distributed else "start ranks with --gpus N or torchrun"
    note(DDP_FLAGS, lambda arm: not world.distributed or arm.engine == "none", "without DDP", tied)
    note(["momentum"], lambda arm: arm.optimizer != "sgd", "without SGD", "add --optimizer sgd")
    note(READING_FLAGS, lambda arm: arm.loader == SYNTHETIC, "with synthetic data", "add --loader NAME or --data-dir DIR")
    note(["workers", "prefetch"], _resident, "where all data lie on the device", "leave it out")
    note(["prefetch"], lambda arm: not arm.workers and not spec_of(arm.loader).resident, "without workers", "-j 1 or more")
    note(["skip_bad"], _reads_no_images, "on data that are no image files", "leave it out")
    note(["hw_decoder_load"], lambda arm: not spec_of(arm.loader).gpu, "without a decoder on the GPU", "add --loader dali-gpu")
    note(["pin_memory"], _copies_as_it_will, "with that loader", "leave it out")


def _resident(config: Settled) -> bool:
    return spec_of(config.loader).resident and config.loader != SYNTHETIC


def _reads_no_images(config: Settled) -> bool:
    return config.loader != SYNTHETIC and find(config.workload).dataset != "imagenet"


def _copies_as_it_will(config: Settled) -> bool:
    return spec_of(config.loader).on_device or config.loader == REPLAY


def _note(
    asked: Sequence[Config], settled: Sequence[Settled], names: Collection[str], idle: Callable[[Settled], bool], where: str, cure: str
) -> None:
    given = [
        field.negative if field.default is True else field.spelling
        for field in flags(Config)
        if field.name in names and any(getattr(config, field.name) != field.default for config in asked)
    ]
    if given and all(map(idle, settled)):
        does = "does" if len(given) == 1 else "do"
        print_note(f"{', '.join(given)} {does} nothing {where}; {cure}")
