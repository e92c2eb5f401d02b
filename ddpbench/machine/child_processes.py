"""Ends what this process has started."""

from __future__ import annotations

from contextlib import suppress
from multiprocessing import resource_tracker

import psutil

TERMINATE_S = 2.0
"""Seconds that processes get to end after SIGTERM."""


def end_children(timeout_s: float = TERMINATE_S) -> None:
    """End all processes that this one has started, and those that they have started: with SIGTERM, and after ``timeout_s`` with SIGKILL.

    The resource tracker of ``multiprocessing`` stays: it ends by itself after this process, and cleans up what that leaves in memory.
    """
    tracker: int | None = getattr(resource_tracker._resource_tracker, "_pid", None)
    children = [child for child in psutil.Process().children(recursive=True) if child.pid != tracker]
    if timeout_s:
        for child in children:
            with suppress(psutil.Error):
                child.terminate()
    _, alive = psutil.wait_procs(children, timeout_s)
    for child in alive:
        with suppress(psutil.Error):
            child.kill()
    psutil.wait_procs(alive, TERMINATE_S)
