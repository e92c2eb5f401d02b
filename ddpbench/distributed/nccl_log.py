"""NCCL's own log of this process: the one place where it tells which ways it takes between ranks."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LEVEL, FILE, SUBSYSTEMS = "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"

CONNECTION_LOG_LEVELS = ("INFO", "TRACE")
"""Levels at which NCCL tells of connections."""

CHANNEL_PATTERN = re.compile(
    r"NCCL INFO Channel \d+(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[(?:send|receive)\])? via ((?:P2P|SHM|NET)/.*?)(?: comm 0x.*)?$",
    re.MULTILINE,
)
"""A connection: from which rank to which, each with its device, and how. AMD's library adds the communicator."""

NIC_INDEX_PATTERN = re.compile(r"/\d+(?:\(\d+\)|\[\w+\])?(?=[/(]|$)")
"""The number of a network card, and the rank that serves it where that is another: ``NET/IB/3(1)/GDRDMA``."""

NIC_PATTERN = re.compile(r"NCCL INFO NET/IB\w* : Using (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class NcclChannel:
    """A connection from one rank to another, as NCCL names its kind: ``P2P/CUMEM``, ``NET/IB/GDRDMA``."""

    source_rank: int
    target_rank: int
    via: str


def parse_channels(log: str) -> set[NcclChannel]:
    """The connections that ``log`` tells of."""
    return {
        NcclChannel(int(source), int(target), NIC_INDEX_PATTERN.sub("", via.rstrip()))
        for source, target, via in CHANNEL_PATTERN.findall(log)
    }


def nic_type(log: str) -> str:
    """What the cards speak that NCCL reaches through verbs: ``InfiniBand`` or ``RoCE``; empty where it is both, or none is told."""
    using = " ".join(NIC_PATTERN.findall(log))
    spoken = {"InfiniBand": "/IB" in using, "RoCE": "/RoCE" in using}
    names = [name for name, there in spoken.items() if there]
    return names[0] if len(names) == 1 else ""


@contextmanager
def capture_nccl_log(variables: MutableMapping[str, str] = os.environ) -> Iterator[Callable[[], str]]:
    """Gives what reads NCCL's log so far, which is asked for while this is open: the first communicator has to be made in it.

    The log lies in memory and goes with this process; NCCL adds to it when it connects, and never in a collective. Who has asked
    for a log gets it as asked, and it is read where it goes to a file; else it is empty.
    """
    if any(name.startswith(LEVEL) for name in variables):
        path = _user_log_file(variables)
        yield lambda: _read_log(path) if path else ""
        return
    log = os.memfd_create("nccl-log")
    asked = {LEVEL: "INFO", SUBSYSTEMS: "INIT,P2P,SHM,NET", FILE: f"/proc/self/fd/{log}"}
    variables.update(asked)
    try:
        yield lambda: os.pread(log, os.fstat(log).st_size, 0).decode(errors="replace")
    finally:
        for name in asked:
            del variables[name]


def _user_log_file(variables: Mapping[str, str]) -> Path | None:
    """The file of a log that a person asked for and that tells of connections."""
    name = variables.get(FILE)
    if not name or variables.get(LEVEL, "").upper() not in CONNECTION_LOG_LEVELS:
        return None
    stands_for = {"%h": socket.gethostname().partition(".")[0], "%p": str(os.getpid()), "%%": "%"}
    return Path(re.sub("%[hp%]", lambda found: stands_for[found[0]], name))


def _read_log(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # nothing was logged yet, or elsewhere
        return ""
