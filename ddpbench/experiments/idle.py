"""Flags that were given and do nothing here: a word on stderr before the run, since a figure would not show it."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.machine.say import print_note
from ddpbench.machine.world import World
from ddpbench.record.config import Config
from ddpbench.record.flags import flags

DDP_FLAGS = ("broadcast_buffers", "bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "comm_hook")
"""Fields of Config that only DDP reads."""


def note_idle_flags(asked: Sequence[Config], world: World) -> None:
    """Names the flags of DDP that some arm was given where no arm has DDP. One rank speaks."""
    without = [config for config in asked if not world.distributed or config.engine == "none"]
    if len(without) < len(asked) or not world.seat.speaks:
        return
    given = [
        field.negative if field.default is True else field.spelling
        for field in flags(Config)
        if field.name in DDP_FLAGS and any(getattr(config, field.name) != field.default for config in asked)
    ]
    if given:
        does = "does" if len(given) == 1 else "do"
        cure = "leave --engine none out" if world.distributed else "start ranks with --gpus N or torchrun"
        print_note(f"{', '.join(given)} {does} nothing without DDP; {cure}")
