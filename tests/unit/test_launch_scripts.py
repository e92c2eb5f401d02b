"""Launch scripts: clean, correct decisions, signal forwarding. ``tests/slurm`` tests what needs SLURM."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import secrets_in_commands as secrets

from ddpbench.record.errors import UsageError
from ddpbench.record.io import load
from ddpbench.record.record import Job

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "launch"
SCRIPTS = [*sorted(LAUNCH.glob("*.sh")), *sorted(LAUNCH.glob("*.sbatch")), ROOT / ".ci" / "run"]
BASH = shutil.which("bash") or "bash"
TRAIN = ROOT / "tests" / "support" / "scripts" / "train.py"
TINY = ["misbehaving:fine", "--steps", "4", "--rounds", "1", "--warmup", "1"]


def bash(script: str, *words: str, source: str = "setup.sh", **variables: str) -> str:
    """Output of ``script`` after sourcing ``source``. Raises CalledProcessError if it fails."""
    environment = {**os.environ, **variables}
    line = f'set -euo pipefail; . "{LAUNCH / source}"; {script}'
    done = subprocess.run([BASH, "-c", line, "bash", *words], check=True, capture_output=True, text=True, env=environment, timeout=60)
    return done.stdout.strip()


# every script


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shellcheck_reports_nothing() -> None:
    done = subprocess.run(["shellcheck", "--external-sources", *map(str, SCRIPTS)], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == ""
    assert done.returncode == 0


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_bash_parses_the_script(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=60)


# decisions of setup.sh


@pytest.mark.parametrize(("typed", "masked"), secrets.COMMANDS)
def test_logged_command_masks_the_same_secrets_as_a_record(typed: str, masked: str) -> None:
    assert shlex.split(bash('masked "$@"', *typed.split())) == masked.split()


@pytest.mark.parametrize(
    ("visible", "gpus"), [("", 0), ("-1", 0), ("NoDevFiles", 0), ("0", 1), ("0,1,2,3", 4), ("GPU-8a1b,MIG-9c2d", 2)], ids=str
)
def test_visible_gpus_are_counted(visible: str, gpus: int) -> None:
    assert bash("count_gpus", CUDA_VISIBLE_DEVICES=visible) == str(gpus)


@pytest.mark.parametrize(
    ("cuda", "driver", "machine", "extra"),
    [
        ("13.0", "580", "Linux x86_64", "dali-cuda13"),
        ("12.8", "580", "Linux x86_64", "dali-cuda12"),
        ("", "580", "Linux x86_64", "dali-cuda13"),
        ("", "550", "Linux x86_64", "dali-cuda12"),
        ("", "0", "Linux x86_64", "dali-cuda13"),
        ("11.8", "470", "Linux x86_64", ""),
        ("13.0", "580", "Linux aarch64", ""),
        ("", "0", "Darwin arm64", ""),
    ],
)
def test_matching_dali_extra_is_chosen(cuda: str, driver: str, machine: str, extra: str) -> None:
    assert bash('choose_dali "$@"', cuda, driver, machine) == extra


def test_too_old_python_is_skipped(tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    assert bash("find_python", PYTHON=sys.executable) == sys.executable
    assert bash("find_python", PYTHON=str(old)) != str(old)


def test_missing_python_suggests_apt_get_install(tmp_path: Path) -> None:
    (tmp_path / "dirname").symlink_to(str(shutil.which("dirname")))
    with pytest.raises(subprocess.CalledProcessError) as refused:
        bash("find_python", PATH=str(tmp_path), PYTHON="")
    assert refused.value.returncode == 2
    assert re.fullmatch(r"ddpbench: error: no Python .*\nhint: .*apt-get install -y python3 python3-venv.*\n", refused.value.stderr)


def test_installed_torch_is_pinned(tmp_path: Path) -> None:
    held = tmp_path / "held.txt"
    facts = bash('constrain "$@"', sys.executable, str(held), "0")
    assert held.read_text().splitlines() == [f"{package}=={metadata.version(package)}" for package in ("torch", "torchvision")]
    assert f"present_torch={metadata.version('torch')}" in facts


def test_old_driver_limits_the_torch_version(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=60)
    for driver, line in (("0", ""), ("550", "torch<2.11"), ("580", "")):
        facts = bash('constrain "$@"', str(bare / "bin" / "python"), str(tmp_path / "held.txt"), driver)
        assert facts.split() == ["present_torch=''", "present_cuda=''", "present_site=''"]
        assert (tmp_path / "held.txt").read_text().strip() == line


@pytest.mark.slow
def test_install_keeps_an_installed_torch(tmp_path: Path) -> None:
    script = """
        facts=$(constrain "$PYTHON" "$venv/constraints.txt" 0)
        eval "$facts"
        make_venv "$PYTHON" --system-site-packages
        show_present_torch "$present_site"
        "$venv/bin/python" -m pip install --dry-run --constraint "$venv/constraints.txt" --editable "${root}[train,plot]"
        """
    (tmp_path / "venv").mkdir()
    printed = bash(script, PYTHON=sys.executable, DDPBENCH_VENV=str(tmp_path / "venv"))
    planned = re.findall(r"[\w.]+(?:-[a-z][\w.]*)*-(?=\d)", printed.partition("Would install")[2])
    assert "ddpbench-" in planned
    assert not {"torch-", "torchvision-"} & set(planned)
    assert "Requirement already satisfied: torch>=" in printed


@pytest.mark.slow
def test_frameworks_are_added_once_and_keep_the_torch_of_the_environment(tmp_path: Path) -> None:
    venv, report = tmp_path / "venv", tmp_path / "report.json"
    venv.mkdir()
    script = """
        facts=$(constrain "$PYTHON" "$venv/constraints.txt" 0)
        eval "$facts"
        make_venv "$PYTHON" --system-site-packages
        show_present_torch "$present_site"
        eval "$(declare -f pip_install | sed 's/^pip_install/install/')"
        pip_install() { echo installing; install --dry-run --report "$REPORT" "$@"; }
        prepare_frameworks
        prepare_frameworks
        """
    assert bash(script, PYTHON=sys.executable, DDPBENCH_VENV=str(venv), REPORT=str(report)) == "installing"
    planned = {each["metadata"]["name"] for each in json.loads(report.read_text())["install"]}
    assert "ddpbench" in planned
    assert not {"torch", "torchvision"} & planned
    pins = (venv / "present-torch.txt").read_text().splitlines()
    assert pins == [f"{package}=={metadata.version(package)}" for package in ("torch", "torchvision")]


@pytest.mark.parametrize(
    ("words", "installs", "processes"),
    [([], "", 2), (["tests/unit", "-x"], "", 2), (["-m", "cuda"], "", 1), (["tests/unit", "-m", "slow", "-x"], "frameworks ", 1)],
    ids=str,
)
def test_arguments_choose_what_is_installed_and_how_many_processes_test(
    words: list[str], installs: str, processes: int, tmp_path: Path
) -> None:
    (chosen,) = re.findall(r"^case .*?^esac$", (LAUNCH / "test.sh").read_text(), re.MULTILINE | re.DOTALL)
    script = f'prepare_frameworks() {{ printf "frameworks "; }}; {chosen}; echo "$*"'
    several = ["-n", str(processes), "--dist", "loadfile"] if processes > 1 else []
    assert bash(script, *words, DDPBENCH_VENV=str(tmp_path)) == installs + " ".join([*several, *words])


def test_second_install_does_nothing(tmp_path: Path) -> None:
    bash('current_stamp >"$venv/installed-test"; prepare test', DDPBENCH_VENV=str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["installed-test"]


def test_environment_is_stale_when_pyproject_toml_has_changed(tmp_path: Path) -> None:
    script = 'venv_state; current_stamp >"$venv/installed"; venv_state; echo another >"$venv/installed"; venv_state'
    assert bash(script, DDPBENCH_VENV=str(tmp_path)).split() == ["missing", "current", "stale"]


def run_install_script(venv: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DDPBENCH_VENV": str(venv), **variables}
    return subprocess.run([BASH, str(LAUNCH / "install.sh")], capture_output=True, text=True, env=environment, timeout=60)


def test_install_script_leaves_a_current_environment_unchanged(tmp_path: Path) -> None:
    bash('current_stamp >"$venv/installed"', DDPBENCH_VENV=str(tmp_path))
    done = run_install_script(tmp_path)
    assert done.returncode == 0
    assert done.stderr == f"setup: the environment in {tmp_path} is ready\n"
    assert [path.name for path in tmp_path.iterdir()] == ["installed"]


@pytest.mark.parametrize("name", ["clone", "a clone"])
def test_environment_of_another_clone_is_refused_until_that_is_gone(name: str, tmp_path: Path) -> None:
    clone, venv = tmp_path / name, tmp_path / "venv"
    shutil.copytree(LAUNCH, clone / "launch")
    venv.mkdir()
    stamp = f"{clone} digest  -\n"
    (venv / "installed").write_text(stamp)
    done = run_install_script(venv)
    assert done.returncode == 2
    error, hint = done.stderr.splitlines()
    assert error == f"ddpbench: error: the environment in {venv} belongs to the clone in {clone}"
    assert f"PYTHON={venv}/bin/python DDPBENCH_VENV=~/venv bash launch/install.sh" in hint
    assert [path.name for path in venv.iterdir()] == ["installed"]
    assert (venv / "installed").read_text() == stamp
    clone.rename(tmp_path / "moved")
    assert bash("require_own_environment; venv_state", DDPBENCH_VENV=str(venv)) == "stale"


def test_environment_of_the_same_clone_under_another_path_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(ROOT)
    (tmp_path / "installed").write_text(f"{tmp_path / 'link'} digest  -\n")
    assert bash("require_own_environment; venv_state", DDPBENCH_VENV=str(tmp_path)) == "stale"


def test_install_script_says_that_an_installed_environment_keeps_its_driver(tmp_path: Path) -> None:
    bash('current_stamp >"$venv/installed"', DDPBENCH_VENV=str(tmp_path))
    first, last = run_install_script(tmp_path, DDPBENCH_DRIVER="550").stderr.splitlines()
    assert first == f"setup: DDPBENCH_DRIVER has no effect on an installed environment; to apply it, remove {tmp_path} first"
    assert last == f"setup: the environment in {tmp_path} is ready"


@pytest.mark.parametrize(("named", "major"), [("550", "550"), ("550.54.15", "550"), ("none", "0")])
def test_driver_of_the_gpu_nodes_can_be_named(named: str, major: str) -> None:
    assert bash("driver_major", DDPBENCH_DRIVER=named) == major


# flags of local.sh


@pytest.mark.parametrize(
    ("words", "visible", "flags"),
    [
        ("resnet18 --amp", "0,1,2,3", "--gpus 4"),
        ("resnet18 --amp", "", "--gpus 2 --device cpu"),
        ("run resnet18", "0", "--gpus 1"),
        ("resnet18 --gpus 2", "0,1,2,3", ""),
        ("report", "0,1", ""),
        ("whatif RECORD --workers 4", "0,1", ""),
        ("list", "", ""),
        ("watch train.py --epochs 3", "0,1,2,3", "--gpus 4"),
        ("watch -m package.train --gpus 8", "", "--gpus 2"),
        ("watch --gpus 3 -q train.py", "0,1,2,3", ""),
        ("diagnose train.py --gpus 8", "0", "--gpus 1"),
        ("diagnose resnet18", "", "--gpus 2 --device cpu"),
        ("--help", "0", ""),
        ("", "0", ""),
    ],
)
def test_local_script_starts_one_rank_per_gpu_or_two_on_cpu(words: str, visible: str, flags: str) -> None:
    assert bash('ranks_flags "$@"', *words.split(), source="local.sh", CUDA_VISIBLE_DEVICES=visible) == flags


@pytest.mark.slow
def test_local_script_watches_a_script_with_its_own_arguments(launch: Callable[..., Any], tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    variables = {"DDPBENCH_VENV": str(tmp_path / "venv"), "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    bash('current_stamp >"$venv/installed"', **variables)
    words = ["watch", "--steps", "15", "-o", str(tmp_path), str(TRAIN), "--epochs", "3", "--losses"]
    done = launch([BASH, str(LAUNCH / "local.sh"), *words], env=variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("loss ") == 2 * 15
    job = record(tmp_path)
    assert job is not None
    assert (job.records[0].world_size, job.command[:4]) == (2, ["ddpbench", "watch", "--gpus", "2"])


# GPUs of a SLURM job


def count_unrequested_gpus(scontrol: str, **variables: str) -> str:
    """Output of the function in ``slurm.sh``, with the body ``scontrol`` instead of the program."""
    (function,) = re.findall(r"^count_unrequested_gpus\(\) {$.*?^}$", (LAUNCH / "slurm.sh").read_text(), re.MULTILINE | re.DOTALL)
    return bash(f"scontrol() {{ {scontrol}; }}; {function}; count_unrequested_gpus", **variables)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("JOB_GRES=gpu:8 Nodes=n[1-2] CPU_IDs=0-63 Mem=0 GRES=gpu:4(IDX:0-3) OverSubscribe=NO", "8"),
        ("JOB_GRES=gpu:6 Nodes=n1 GRES=gpu:4(IDX:0-3) Nodes=n2 GRES=gpu:2(IDX:0-1) OverSubscribe=NO", "6"),
        ("JOB_GRES=gpu:a100:6,gpu:3g.20gb:2,nic:4 OverSubscribe=NO TresPerNode=gres:nic:1", "8"),
        ("JOB_GRES=gpu:4 Nodes=n1 TresPerNode=gres:gpu:2", ""),
        ("JOB_GRES=gpu:4 Nodes=n1 TresPerNode=gres/gpu:a100:2", ""),
        ("JOB_GRES=gpu:4 Nodes=n1 TresPerJob=gres:gpu:2", ""),
        ("JOB_GRES=gpu:4 Nodes=n1 TresPerNode=gres:gpu:0", ""),
        ("JOB_GRES=(null) Nodes=n1 GRES= OverSubscribe=NO", "0"),
        ("NumNodes=1 OverSubscribe=NO", "0"),
    ],
)
def test_gpus_of_a_job_are_counted_unless_some_were_requested(shown: str, printed: str) -> None:
    """``shown`` is what ``scontrol --details show job`` prints; SLURM 22 separates by ``gres:``, later versions by ``gres/``."""
    assert count_unrequested_gpus('echo "JobId=7 $SHOWN"', SHOWN=shown, SLURM_JOB_ID="7") == printed


def test_gpus_of_an_array_task_are_counted_without_those_of_other_tasks() -> None:
    scontrol = '[ "${*: -1}" != 7_2 ] || echo "JobId=7 ArrayTaskId=2 JOB_GRES=gpu:4"'
    assert count_unrequested_gpus(scontrol, SLURM_JOB_ID="7", SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="2") == "4"


# one node of a SLURM job


@pytest.fixture
def node(start: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Start ``node.sh`` like srun on a node without GPUs, with this Python's environment instead of ``.venv``."""

    def go(*words: str, nodes: int = 1, number: int = 0) -> Any:
        slurm = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_NODEID": str(number)}
        names = {"SLURMD_NODENAME": f"n{number}", "HEAD_ADDRESS": "127.0.0.1"}
        here = {"DDPBENCH_VENV": sys.prefix, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT / "tests" / "support")}
        return start(["bash", str(LAUNCH / "node.sh"), *words, "-o", str(tmp_path)], env={**slurm, **names, **here})

    return go


def record(folder: Path) -> Job | None:
    """The only job in ``folder``; None if it does not exist yet."""
    try:
        (path,) = folder.glob("*.json")
        return load(path)
    except (ValueError, UsageError):
        return None


@pytest.mark.slow
def test_node_script_runs_torchrun_and_prints_the_command(node: Callable[..., Any], tmp_path: Path) -> None:
    done = node(*TINY).wait(100)
    assert done.returncode == 0, done.stderr
    (printed,) = re.findall(r"^node 0: (.*)$", done.stderr, re.MULTILINE)
    command = shlex.split(printed)
    assert command[1:3] == ["-m", "torch.distributed.run"]
    assert {"--max_restarts=0", "--nnodes=1", "--node_rank=0", "--nproc_per_node=2", "--master_addr=127.0.0.1"} <= set(command)
    assert f"--master_port={10000 + os.getpid() % 20000}" in command
    assert command[command.index("-m", 3) :] == ["-m", "ddpbench", *TINY, "-o", str(tmp_path)]
    job = record(tmp_path)
    assert job is not None
    assert (job.records[0].status, job.records[0].world_size) == ("ok", 2)
