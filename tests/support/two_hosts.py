"""Two emulated hosts: network namespaces with separate host names and a bandwidth-limited link."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HOSTS = {"ddp-left": "10.213.77.1", "ddp-right": "10.213.77.2"}
PORT = 29457


def why_not() -> str:
    """Why two hosts cannot be emulated here; empty if they can."""
    missing = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"no {' and no '.join(missing)} here: two hosts need iproute2"
    if os.geteuid() != 0:
        return "network namespaces need root"
    tried = subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"network namespaces cannot be made here: {tried.stderr.strip()}"


@contextmanager
def cable(megabits: int) -> Iterator[None]:
    """Two hosts with a link of ``megabits`` per second each way for the duration of the block."""
    interfaces = {host: f"{host}-0" for host in HOSTS}
    left, right = interfaces.values()
    _remove_hosts()  # those of a killed test run
    try:
        for host in HOSTS:
            _do("ip", "netns", "add", host)
        _do("ip", "link", "add", left, "type", "veth", "peer", "name", right)
        for host, interface in interfaces.items():
            _do("ip", "link", "set", interface, "netns", host)
            _do("ip", "-n", host, "addr", "add", f"{HOSTS[host]}/24", "dev", interface)
            _do("ip", "-n", host, "link", "set", "lo", "up")
            _do("ip", "-n", host, "link", "set", interface, "up")
            limit = ("rate", f"{megabits}mbit", "burst", "128kb", "latency", "100ms")
            _do("ip", "netns", "exec", host, "tc", "qdisc", "add", "dev", interface, "root", "tbf", *limit)
        yield
    finally:
        _remove_hosts()


def cut() -> None:
    """Cut the link. Connections are not closed: the hosts just stop receiving from each other."""
    host = next(iter(HOSTS))
    _do("ip", "-n", host, "link", "set", f"{host}-0", "down")


def names_in(folder: Path, **own: str) -> Path:
    """A replacement for /etc/hosts with both hosts; ``own`` adds host names with their addresses."""
    names = folder / "-".join(["hosts", *own.values()])
    known = {"localhost": "127.0.0.1", **HOSTS, **own}
    names.write_text("".join(f"{address} {host}\n" for host, address in known.items()))
    return names


def torchrun(host: str, names: Path, words: Sequence[str], called: str = "") -> list[str]:
    """The command that starts the rank of ``host``, with torchrun's c10d rendezvous at the first host.

    The host name is ``called`` if given.
    """
    first = next(iter(HOSTS.values()))
    meeting = ["--nnodes=2", "--nproc_per_node=1", "--rdzv_backend=c10d", f"--rdzv_endpoint={first}:{PORT}", "--rdzv_id=ddpbench"]
    run = [sys.executable, "-m", "torch.distributed.run", *meeting, f"--local_addr={HOSTS[host]}", "-m", "ddpbench", *words]
    naming = f'hostname {called or host} && mount --bind "{names}" /etc/hosts && exec "$@"'
    named = ["unshare", "--uts", "--mount", "sh", "-c", naming, "sh"]
    return ["ip", "netns", "exec", host, *named, *run]


def _remove_hosts() -> None:
    for host in HOSTS:
        subprocess.run(["ip", "netns", "del", host], capture_output=True)


def _do(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"
