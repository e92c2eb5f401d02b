"""A real two-node SLURM, n1 and n2, on this machine, with private daemons, files and ports."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

NODES = ("n1", "n2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "srun")
SEARCHED = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"  # daemon folders, which are not in every PATH
UNFINISHED = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}

CONFIG = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
MinJobAge=86400
FirstJobId={first_job}
{gres}{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""Tracks the process tree of a task like cgroups do: signals reach ranks and loader workers."""

CORES = 64
"""Cores per node; SLURM accepts more than the machine has."""

DEVICES = ("null", "zero", "full", "random")
"""Device files that stand for four GPUs per node: SLURM only requires existing devices."""


class NoSlurmError(Exception):
    """This machine cannot run SLURM; the message says why."""


class Cluster:
    """A two-node cluster. ``folder`` holds the log of each job, ``NUMBER.log``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = {**os.environ, "PATH": SEARCHED, "SLURM_CONF": str(folder / "slurm.conf")}
        self._jobs: list[int] = []

    def submit(self, *words: str, cwd: Path, **variables: str) -> int:
        """Submit ``words`` with sbatch from ``cwd`` and return the job ID."""
        name = "%A_%a" if any(word.startswith("--array") for word in words) else "%j"
        asked = ["sbatch", "--parsable", f"--output={self.folder}/{name}.log", *words]
        self._jobs.append(int(self._run(asked, cwd=cwd, **variables)))
        return self._jobs[-1]

    def state(self, job: int) -> str:
        """SLURM's job state (RUNNING, COMPLETED, FAILED ...); for arrays that of the least advanced task."""
        states: list[str] = re.findall(r"JobState=(\w+)", self._run(["scontrol", "show", "job", str(job)]))
        return min(states, key=lambda state: (state not in UNFINISHED, state == "COMPLETED"))

    def exit_code(self, job: int) -> int:
        """The exit code of the batch script."""
        (code,) = re.findall(r"ExitCode=(\d+):", self._run(["scontrol", "show", "job", str(job)]))
        return int(code)

    def allocated_cores(self, job: int) -> int:
        """Cores that SLURM gave the job on all its nodes."""
        (cores,) = re.findall(r"NumCPUs=(\d+)", self._run(["scontrol", "show", "job", str(job)]))
        return int(cores)

    def until(self, job: int, condition: Callable[[], bool], timeout: float) -> None:
        """Wait for ``condition``. Raises AssertionError with the log if the job ends before or the timeout passes."""
        deadline = time.monotonic() + timeout
        while not condition():
            going = self.state(job) in UNFINISHED
            assert going or condition(), f"job {job} ended before\n{self.log(job)}"
            assert time.monotonic() < deadline, f"not within {timeout} s\n{self.log(job)}"
            time.sleep(0.2)

    def wait(self, job: int, timeout: float) -> str:
        """Wait for the final state of the job. Raises AssertionError with its log after ``timeout`` seconds.

        Two consecutive polls must agree: SLURM 22 reports FAILED briefly, then COMPLETING, then FAILED again.
        """
        deadline = time.monotonic() + timeout
        before, state = "", self.state(job)
        while state in UNFINISHED or state != before:
            assert time.monotonic() < deadline, f"not within {timeout} s\n{self.log(job)}"
            time.sleep(0.2)
            before, state = state, self.state(job)
        return state

    def cancel(self, job: int, *flags: str) -> None:
        """Run scancel; with ``--signal=NAME`` it only sends that signal to the job's steps."""
        self._run(["scancel", *flags, str(job)])

    def log(self, job: int) -> str:
        """Output of the job; for arrays the concatenated task logs."""
        paths = [*self.folder.glob(f"{job}.log"), *sorted(self.folder.glob(f"{job}_*.log"))]
        return "".join(path.read_text(errors="replace") for path in paths)

    def processes(self, job: int) -> list[psutil.Process]:
        """All live processes of the job on both nodes."""
        found = [(process, _environment(process)) for process in psutil.process_iter()]
        ours = [each for each in found if each[1].get("SLURM_CONF") == str(self.folder / "slurm.conf")]
        return [process for process, marks in ours if str(job) in (marks.get("SLURM_JOB_ID"), marks.get("SLURM_ARRAY_JOB_ID"))]

    def rank(self, job: int, rank: int) -> psutil.Process:
        """The process of one rank."""
        (found,) = (process for process in self.processes(job) if _environment(process).get("RANK") == str(rank))
        return found

    def ready(self) -> bool:
        """Whether both nodes are idle."""
        try:
            return self._run(["scontrol", "--oneliner", "show", "node"]).count("State=IDLE ") == len(NODES)
        except AssertionError:  # slurmctld does not answer yet
            return False

    def clear(self) -> None:
        """End all unfinished jobs."""
        for job in (job for job in self._jobs if self.state(job) in UNFINISHED):
            self.cancel(job)
            for process in self.processes(job):
                process.kill()
            self.wait(job, 20)

    def _run(self, command: Sequence[str], cwd: Path | None = None, **variables: str) -> str:
        environment = {**self._environment, **variables}
        done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=30)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
        return done.stdout


