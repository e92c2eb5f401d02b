"""For the Trainer of transformers: ``Trainer(..., callbacks=[WatchCallback()])`` watches ``train``."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from ddpbench.callbacks import WatchedTraining


class WatchCallback(TrainerCallback):
    """Watches ``train`` as ``with ddpbench.watch():`` does: the page is printed when it ends, one for all ranks.

    Args:
        name: Of the training, in its page and record; by default the class of the model.
        output_dir: Folder of the record.
        quiet: Print one line in place of the page.
    """

    def __init__(self, name: str | None = None, *, output_dir: str = "results/runs", quiet: bool = False) -> None:
        self._training = WatchedTraining(name, output_dir, quiet)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training.begin(kwargs.get("model"))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training.end()
