"""Batch scripts on a real two-node SLURM: ranks, environments, and how jobs end."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from sample_datasets import cifar10
from slurm import CORES, DEVICES, SEARCHED, Cluster, NoSlurmError, two_nodes

from ddpbench.cli.files import load_with_shards
from ddpbench.record.environment import Transport
from ddpbench.record.errors import UsageError
from ddpbench.record.io import load
from ddpbench.record.record import Job, Record

ROOT = Path(__file__).parents[2]
SINGLE, MULTI, SWEEP = "launch/slurm_single_node.sbatch", "launch/slurm_multi_node.sbatch", "launch/slurm_sweep.sbatch"
RESNET = ["resnet18", "--device", "cpu", "--image-size", "32", "-b", "4", "--rounds", "2", "--steps", "2", "--warmup", "1"]
LIGHT = ["gemm-mlp", "--device", "cpu", "-b", "4", "--rounds", "1", "--steps", "2", "--warmup", "1"]
ENDLESS = ["misbehaving:fine", "--device", "cpu", "--steps", "20", "--rounds", "100000", "--warmup", "1"]
CELLS = ["disc-mlp-3", "--lr", "0.05,0.1", "-b", "50,100", "--device", "cpu", "--warmup", "1"]
A_TASK_A_NODE = ["--array=1-2", "--gpus-per-node=1", "--cpus-per-task=1"]
A_RANK_A_NODE = ["--nodes=2", "--gpus-per-node=1", "--cpus-per-task=1"]

pytestmark = pytest.mark.timeout(110)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        with two_nodes(tmp_path_factory.mktemp("slurm")) as nodes:
            yield nodes
    except NoSlurmError as reason:
        pytest.skip(str(reason))


def installed(folder: Path, python: str) -> Path:
    """An environment in ``folder`` that counts as installed, with the shell script ``python`` as its Python."""
    path = folder / "bin" / "python"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{python}\n")
    path.chmod(0o755)
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    (folder / "installed").write_text(f"{ROOT} {digest}  -\n")
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the Python that runs this test."""
    return installed(tmp_path_factory.mktemp("venv"), f'exec "{sys.executable}" "$@"')


@pytest.fixture
def sbatch(cluster: Cluster, environment: Path, tmp_path: Path) -> Callable[..., int]:
    """``sbatch(*words, **more)`` submits from the repository root with extra variables; the record goes to ``tmp_path``."""
    variables = {"DDPBENCH_VENV": str(environment), "PYTHONPATH": str(ROOT / "tests" / "support"), "OMP_NUM_THREADS": "1"}
    return lambda *words, **more: cluster.submit(*words, "-o", str(tmp_path), cwd=ROOT, **{**variables, **more})


def record(folder: Path) -> Record | None:
    """The only record in ``folder``; None if it does not exist yet."""
    try:
        (path,) = folder.glob("*.json")
        (only,) = load(path).records
        return only
    except (ValueError, UsageError):
        return None


@pytest.fixture
def finished(tmp_path: Path) -> Callable[[], Record]:
    """``finished()`` returns the record of the job, which must exist."""

    def read() -> Record:
        found = record(tmp_path)
        assert found is not None
        return found

    return read


@pytest.fixture
def under_way(sbatch: Callable[..., int], cluster: Cluster, tmp_path: Path) -> Callable[..., int]:
    """``under_way(*flags, words=)`` starts an endless run on both nodes and returns its job once the first round is on disk."""

    def go(*flags: str, words: Sequence[str] = ()) -> int:
        job = sbatch(*A_RANK_A_NODE, *flags, MULTI, *ENDLESS, *words)
        cluster.until(job, lambda: bool((started := record(tmp_path)) and started.rounds), timeout=60)
        return job

    return go


# ranks


@pytest.mark.slow
def test_single_node_job_runs_one_rank_per_gpu(sbatch: Callable[..., int], cluster: Cluster, finished: Callable[[], Record]) -> None:
    job = sbatch("--gpus-per-node=0", "--gres=gpu:2", SINGLE, *RESNET)
    assert cluster.wait(job, 100) == "COMPLETED", cluster.log(job)
    run = finished()
    assert (run.status, len(run.rounds)) == ("ok", 2)
    environment = run.environment
    assert (environment.launcher, environment.backend, environment.world_size, environment.nodes) == ("slurm", "gloo", 2, 1)
    assert environment.variables["SLURM_JOB_ID"] == str(job)


