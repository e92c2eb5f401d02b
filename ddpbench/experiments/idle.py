"""Flags that were given and do nothing here: a word on stderr before the run, since a figure would not show it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ddpbench.machine.say import print_note
from ddpbench.machine.world import World
from ddpbench.record.config import Config
from ddpbench.record.flags import flags
from ddpbench.record.loaders import REPLAY, spec_of

DDP_FLAGS = ("broadcast_buffers", "bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "comm_hook")
"""Fields of Config that only DDP reads."""


def note_idle_flags(asked: Sequence[Config], world: World) -> None:
    """Names the flags that some arm was given and that no arm heeds. One rank speaks."""
    if not world.seat.speaks:
        return
    tied = "leave --engine none out" if world.distributed else "start ranks with --gpus N or torchrun"
    _note(asked, DDP_FLAGS, lambda arm: not world.distributed or arm.engine == "none", "without DDP", tied)
    _note(asked, ["hw_decoder_load"], lambda arm: not spec_of(arm.loader).gpu, "without a decoder on the GPU", "add --loader dali-gpu")
    _note(asked, ["pin_memory"], _copies_as_it_will, "with that loader", "leave it out")


def _copies_as_it_will(config: Config) -> bool:
    return spec_of(config.loader).on_device or config.loader == REPLAY


def _note(asked: Sequence[Config], names: Collection[str], idle: Callable[[Config], bool], where: str, cure: str) -> None:
    given = [
        field.negative if field.default is True else field.spelling
        for field in flags(Config)
        if field.name in names and any(getattr(config, field.name) != field.default for config in asked)
    ]
    if given and all(map(idle, asked)):
        does = "does" if len(given) == 1 else "do"
        print_note(f"{', '.join(given)} {does} nothing {where}; {cure}")
