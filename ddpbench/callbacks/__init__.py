"""Floor 7: callbacks that watch the training of a framework, in ``callbacks.lightning`` and ``callbacks.transformers``."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager

from ddpbench.script.watch import watched_block


class WatchedTraining:
    """Watches a training as ``with ddpbench.watch():`` does: the page is printed when it ends, one for all ranks.

    The base of the callbacks. A training that a framework does not end, as after an exception, ends with the process.

    Args:
        name: Of the training, in its page and record; by default the class of its model.
        output_dir: Folder of the record.
        quiet: Print one line in place of the page.
    """

    def __init__(self, name: str | None = None, *, output_dir: str = "results/runs", quiet: bool = False) -> None:
        self._name, self._output_dir, self._quiet = name, output_dir, quiet
        self._block: AbstractContextManager[None] | None = None

    def _begin(self, model: object, variables: Mapping[str, str] = os.environ) -> None:
        """Begin to watch. ``variables`` name the rank, as torchrun does. Raises UsageError as ``ddpbench.watch`` does."""
        self._end_unfinished()
        block = watched_block(self._name or type(model).__name__, self._output_dir, self._quiet, variables)
        block.__enter__()
        self._block = block
        atexit.register(self._end_unfinished)

    def _end(self, problem: BaseException | None = None) -> None:
        """Print the page and close the record. ``problem`` is what has ended the training early; its owner raises it."""
        block, self._block = self._block, None
        if block is None:
            return
        atexit.unregister(self._end_unfinished)
        try:
            block.__exit__(type(problem) if problem else None, problem, problem.__traceback__ if problem else None)
        except BaseException as raised:
            if raised is not problem:
                raise

    def _end_unfinished(self) -> None:
        """End what its framework has not: an exception has left it."""
        self._end(getattr(sys, "last_value", None) or sys.exc_info()[1])