@pytest.mark.slow
def test_two_node_job_writes_one_record_with_traces_of_all_ranks(
    sbatch: Callable[..., int], cluster: Cluster, finished: Callable[[], Record]
) -> None:
    job = sbatch(*A_RANK_A_NODE, MULTI, *RESNET)
    assert cluster.wait(job, 100) == "COMPLETED", cluster.log(job)
    run = finished()
    assert (run.status, run.environment.launcher, run.environment.nodes) == ("ok", "slurm", 2)
    assert [(place.rank, place.host, place.usable_cores) for place in run.environment.placements] == [(0, "n1", 1), (1, "n2", 1)]
    assert run.environment.transport == [Transport(via="TCP", inter_node=True)]
    assert [[trace.rank for trace in timed.traces] for timed in run.rounds] == [[0, 1], [0, 1]]
    assert cluster.log(job).count("images/s   (") == 1, "one report"
    assert cluster.processes(job) == []


@pytest.mark.slow
def test_job_without_flags_uses_all_gpus_and_cores_of_its_nodes(
    sbatch: Callable[..., int], cluster: Cluster, finished: Callable[[], Record]
) -> None:
    job = sbatch(MULTI, *LIGHT)
    assert cluster.wait(job, 100) == "COMPLETED", cluster.log(job)
    environment, gpus = finished().environment, len(DEVICES)
    ranks = [(n, f"n{1 + n // gpus}", n % gpus) for n in range(2 * gpus)]
    assert [(place.rank, place.host, place.local_rank) for place in environment.placements] == ranks
    assert environment.variables["SLURM_CPUS_ON_NODE"] == str(CORES)


@pytest.mark.slow
@pytest.mark.parametrize("share", [[], ["--oversubscribe", "--mem=1"]], ids=["whole node", "part of a node"])
def test_requested_gpus_and_cores_replace_those_of_the_node(
    share: list[str], sbatch: Callable[..., int], cluster: Cluster, finished: Callable[[], Record]
) -> None:
    job = sbatch("--gpus-per-node=1", "--cpus-per-task=16", *share, SINGLE, *LIGHT)
    assert cluster.wait(job, 100) == "COMPLETED", cluster.log(job)
    environment = finished().environment
    assert (environment.world_size, environment.variables["SLURM_CPUS_ON_NODE"]) == (1, "16")
    assert cluster.allocated_cores(job) == (16 if share else CORES)


def test_job_without_gpus_is_refused_on_a_cluster_with_gpus(sbatch: Callable[..., int], cluster: Cluster) -> None:
    """A shared job gets only what it requests, as does a job on a node without GPUs."""
    error, hint = refusal(cluster, sbatch("--oversubscribe", SINGLE, *RESNET))
    assert error == "ddpbench: error: the job has no GPU, but the cluster has"
    assert "--gpus-per-node=0" in hint


@pytest.mark.slow
def test_cpu_ranks_run_if_no_gpu_is_requested(sbatch: Callable[..., int], cluster: Cluster, finished: Callable[[], Record]) -> None:
    job = sbatch("--gpus-per-node=0", SINGLE, *LIGHT)
    assert cluster.wait(job, 100) == "COMPLETED", cluster.log(job)
    assert finished().environment.world_size == 2


@pytest.mark.slow
def test_gpus_that_slurm_does_not_manage_are_counted_with_nvidia_smi(environment: Path, tmp_path: Path) -> None:
    tool, records = tmp_path / "nvidia-smi", tmp_path / "records"
    tool.write_text("#!/bin/sh\nseq --format='GPU %.0f: NVIDIA H200' 0 2\n")
    tool.chmod(0o755)
    variables = {"DDPBENCH_VENV": str(environment), "OMP_NUM_THREADS": "1", "PATH": f"{tmp_path}:{SEARCHED}"}
    (tmp_path / "slurm").mkdir()
    try:
        with two_nodes(tmp_path / "slurm", devices=()) as cluster:
            job = cluster.submit(SINGLE, *LIGHT, "-o", str(records), cwd=ROOT, **variables)
            assert cluster.wait(job, 90) == "COMPLETED", cluster.log(job)
    except NoSlurmError as reason:
        pytest.skip(str(reason))
    run = record(records)
    assert run is not None
    assert run.world_size == 3


