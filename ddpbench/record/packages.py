"""Optional packages: which are installed, and how to install the others. No such command replaces torch or its CUDA libraries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from ddpbench.record.errors import UsageError

OLDEST_TORCH = (2, 6)
"""The oldest torch that ddpbench has been tried with."""

DALI_PACKAGES = ("nvidia-dali-cuda130", "nvidia-dali-cuda120")
"""NVIDIA DALI for CUDA 13 and for CUDA 12."""

PACKAGES: Mapping[str, str] = {
    "torch": "torch",
    "torchvision": "torchvision",
    "accelerate": "accelerate",
    "matplotlib": "matplotlib",
    "PIL": "pillow",
    "nvidia.dali": DALI_PACKAGES[0],
}
"""The package of each module that ddpbench imports and does not require."""

PYTORCH_INDEX = "https://download.pytorch.org/whl"
"""Packages for one build of torch each: its version names the folder, as in ``2.13.0+cpu``."""


def require_modules(feature: str, *modules: str) -> None:
    """Raise UsageError if one of ``modules`` is not installed; ``feature``, which needs them, begins the message."""
    for module in modules:
        if not is_installed(module):
            raise missing_module_error(feature, module)


def require_torch(feature: str) -> None:
    """Raise UsageError if torch is not installed, or too old. Does not import it."""
    require_modules(feature, "torch")
    refuse_old_torch()


def refuse_old_torch() -> None:
    """Raise UsageError if the installed torch is older than ``OLDEST_TORCH``."""
    version = _version("torch")
    if version and tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise UsageError(f"torch {version} is too old: ddpbench needs {oldest} or newer", "use an environment with a newer torch")


def missing_module_error(feature: str, module: str) -> UsageError:
    """The error for a ``feature`` whose ``module`` is not installed, with the command that installs it."""
    return UsageError(f"{feature} needs {module}, which is not installed", install_command(module))


def install_command(module: str) -> str:
    """The command that installs ``module`` and keeps the installed torch.

    Every torchvision fits one torch and one build of it. With torch pinned, pip chooses the torchvision that fits.
    """
    torch = _version("torch")
    if module == "nvidia.dali":
        return f"pip install {dali_package(_torch_cuda())}"
    if module != "torchvision" or not torch:
        return f"pip install {PACKAGES.get(module, module)}"
    build = torch.partition("+")[2]
    return f"pip install torchvision 'torch=={torch}'" + (f" --extra-index-url {PYTORCH_INDEX}/{build}" if build else "")


def dali_package(cuda: str | None) -> str:
    """The package of NVIDIA DALI for a torch that is built for ``cuda``, as in ``13.0``; None for a CPU build."""
    major = (cuda or "").partition(".")[0]
    return next((package for package in DALI_PACKAGES if f"cuda{major}" in package), DALI_PACKAGES[0])


def is_installed(module: str) -> bool:
    """Whether ``module`` can be found. It is not imported, only its parent package."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # no parent package
        return False


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _torch_cuda() -> str | None:
    """The CUDA version that the installed torch is built for; None without one."""
    spec = find_spec("torch")
    file = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    found = re.search(r"^cuda\b.*'([\d.]+)'", file.read_text(), re.MULTILINE) if file and file.exists() else None
    return found[1] if found else None
