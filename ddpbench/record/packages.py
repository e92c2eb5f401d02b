"""Optional packages: which are installed, and how to install the others."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from ddpbench.record.errors import UsageError

_TRAIN = "pip install 'ddpbench[train]'"

INSTALL_COMMANDS: Mapping[str, str] = {
    "torchvision": _TRAIN,
    "accelerate": _TRAIN,
    "matplotlib": _TRAIN,
    "PIL": _TRAIN,  # torchvision requires it
    "nvidia.dali": "pip install 'ddpbench[dali-cuda13]' (dali-cuda12 if torch is built for CUDA 12)",
}
"""How to install each module that ddpbench imports and that its own dependencies do not provide."""


def require_modules(feature: str, *modules: str) -> None:
    """Raise UsageError if one of ``modules`` is not installed; ``feature``, which needs them, begins the message."""
    for module in modules:
        if not is_installed(module):
            raise missing_module_error(feature, module)


def missing_module_error(feature: str, module: str) -> UsageError:
    """The error for a ``feature`` whose ``module`` is not installed, with the command that installs it."""
    return UsageError(f"{feature} needs {module}, which is not installed", install_command(module))


def install_command(module: str) -> str:
    """The command that installs ``module``, with an extra of ddpbench if there is one."""
    return INSTALL_COMMANDS.get(module, f"pip install {module}")


def is_installed(module: str) -> bool:
    """Whether ``module`` can be found. It is not imported, only its parent package."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # no parent package
        return False