@pytest.mark.slow
@pytest.mark.parametrize("script", [SINGLE, MULTI], ids=["one node", "two nodes"])
def test_watched_script_runs_in_the_folder_of_the_job(script: str, cluster: Cluster, environment: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text((ROOT / "tests" / "support" / "scripts" / "train.py").read_text())
    variables = {"DDPBENCH_VENV": str(environment), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    resources = A_RANK_A_NODE if script == MULTI else ["--gpus-per-node=2", "--cpus-per-task=2"]
    words = ["watch", "--steps", "50", "-o", "records", "train.py", "--epochs", "20", "--losses", "--save"]
    job = cluster.submit(*resources, f"--chdir={tmp_path}", script, *words, cwd=ROOT, **variables)
    assert cluster.wait(job, 100) == "COMPLETED", cluster.log(job)
    run = record(tmp_path / "records")
    assert run is not None
    assert (run.status, run.environment.launcher, run.world_size) == ("ok", "slurm", 2)
    assert run.environment.nodes == (2 if script == MULTI else 1)
    assert (run.script and run.script.batches, {trace.rank for timed in run.rounds for trace in timed.traces}) == (50, {0, 1})
    assert cluster.log(job).count("loss 0x") == 2 * 50
    assert cluster.log(job).count("ddpbench watch  train.py") == 1
    assert (tmp_path / "model.pt").exists()
    assert cluster.processes(job) == []


@pytest.mark.slow
def test_diagnosed_script_gets_one_page_for_two_nodes(cluster: Cluster, environment: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text((ROOT / "tests" / "support" / "scripts" / "train.py").read_text())
    variables = {"DDPBENCH_VENV": str(environment), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = ["diagnose", "--time-limit", "30", "-o", "records", "train.py", "--epochs", "100000", "--save"]
    job = cluster.submit(*A_RANK_A_NODE, f"--chdir={tmp_path}", MULTI, *words, cwd=ROOT, **variables)
    assert cluster.wait(job, 110) == "COMPLETED", cluster.log(job)
    (path,) = (tmp_path / "records").glob("*.json")
    run, log = load(path).records[0], cluster.log(job)
    assert (run.status, run.environment.nodes, run.world_size) == ("ok", 2, 2)
    assert run.verdict is not None
    assert log.count("ddpbench diagnose  train.py") == 1
    assert log.count("its losses mean nothing") == 1
    assert not (tmp_path / "model.pt").exists(), "nothing that it writes reaches the user's files"
    assert cluster.processes(job) == []


def parts(folder: Path) -> list[Job]:
    """Records written by array tasks so far, in the order of the shards."""
    return [load(path) for path in sorted((folder / "cpu").glob("*-part-*.json"))]


@pytest.mark.slow
def test_array_tasks_measure_every_sweep_point_once(sbatch: Callable[..., int], cluster: Cluster, tmp_path: Path) -> None:
    job = sbatch(*A_TASK_A_NODE, SWEEP, *CELLS, "--epochs", "1", "--rounds", "2")
    assert cluster.wait(job, 100) == "COMPLETED", cluster.log(job)
    first, second = parts(tmp_path)
    assert [(record.config.batch_size, record.config.lr) for record in first.records] == [(50, 0.05), (100, 0.05)]
    assert [(record.config.batch_size, record.config.lr) for record in second.records] == [(50, 0.1), (100, 0.1)]
    assert {record.environment.placements[0].host for each in (first, second) for record in each.records} == {"n1", "n2"}
    path, sweep = load_with_shards(tmp_path / "cpu" / "sweep-disc-mlp-3-batch-size-lr-part-1-of-2.json")
    assert [(record.config.batch_size, record.config.lr) for record in sweep.records] == [(50, 0.05), (50, 0.1), (100, 0.05), (100, 0.1)]
    assert [(record.status, len(record.rounds)) for record in sweep.records] == [("ok", 2)] * 4
    report = subprocess.run([sys.executable, "-m", "ddpbench", "report", tmp_path], capture_output=True, text=True, timeout=60)
    assert report.stdout.endswith(f"{path}\n")


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_cancelled_array_is_resumed(sbatch: Callable[..., int], cluster: Cluster, tmp_path: Path) -> None:
    words = [*A_TASK_A_NODE, SWEEP, *CELLS, "--epochs", "20", "--rounds", "15"]
    job = sbatch(*words)
    cluster.until(job, lambda: sum(bool(each.records[0].rounds) for each in parts(tmp_path)) == 2, timeout=60)
    cluster.cancel(job)
    assert cluster.wait(job, 30) == "CANCELLED"
    assert cluster.processes(job) == []
    before = parts(tmp_path)
    assert {record.status for each in before for record in each.records} == {"interrupted"}
    job = sbatch(*words)
    assert cluster.wait(job, 120) == "COMPLETED", cluster.log(job)
    for kept, gone_on in zip(before, parts(tmp_path), strict=True):
        for old, new in zip(kept.records, gone_on.records, strict=True):
            assert (new.status, sorted(timed.index for timed in new.rounds)) == ("ok", list(range(15)))
            assert new.rounds[: len(old.rounds)] == old.rounds, "finished rounds are unchanged"


@pytest.mark.slow
def test_submission_from_another_folder_prints_a_hint(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit(str(ROOT / SINGLE), *RESNET, cwd=tmp_path)
    assert cluster.wait(job, 20) == "FAILED"
    assert cluster.log(job).splitlines() == [
        f"ddpbench: error: no launch/slurm.sh in {tmp_path}",
        "hint: submit from the root of the clone",
    ]


# the environment

INSTALL = (
    "hint: run bash launch/install.sh on the login node; "
    "or set DDPBENCH_VENV=/path to another one, or DDPBENCH_INSTALL=1 to install in the job"
)


def refusal(cluster: Cluster, job: int) -> list[str]:
    """The log of ``job``, which must be rejected within seconds."""
    assert cluster.wait(job, 20) == "FAILED"
    assert cluster.exit_code(job) == 2
    return cluster.log(job).splitlines()


def test_job_without_an_environment_names_the_install_command_once(sbatch: Callable[..., int], cluster: Cluster, tmp_path: Path) -> None:
    job = sbatch(*A_RANK_A_NODE, MULTI, *RESNET, DDPBENCH_VENV=str(tmp_path / "none"))
    assert refusal(cluster, job) == [f"ddpbench: error: no environment in {tmp_path / 'none'}", INSTALL]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_environment_missing_on_one_node_is_reported_once_with_the_node(
    sbatch: Callable[..., int], cluster: Cluster, tmp_path: Path
) -> None:
    venv = installed(tmp_path, '[ "$SLURMD_NODENAME" = n1 ]')
    error, hint = refusal(cluster, sbatch(*A_RANK_A_NODE, MULTI, *RESNET, DDPBENCH_VENV=str(venv)))
    assert error == f"ddpbench: error: {venv}/bin/python does not run on n2"
    assert "DDPBENCH_VENV=/shared/venv bash launch/install.sh" in hint


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_job_installs_its_environment_on_request(
    sbatch: Callable[..., int], cluster: Cluster, finished: Callable[[], Record], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A real install around this Python's torch and packages: pip only has to build ddpbench itself."""
    venv = tmp_path_factory.mktemp("install") / "venv"
    job = sbatch(*A_RANK_A_NODE, MULTI, *RESNET, DDPBENCH_INSTALL="1", DDPBENCH_VENV=str(venv), PYTHON=sys.executable)
    assert cluster.wait(job, 200) == "COMPLETED", cluster.log(job)
    assert "keeping the installed torch " in cluster.log(job)
    assert (venv / "installed").exists()
    assert finished().status == "ok"


# how jobs end


@pytest.mark.slow
def test_scancel_keeps_finished_rounds_and_does_not_blame_loader_workers(
    under_way: Callable[..., int], cluster: Cluster, finished: Callable[[], Record], tmp_path: Path
) -> None:
    job = under_way(words=["--data-dir", str(cifar10(tmp_path / "cifar")), "-b", "4", "-j", "2"])
    cluster.cancel(job)
    assert cluster.wait(job, 30) == "CANCELLED"
    assert cluster.log(job).count("ddpbench: error: ") == cluster.log(job).count("ddpbench: error: interrupted by SIGTERM, ") == 1
    run = finished()
    assert run.status == "interrupted"
    assert run.rounds
    assert cluster.processes(job) == []


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_time_limit_warning_keeps_finished_rounds(under_way: Callable[..., int], cluster: Cluster, finished: Callable[[], Record]) -> None:
    """The scripts request the signal 60 s ahead; here it comes once a round is finished."""
    assert all("#SBATCH --signal=USR1@60\n" in (ROOT / script).read_text() for script in (SINGLE, MULTI, SWEEP))
    job = under_way()
    cluster.cancel(job, "--signal=USR1")
    assert cluster.wait(job, 100) == "FAILED"
    assert cluster.log(job).count("ddpbench: error: interrupted by SIGUSR1, ") == 1
    run = finished()
    assert run.status == "interrupted"
    assert run.rounds
    assert cluster.processes(job) == []


@pytest.mark.slow
def test_lost_first_node_is_reported_by_the_second(under_way: Callable[..., int], cluster: Cluster, finished: Callable[[], Record]) -> None:
    """Killing its only rank also ends torchrun and the store, where ranks report failures."""
    job = under_way()
    cluster.rank(job, 0).kill()
    assert cluster.wait(job, 30) == "FAILED"
    assert cluster.log(job).count("ddpbench: error: the processes on n1 ended unexpectedly: rank 0") == 1, cluster.log(job)
    run = finished()
    assert run.status == "failed"
    assert run.rounds
    assert cluster.processes(job) == []
