"""For the Trainer of Lightning: ``Trainer(callbacks=[WatchCallback()])`` watches ``fit``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ddpbench.callbacks import WatchedTraining
from ddpbench.machine.variables import EnvVar

LIGHTNING = "pytorch_lightning" if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules else "lightning.pytorch"
"""The package in use: each has a Trainer of its own, which takes its own callbacks."""

Callback: Any = import_module(LIGHTNING).Callback


class WatchCallback(WatchedTraining, Callback):
    """Watches ``fit``."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._begin(pl_module, _rank_variables(trainer))

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._end(exception)


def _rank_variables(trainer: Any) -> Mapping[str, str]:
    """The environment variables of this rank. Lightning's own launcher sets no RANK."""
    if trainer.world_size == 1:
        return os.environ
    ranks = {
        EnvVar.RANK: trainer.global_rank,
        EnvVar.WORLD_SIZE: trainer.world_size,
        EnvVar.LOCAL_RANK: trainer.local_rank,
        EnvVar.LOCAL_WORLD_SIZE: trainer.num_devices,
        EnvVar.GROUP_RANK: trainer.node_rank,
    }
    return {**os.environ, **{str(name): str(value) for name, value in ranks.items()}}
