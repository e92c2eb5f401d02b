"""For the Trainer of transformers: ``Trainer(..., callbacks=[WatchCallback()])`` watches ``train``."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from ddpbench.callbacks import WatchedTraining


class WatchCallback(WatchedTraining, TrainerCallback):
    """Watches ``train``."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begin(kwargs.get("model"))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end()
