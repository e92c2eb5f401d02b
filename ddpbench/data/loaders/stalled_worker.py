"""What stands behind a batch of a DataLoader that does not come: the worker that owes it, or one that has died."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import psutil

from ddpbench.record.diagnosis import SHM_DIR

OUT_OF_MEMORY_HINT = (
    f"short of memory, or of shared memory? see dmesg and 'df {SHM_DIR}'; fewer workers (-j) or a smaller batch (-b) take less"
)


def stalled_worker(iterator: Any) -> str:
    """Which worker has the next batch of ``iterator`` to give, and what the system says of it; nothing where it has no workers."""
    with suppress(AttributeError, KeyError, psutil.Error):  # it has none, has given it meanwhile, or died; there is no public way
        worker = psutil.Process(iterator._workers[iterator._task_info[iterator._rcvd_idx][0]].pid)
        return f"loader worker {worker.pid} ({worker.status()}) owes it a batch; does storage answer, is {SHM_DIR} full?"
    return ""


def dead_worker(workers: Sequence[BaseProcess]) -> str:
    """Which worker is dead or dies within a second, and of what: ``SIGKILL``, or ``exit code 1``; empty where all live or end well."""
    ended = wait([process.sentinel for process in workers], timeout=1)
    for process in workers:
        if process.sentinel in ended:
            process.join()
            code = process.exitcode or 0
            manner = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return f"loader worker {process.pid} died: {manner}"
    return ""
