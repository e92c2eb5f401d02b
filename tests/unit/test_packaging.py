"""Wheel and source distribution: requirements, and ddpbench installed from them, without torch, beside it, and with extras."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest
from environments import active, environment_variables, make_environment, pip

from ddpbench.record.io import load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
TRAIN, PLOT = {"torch", "torchvision", "accelerate"}, {"matplotlib"}
SMALL = "--device cpu -b 2 --steps 3 --rounds 2 --warmup 1"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the source distribution of this tree, and of the wheel that ``python -m build`` makes from it."""
    tree, built = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT / "ddpbench", tree / "ddpbench", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(built), str(tree)]
    subprocess.run(build, check=True, capture_output=True, env=environment_variables(), timeout=200)
    return built


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``bin`` of an environment that was empty, with the wheel."""
    return make_environment(tmp_path_factory.mktemp("bare"), wheel)


@pytest.fixture(scope="module")
def torch_only(built: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``bin`` of an environment that held torch, with the source distribution."""
    (source,) = built.glob("*.tar.gz")
    return make_environment(tmp_path_factory.mktemp("torch-only"), wheel, present=["torch", "setuptools"], file=source)


@pytest.fixture(scope="module")
def with_train(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``bin`` of an environment with the extra ``train``."""
    return make_environment(tmp_path_factory.mktemp("with-train"), wheel, "train")


def ddpbench(binaries: Path, folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run ``ddpbench`` in ``folder``. RECORDS in ``line`` stands for a folder of records."""
    words = shlex.split(line.replace("RECORDS", shlex.quote(str(ROOT / "results" / "h200"))))
    command = [str(binaries / "ddpbench"), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment_variables(), timeout=200)


def test_wheel_has_all_files_of_the_package(wheel: Path) -> None:
    in_tree = {str(path.relative_to(ROOT)) for path in (ROOT / "ddpbench").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {name for name in ZipFile(wheel).namelist() if not re.match(r"[^/]*\.dist-info/", name)} == in_tree


def test_torch_is_required_by_the_extra_train_only_and_matplotlib_by_plot(wheel: Path) -> None:
    (distribution,) = metadata.distributions(path=[str(wheel)])
    extras, requires = distribution.metadata.get_all("Provides-Extra") or [], distribution.requires or []
    always = {each.name for each in active(requires, [])}
    assert {extra: {each.name for each in active(requires, [extra])} & (TRAIN | PLOT) for extra in ["", *extras]} == {
        extra: {"train": TRAIN, "plot": PLOT}.get(extra, set()) for extra in ["", *extras]
    }
    assert {each.name for each in active(requires, ["train"])} - always == TRAIN
    assert {each.name for each in active(requires, ["plot"])} - always == PLOT


def test_every_torch_from_2_6_on_satisfies_the_extra_train(wheel: Path) -> None:
    (distribution,) = metadata.distributions(path=[str(wheel)])
    (torch,) = (each for each in active(distribution.requires or [], ["train"]) if each.name == "torch")
    accepted = {version: torch.specifier.contains(version) for version in ("2.5.1", "2.6.0", "2.9.1+cu128", "2.14.1", "3.0.0")}
    assert accepted == {"2.5.1": False, "2.6.0": True, "2.9.1+cu128": True, "2.14.1": True, "3.0.0": True}


def test_command_of_the_hint_installs_torchvision_and_keeps_torch(torch_only: Path, tmp_path: Path) -> None:
    shown = ddpbench(torch_only, tmp_path, "env").stdout
    command = re.search(r"torchvision +missing: pip (install .*)", shown)
    assert command
    planned = pip(torch_only, *shlex.split(command[1]), "--dry-run", uses_index=True).partition("Would install")[2].split()
    assert [each.rpartition("-")[0] for each in planned if each.startswith(("torch", "nvidia"))] == ["torchvision"]


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("--help", "Find what a PyTorch training waits for"),
        ("list", "vgg16-cifar10-batch-sweep"),
        ("env", r"torch +missing: pip install torch *\n"),
        ("report RECORDS/resnet18-1gpu-torch-loader.json", "ddpbench  resnet18"),
        ("report RECORDS/resnet18-1gpu-torch-loader.json --format json", '"resnet18"'),
        ("report RECORDS/resnet18-1gpu-torch-loader.json --format csv", "resnet18,"),
        ("report RECORDS/resnet18-1gpu-torch-loader.json --format markdown", "resnet18"),
        ("whatif RECORDS/diagnose-resnet50-4gpu.json --workers 4", "workers"),
        ("reproduce", "disc-mlp-cpu-vs-gpu"),
    ],
)
def test_offline_commands_need_no_torch(line: str, printed: str, bare: Path, tmp_path: Path) -> None:
    done = ddpbench(bare, tmp_path, line)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(printed, done.stdout)


