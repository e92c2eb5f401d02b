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

from ddpbench.machine.streams import print_note
from ddpbench.record.diagnosis import SHM_DIR
from ddpbench.record.errors import BenchError

START_TIMEOUT_S = 60.0
"""A worker begins in milliseconds where it is forked, and in seconds where it imports torch anew."""

ALIVE_POLL_S = 0.5
"""So often somebody looks whether those that have not begun still live."""

MAX_START_ATTEMPTS = 3


def start_workers(data_loader: DataLoader[Any], hint: str) -> tuple[Iterator[Any], list[BaseProcess]]:
    """An iterator over ``data_loader`` whose workers have all begun, and these.

    A child of CPython 3.11 takes a lock that another thread may have held when it was forked, and that nobody gives back
    (``_PyThreadState_DeleteExcept``). That is rare, and hung a run all the same. Raises BenchError where they do not begin TRIES times.
    """
    usual = data_loader.worker_init_fn
    for _ in range(MAX_START_ATTEMPTS):
        begun = StartBarrier(usual)
        data_loader.worker_init_fn = begun
        earlier = multiprocessing.active_children()
        with keep_sigchld_handler(), suppress_worker_count_warning():
            stream = iter(data_loader)
        processes = [child for child in multiprocessing.active_children() if child not in earlier]
        if begun.wait_for_all(processes):
            return stream, processes
        print_note(f"a loader worker did not begin within {START_TIMEOUT_S:.0f} s, and all are started again")
        for process in processes:
            process.kill()
        stream._shutdown_workers()  # type: ignore[attr-defined]  # there is no public way
    raise BenchError(f"loader workers did not begin within {START_TIMEOUT_S:.0f} s, {MAX_START_ATTEMPTS} times", hint)


class StartBarrier:
    """What a worker runs first: ``then``, and it is counted."""

    def __init__(self, worker_init: Callable[[int], None] | None) -> None:
        self._worker_init, self._started = worker_init, multiprocessing.Semaphore(0)

    def __call__(self, worker: int) -> None:
        if self._worker_init:
            self._worker_init(worker)
        self._started.release()

    def wait_for_all(self, workers: Sequence[BaseProcess]) -> bool:
        """Whether all have begun in time. Of one that has died it is told where a batch is asked for."""
        deadline = monotonic() + START_TIMEOUT_S
        for _ in workers:
            while not self._started.acquire(timeout=ALIVE_POLL_S):
                if not all(worker.is_alive() for worker in workers):
                    return True
                if monotonic() > deadline:
                    return False
        return True


@contextmanager
def suppress_worker_count_warning() -> Iterator[None]:
    """Torch counts the machine's cores, and knows neither other ranks nor quotas; what is measured tells of too many workers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


@contextmanager
def keep_sigchld_handler() -> Iterator[None]:
    """Around what makes a DataLoader start its workers."""
    handler = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGCHLD) is not handler:
            # torch's own raises wherever this process stands when a worker dies, in the middle of a step or of closing;
            # without it the death is noticed within 5 s, where a batch is asked for
            signal.signal(signal.SIGCHLD, handler)


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
