"""Experiment trackers: what a diagnosed script logs must reach no server.

TensorBoard writes files through ``open``, as long as it does not find TensorFlow, whose files are written in C++.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from ddpbench.script.after_import import call_after_import

VARIABLES = {
    "WANDB_MODE": "disabled",
    "NEPTUNE_MODE": "offline",
    "COMET_AUTO_LOG_DISABLE": "1",
    "COMET_MODE": "DISABLED",  # of transformers
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "disabled",
}
"""Environment variables that keep a tracker from its server."""


def mute_trackers(scratch: str, refuse: Callable[[str, str], NoReturn]) -> None:
    """Set the environment, and keep the script from choosing a server itself. ``refuse(action, name)`` refuses an upload."""
    store = f"file://{scratch}/mlruns"
    os.environ.update(VARIABLES, MLFLOW_TRACKING_URI=store, MLFLOW_REGISTRY_URI=store, MLFLOW_ALLOW_FILE_STORE="true")
    sys.modules["tensorboard.compat.notf"] = ModuleType("tensorboard.compat.notf")  # TensorBoard looks for it to go without TensorFlow
    call_after_import("wandb", _disable_wandb)
    call_after_import("mlflow", _keep_mlflow_local)
    call_after_import("huggingface_hub.hf_api", lambda: _refuse_uploads(refuse))


def _disable_wandb() -> None:
    """An argument of the script goes before the environment."""
    wandb: Any = sys.modules["wandb"]
    init = wandb.init

    @functools.wraps(init)
    def disabled_init(*arguments: Any, **options: Any) -> Any:
        return init(*arguments, **{**options, "mode": "disabled"})

    wandb.init = disabled_init


def _keep_mlflow_local() -> None:
    mlflow: Any = sys.modules["mlflow"]
    mlflow.set_tracking_uri = lambda uri: None
    start_client = mlflow.MlflowClient.__init__
    mlflow.MlflowClient.__init__ = lambda client, *_, **__: start_client(client)


def _refuse_uploads(refuse: Callable[[str, str], NoReturn]) -> None:
    hub: Any = sys.modules["huggingface_hub.hf_api"]

    def create_commit(api: Any, repo_id: str, *arguments: Any, **options: Any) -> NoReturn:
        refuse("upload", repo_id)

    hub.HfApi.create_commit = create_commit
    hub.create_commit = functools.partial(create_commit, None)
