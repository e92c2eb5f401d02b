"""Starts DataLoader workers, and finds one that hangs, stalls or has died."""

from __future__ import annotations

import multiprocessing
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import Any

import psutil
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from ddpbench.machine.forks import pause_before_forks
from ddpbench.machine.streams import print_note
from ddpbench.record.diagnosis import SHM_DIR
from ddpbench.record.errors import BenchError

START_TIMEOUT_S = 60.0
"""A forked worker starts in milliseconds; a spawned one, which imports torch again, in seconds."""

ALIVE_POLL_S = 0.5
"""Interval of checks that workers which have not started are still alive."""

MAX_START_ATTEMPTS = 3


def start_workers(data_loader: DataLoader[Any], hint: str) -> tuple[Iterator[Any], list[BaseProcess]]:
    """An iterator over ``data_loader``, and its workers, all started.

    Raises BenchError if workers do not start in MAX_START_ATTEMPTS attempts.
    """
    pause_before_forks()
    user_init = data_loader.worker_init_fn
    for _ in range(MAX_START_ATTEMPTS):
        barrier = StartBarrier(user_init)
        data_loader.worker_init_fn = barrier
        other_children = multiprocessing.active_children()
        with no_torch_sigchld_handler(), suppress_worker_count_warning():
            stream = iter(data_loader)
        processes = [child for child in multiprocessing.active_children() if child not in other_children]
        if barrier.wait_for_all(processes):
            return stream, processes
        print_note(f"a loader worker did not start within {START_TIMEOUT_S:.0f} s; restarting all workers")
        kill_workers(stream, processes)
    raise BenchError(f"loader workers did not start within {START_TIMEOUT_S:.0f} s in {MAX_START_ATTEMPTS} attempts", hint)


def is_forked(data_loader: DataLoader[Any]) -> bool:
    """Whether ``data_loader`` forks its workers. Leaves the start method of the process undecided if it is."""
    context = data_loader.multiprocessing_context or multiprocessing
    return (context.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]) == "fork"


def kill_workers(stream: Any, processes: Sequence[BaseProcess]) -> None:
    """End the workers of ``stream``, of which some hang. Torch has no public API for it."""
    signal_handling._remove_worker_pids(id(stream))  # else torch's SIGCHLD handler raises, if it is set
    stream._worker_pids_set = False
    for process in processes:
        process.kill()
    stream._shutdown_workers()


class StartBarrier:
    """The ``worker_init_fn`` that counts the workers that have started.

    A forked child of CPython 3.11 can still hang, though rarely (see ``pause_before_forks``). Calls ``worker_init`` last: that of a user
    may take its time.
    """

    def __init__(self, worker_init: Callable[[int], None] | None) -> None:
        self._worker_init, self._started = worker_init, multiprocessing.Semaphore(0)

    def __call__(self, worker: int) -> None:
        self._started.release()
        if self._worker_init:
            self._worker_init(worker)

    def wait_for_all(self, workers: Sequence[BaseProcess], timeout_s: float | None = None) -> bool:
        """Whether all workers have started within ``timeout_s``, by default START_TIMEOUT_S.

        True if one has died: that is reported when a batch is requested.
        """
        deadline = monotonic() + (START_TIMEOUT_S if timeout_s is None else timeout_s)
        for _ in workers:
            while not self._started.acquire(timeout=ALIVE_POLL_S):
                if not all(worker.is_alive() for worker in workers):
                    return True
                if monotonic() > deadline:
                    return False
        return True


@contextmanager
def suppress_worker_count_warning() -> Iterator[None]:
    """Context without torch's warning about the number of workers.

    It counts the machine's cores and ignores other ranks and quotas; the measurements reveal too many workers.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


@contextmanager
def no_torch_sigchld_handler() -> Iterator[None]:
    """Context for starting DataLoader workers, without torch's SIGCHLD handler during and after it; any other handler stays.

    Torch's handler raises at any point of this process when a worker dies, even during a step or while closing. Without it the death is
    noticed within 5 s, when a batch is requested.
    """
    handler = signal.getsignal(signal.SIGCHLD)
    if getattr(handler, "__module__", "") == signal_handling.__name__:  # set by a DataLoader of the user's code
        handler = signal.SIG_DFL
        signal.signal(signal.SIGCHLD, handler)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGCHLD) is not handler:
            signal.signal(signal.SIGCHLD, handler)


OUT_OF_MEMORY_HINT = f"check memory (dmesg) and shared memory (df {SHM_DIR}); fewer workers (-j) or a smaller batch (-b) need less"


def stalled_worker(iterator: Any) -> str:
    """Describe the worker that owes the next batch of ``iterator``, and its state; empty without workers."""
    with suppress(AttributeError, KeyError, psutil.Error):  # no workers, already delivered, or died; no public API
        worker = psutil.Process(iterator._workers[iterator._task_info[iterator._rcvd_idx][0]].pid)
        return f"loader worker {worker.pid} ({worker.status()}) has not delivered its batch; check the storage and {SHM_DIR}"
    return ""


def dead_worker(workers: Sequence[BaseProcess]) -> str:
    """Describe the worker that is dead or dies within a second, and why.

    The reason is ``SIGKILL`` or ``exit code 1``, for example. Empty if all are alive or have exited normally.
    """
    ended = wait([process.sentinel for process in workers], timeout=1)
    for process in workers:
        if process.sentinel in ended:
            process.join()
            code = process.exitcode or 0
            reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return f"loader worker {process.pid} died: {reason}"
    return ""
