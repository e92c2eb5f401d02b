"""A real SLURM of two nodes, n1 and n2, on this machine: its daemons, files and ports are its own and end with it."""

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
SEARCHED = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"  # where daemons are, and where not every PATH looks
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
GresTypes=gpu
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""Processes are tracked over the whole tree of a task, as a site's cgroups do: a signal reaches ranks and loader workers alike."""

DEVICES = ("null", "zero", "full", "random")
"""What each node hands out as its four GPUs: SLURM only wants devices that are there."""

MOST = 40
"""Of the cores of a node: two tasks that ask for so many are on two nodes."""


class NoSlurmError(Exception):
    """Why this machine cannot run a SLURM of its own."""


class Cluster:
    """Two nodes that take jobs. ``folder`` holds the log of each job, ``NUMBER.log``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = {**os.environ, "PATH": SEARCHED, "SLURM_CONF": str(folder / "slurm.conf")}
        self._jobs: list[int] = []

    def submit(self, *words: str, cwd: Path, **variables: str) -> int:
        """Gives ``words`` to sbatch, from the folder ``cwd``, and returns the job's number."""
        name = "%A_%a" if any(word.startswith("--array") for word in words) else "%j"
        asked = ["sbatch", "--parsable", f"--output={self.folder}/{name}.log", *words]
        self._jobs.append(int(self._run(asked, cwd=cwd, **variables)))
        return self._jobs[-1]

    def state(self, job: int) -> str:
        """RUNNING, COMPLETED, FAILED, CANCELLED ... as SLURM names it; of an array that of the task that has come least far."""
        states: list[str] = re.findall(r"JobState=(\w+)", self._run(["scontrol", "show", "job", str(job)]))
        return min(states, key=lambda state: (state not in UNFINISHED, state == "COMPLETED"))

    def exit_code(self, job: int) -> int:
        """The exit code of the batch script."""
        (code,) = re.findall(r"ExitCode=(\d+):", self._run(["scontrol", "show", "job", str(job)]))
        return int(code)

    def until(self, job: int, condition: Callable[[], bool], timeout: float) -> None:
        """Waits for ``condition``. Raises AssertionError with the log when the job ends before, or it takes longer."""
        deadline = time.monotonic() + timeout
        while not condition():
            going = self.state(job) in UNFINISHED
            assert going or condition(), f"job {job} ended before\n{self.log(job)}"
            assert time.monotonic() < deadline, f"not within {timeout} s\n{self.log(job)}"
            time.sleep(0.2)

    def wait(self, job: int, timeout: float) -> str:
        """The state in which the job ended. Raises AssertionError with its log when that takes longer than ``timeout`` seconds.

        It ended when two looks agree: SLURM 22 says FAILED for a moment, then COMPLETING, and FAILED again.
        """
        deadline = time.monotonic() + timeout
        before, state = "", self.state(job)
        while state in UNFINISHED or state != before:
            assert time.monotonic() < deadline, f"not within {timeout} s\n{self.log(job)}"
            time.sleep(0.2)
            before, state = state, self.state(job)
        return state

    def cancel(self, job: int, *flags: str) -> None:
        """scancel; with ``--signal=NAME`` that signal goes to the job's steps in place of their end."""
        self._run(["scancel", *flags, str(job)])

    def log(self, job: int) -> str:
        """What the job has printed, of an array each task in its turn."""
        paths = [*self.folder.glob(f"{job}.log"), *sorted(self.folder.glob(f"{job}_*.log"))]
        return "".join(path.read_text(errors="replace") for path in paths)

    def processes(self, job: int) -> list[psutil.Process]:
        """Every process of the job that lives, on either node."""
        found = [(process, _environment(process)) for process in psutil.process_iter()]
        ours = [each for each in found if each[1].get("SLURM_CONF") == str(self.folder / "slurm.conf")]
        return [process for process, marks in ours if str(job) in (marks.get("SLURM_JOB_ID"), marks.get("SLURM_ARRAY_JOB_ID"))]

    def rank(self, job: int, rank: int) -> psutil.Process:
        """The process of one rank."""
        (found,) = (process for process in self.processes(job) if _environment(process).get("RANK") == str(rank))
        return found

    def ready(self) -> bool:
        """Whether both nodes wait for a job."""
        try:
            return self._run(["scontrol", "--oneliner", "show", "node"]).count("State=IDLE ") == len(NODES)
        except AssertionError:  # nobody answers yet
            return False

    def clear(self) -> None:
        """Ends every job that still goes on, whatever it does."""
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
def two_nodes(folder: Path) -> Iterator[Cluster]:
    """A cluster in ``folder`` for as long as the block runs. Raises NoSlurmError where this machine cannot have one."""
    if missing := [program for program in PROGRAMS if not shutil.which(program, path=SEARCHED)]:
        raise NoSlurmError(f"SLURM is not installed here: no {', '.join(missing)} (apt-get install slurm-wlm munge)")
    _configure(folder)
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


def _configure(folder: Path) -> None:
    host, (controller, *ports) = socket.gethostname().partition(".")[0], _free_ports(1 + len(NODES))
    nodes = [
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=64 Gres=gpu:{len(DEVICES)}"
        for node, port in zip(NODES, ports, strict=True)
    ]
    first_job = os.getpid() % 20000 + 1  # the ranks of a job meet on a port that follows from its number: keep off other clusters here
    names = {"host": host, "port": controller, "user": getpass.getuser(), "folder": folder}
    (folder / "slurm.conf").write_text(CONFIG.format(**names, first_job=first_job, nodes="\n".join(nodes)))
    (folder / "gres.conf").write_text("".join(f"Name=gpu File=/dev/{device}\n" for device in DEVICES))
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
    """One daemon, whose output goes to ``NAME.out``; the block's end ends it, by its process id."""
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