@pytest.mark.parametrize(
    ("line", "error", "package"),
    [
        ("resnet18 --device cpu", "workload 'resnet18' needs torchvision", "torchvision"),
        ("diagnose resnet18 --device cpu", "workload 'resnet18' needs torchvision", "torchvision"),
        ("mnist-cnn --device cpu --loader torch", "loader 'torch' needs torchvision", "torchvision"),
        ("mnist-cnn --device cpu --loader torch-uint8", "loader 'torch-uint8' needs torchvision", "torchvision"),
        ("mnist-cnn --device cpu --loader replay", "loader 'replay' needs torchvision", "torchvision"),
        ("mnist-cnn --device cpu --loader tensor --download --data-dir there", "--download needs torchvision", "torchvision"),
        ("mnist-cnn --device cpu --engine ddp,accelerate", "engine 'accelerate' needs accelerate", "accelerate"),
        ("plot RECORDS/reproduce-vgg16-cifar10-batch-sweep.json", "plot needs matplotlib", "matplotlib"),
        ("make-data imagenet there --images 8", "a generated dataset needs PIL", "pillow"),
    ],
)
def test_missing_package_is_named_with_the_command_that_installs_it(
    line: str, error: str, package: str, torch_only: Path, tmp_path: Path
) -> None:
    done = ddpbench(torch_only, tmp_path, line)
    expected = rf"ddpbench: error: {error}, which is not installed\nhint: pip install {package}( 'torch==\S+')?\n"
    assert done.returncode == 2
    assert re.fullmatch(expected, re.sub(r"^ddpbench: note: .*\n", "", done.stderr))


@pytest.mark.parametrize(
    ("line", "feature"),
    [
        ("resnet18 --gpus 2", "workload 'resnet18'"),
        ("diagnose mnist-cnn", "workload 'mnist-cnn'"),
        ("reproduce vgg16-cifar10-batch-sweep", "a published experiment"),
        ("crossover disc-mlp", "workload 'disc-mlp'"),
        ("watch --gpus 2 train.py", "--gpus"),
        ("diagnose --gpus 2 train.py", "--gpus"),
    ],
)
def test_missing_torch_is_reported(line: str, feature: str, bare: Path, tmp_path: Path) -> None:
    done = ddpbench(bare, tmp_path, line)
    expected = f"ddpbench: error: {feature} needs torch, which is not installed\nhint: pip install torch\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


@pytest.mark.parametrize("command", ["watch", "diagnose"])
def test_script_that_needs_torch_fails_by_itself_without_it(command: str, bare: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    done = ddpbench(bare, tmp_path, f"{command} train.py")
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'torch'" in done.stderr
    assert "did not import torch: there is nothing to report" in done.stderr


@pytest.mark.parametrize("words", ["mnist-cnn --gpus 2 --loader tensor --validate", "vgg16-cifar10"])
def test_workloads_of_ddpbench_train_with_torch_only(words: str, torch_only: Path, tmp_path: Path) -> None:
    done = ddpbench(torch_only, tmp_path, f"{words} {SMALL}")
    assert done.returncode == 0, done.stderr


def test_script_is_watched_with_torch_only(torch_only: Path, tmp_path: Path) -> None:
    done = ddpbench(torch_only, tmp_path, f"watch --gpus 2 -o runs {ROOT / 'tests' / 'support' / 'scripts' / 'train.py'} --epochs 3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("weights ") == 2
    (path,) = (tmp_path / "runs").glob("*.json")
    (record,) = load(path).records
    assert (record.status, record.world_size, record.environment.software.torchvision) == ("ok", 2, None)


def test_main_job_runs_with_the_extra_train(with_train: Path, tmp_path: Path) -> None:
    assert pip(with_train, "check") == "No broken requirements found.\n"
    done = ddpbench(with_train, tmp_path, f"resnet18 --amp --gpus 2 --image-size 32 {SMALL}")
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "results" / "runs").rglob("*.json")
    (record,) = load(path).records
    assert (record.status, record.world_size, record.config.precision) == ("ok", 2, "amp-bf16")
    assert record.environment.software.torchvision
