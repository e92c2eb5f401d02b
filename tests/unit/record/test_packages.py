"""A missing package is named, with the command that installs it and keeps the installed torch."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from ddpbench.record import packages
from ddpbench.record.errors import UsageError
from ddpbench.record.names import import_object
from ddpbench.record.packages import (
    OLDEST_TORCH,
    dali_package,
    install_command,
    is_installed,
    refuse_old_torch,
    require_modules,
    require_torch,
)


def install_torch(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Let ``version`` be that of the installed torch, by the metadata of its wheel."""
    info = folder / f"torch-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(folder))
    assert metadata.version("torch") == version


@pytest.mark.parametrize(("module", "found"), [("json", True), ("json.decoder", True), ("json.nothing", False), ("nothing.at_all", False)])
def test_module_is_installed_if_it_can_be_found(module: str, found: bool) -> None:
    assert is_installed(module) == found


def test_first_missing_module_is_reported() -> None:
    require_modules("a report", "json", "rich")
    with pytest.raises(UsageError) as refused:
        require_modules("a report", "json", "nothing", "nowhere")
    assert refused.value.message == "a report needs nothing, which is not installed"
    assert refused.value.hint == install_command("nothing") == "pip install nothing"


@pytest.mark.parametrize(
    ("version", "command"),
    [
        ("2.14.1", "pip install torchvision 'torch==2.14.1'"),
        ("2.13.0+cpu", "pip install torchvision 'torch==2.13.0+cpu' --extra-index-url https://download.pytorch.org/whl/cpu"),
        ("2.9.1+cu128", "pip install torchvision 'torch==2.9.1+cu128' --extra-index-url https://download.pytorch.org/whl/cu128"),
    ],
)
def test_torchvision_is_installed_for_the_build_of_the_installed_torch(
    version: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_torch(tmp_path, monkeypatch, version)
    assert install_command("torchvision") == command
    assert install_command("accelerate") == "pip install accelerate"


def test_dali_is_installed_for_the_cuda_version_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for line, package in (("'12.8'", "nvidia-dali-cuda120"), ("'13.0'", "nvidia-dali-cuda130"), ("None", "nvidia-dali-cuda130")):
        (folder / "version.py").write_text(f"debug = False\ncuda: Optional[str] = {line}\n")
        assert install_command("nvidia.dali") == f"pip install {package}"
    assert dali_package("12.6") == "nvidia-dali-cuda120"


@pytest.mark.parametrize("version", ["2.6.0", "2.10.0+cpu", "3.0.1", "2.14.0a0+git12ab"])
def test_torch_of_the_oldest_version_and_newer_is_accepted(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_torch(tmp_path, monkeypatch, version)
    require_torch("training")


@pytest.mark.parametrize("version", ["2.5.1+cu124", "1.13.0"])
def test_older_torch_is_refused(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_torch(tmp_path, monkeypatch, version)
    with pytest.raises(UsageError, match=f"torch {version.replace('+', '.')} is too old: ddpbench needs 2.6 or newer"):
        refuse_old_torch()


def test_missing_torch_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "is_installed", lambda module: module != "torch")
    with pytest.raises(UsageError) as refused:
        require_torch("workload 'resnet18'")
    assert refused.value.message == "workload 'resnet18' needs torch, which is not installed"
    assert refused.value.hint == "pip install torch"


def test_user_module_without_an_optional_package_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_that_needs_torchvision.py").write_text("import torchvision\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(UsageError) as refused:
        import_object("module_that_needs_torchvision:load")
    assert refused.value.message == "'module_that_needs_torchvision:load' needs torchvision, which is not installed"
    assert refused.value.hint == install_command("torchvision")


def test_launch_scripts_extra_and_documents_name_the_oldest_torch() -> None:
    root, oldest = Path(__file__).parents[3], ".".join(map(str, OLDEST_TORCH))
    assert f"OLDEST = {OLDEST_TORCH}" in (root / "launch" / "present.py").read_text()
    assert f'"torch>={oldest}"' in (root / "pyproject.toml").read_text()
    assert f"torch {oldest} or newer" in (root / "README.md").read_text()