@contextmanager
def two_nodes(folder: Path, devices: Sequence[str] = DEVICES) -> Iterator[Cluster]:
    """A cluster in ``folder`` for the duration of the block; without ``devices``, SLURM does not know of any GPU.

    Raises NoSlurmError if SLURM cannot run here.
    """
    if missing := [program for program in PROGRAMS if not shutil.which(program, path=SEARCHED)]:
        raise NoSlurmError(f"SLURM is not installed here: no {', '.join(missing)} (apt-get install slurm-wlm munge)")
    _configure(folder, devices)
    cluster = Cluster(folder)
    with ExitStack() as ends:
        daemons = [
            ends.enter_context(_daemon(folder, name, words))
            for name, words in (
                ("munged", _munged(folder)),
                ("slurmctld", ["slurmctld", "-D"]),
                *((node, ["slurmd", "-D", "-N", node]) for node in NODES),
            )
        ]
        _wait_until_ready(cluster, daemons)
        try:
            yield cluster
        finally:
            cluster.clear()


def _configure(folder: Path, devices: Sequence[str]) -> None:
    host, (controller, *ports) = socket.gethostname().partition(".")[0], _free_ports(1 + len(NODES))
    nodes = [
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CORES}{f' Gres=gpu:{len(devices)}' if devices else ''}"
        for node, port in zip(NODES, ports, strict=True)
    ]
    first_job = os.getpid() % 20000 + 1  # the rendezvous port follows from the job ID; avoid other clusters
    names = {"host": host, "port": controller, "user": getpass.getuser(), "folder": folder}
    gres = "GresTypes=gpu\n" if devices else ""
    (folder / "slurm.conf").write_text(CONFIG.format(**names, first_job=first_job, gres=gres, nodes="\n".join(nodes)))
    (folder / "gres.conf").write_text("".join(f"Name=gpu File=/dev/{device}\n" for device in devices))
    for name in ("state", *NODES):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as open_until_all_are_found:
        probes = [open_until_all_are_found.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _munged(folder: Path) -> list[str]:
    files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid", "seed-file": "munge.seed", "log-file": "munge.log"}
    return ["munged", "--foreground", "--force", *(f"--{flag}={folder / name}" for flag, name in files.items())]


@contextmanager
def _daemon(folder: Path, name: str, words: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run one daemon with output in ``NAME.out`` for the duration of the block."""
    environment = {"PATH": SEARCHED, "SLURM_CONF": str(folder / "slurm.conf")}
    with (folder / f"{name}.out").open("wb") as out:
        daemon = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        yield daemon
    finally:
        daemon.terminate()
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _wait_until_ready(cluster: Cluster, daemons: Sequence[subprocess.Popen[bytes]], patience_s: float = 20) -> None:
    deadline = time.monotonic() + patience_s
    while not cluster.ready():
        if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in daemons):
            printed = [line for out in cluster.folder.glob("*.out") for line in out.read_text(errors="replace").splitlines()]
            errors = [line for line in printed if "error" in line.lower()] or ["no node came up"]
            raise NoSlurmError(f"SLURM does not start here: {errors[-1]}")
        time.sleep(0.2)


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return {} if process.status() == psutil.STATUS_ZOMBIE else process.environ()
    except psutil.Error:
        return {}
