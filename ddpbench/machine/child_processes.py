"""Ends what this process has started."""

from __future__ import annotations

from contextlib import suppress
from multiprocessing import resource_tracker

import psutil

TERMINATE_S = 2.0
"""Seconds that processes get to end after SIGTERM."""

MPI_DAEMONS = ("orted", "prted", "prte")
"""Names of the process that Open MPI starts when a program imports ``mpi4py``, as Lightning does where that is installed.

It ends by itself after the program. MPI ends a program that has lost it, with exit code 195.
"""


def end_children(timeout_s: float = TERMINATE_S) -> None:
    """End all processes that this one has started, and those that they have started: with SIGTERM, and after ``timeout_s`` with SIGKILL.

    The resource tracker of ``multiprocessing`` stays: it ends by itself after this process, and cleans up what that leaves in memory. So do
    daemons of MPI.
    """
    tracker: int | None = getattr(resource_tracker._resource_tracker, "_pid", None)
    children = [child for child in psutil.Process().children(recursive=True) if child.pid != tracker and not _is_mpi_daemon(child)]
    if timeout_s:
        for child in children:
            with suppress(psutil.Error):
                child.terminate()
    _, alive = psutil.wait_procs(children, timeout_s)
    for child in alive:
        with suppress(psutil.Error):
            child.kill()
    psutil.wait_procs(alive, TERMINATE_S)


def _is_mpi_daemon(child: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return child.name() in MPI_DAEMONS
    return False
