"""Fingerprint of a machine: versions, devices, environment variables, and what is missing."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata

from ddpbench import __version__
from ddpbench.machine.gpu import driver_version, gpu_names
from ddpbench.machine.host import cpu_name, host_memory_bytes, os_name, usable_cores
from ddpbench.machine.speed_variables import speed_variables
from ddpbench.record.environment import DeviceType, Environment, RankPlacement, Software, Transport
from ddpbench.record.loaders import DALI_SPEC
from ddpbench.record.packages import install_command


def installed_version(*packages: str) -> str | None:
    """The version of the first of ``packages`` that is installed, without importing it."""
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None


def collect_software(cuda: bool) -> Software:
    """The software versions of this rank. Imports torch."""
    import torch

    nccl = ".".join(str(part) for part in torch.cuda.nccl.version()) if cuda else None
    return Software(
        ddpbench=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        torchvision=installed_version("torchvision"),
        accelerate=installed_version("accelerate"),
        dali=installed_version(*DALI_SPEC.packages),
        cuda=torch.version.cuda if cuda else None,
        cudnn=str(torch.backends.cudnn.version()) if cuda else None,
        nccl=nccl,
        driver=driver_version() if cuda else None,
    )


def emulates_bfloat16() -> bool:
    """Whether oneDNN, in which torch computes layers on a CPU, has no bfloat16 kernels for this one. Imports torch."""
    import torch

    return torch.backends.mkldnn.is_available() and not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def collect_environment(
    software: Software,
    placements: list[RankPlacement],
    launcher: str,
    backend: str,
    device_type: DeviceType,
    health_unavailable_reason: str,
    transport: list[Transport],
) -> Environment:
    """The environment of a job whose ranks run at ``placements``, as this rank sees it. Imports torch."""
    return Environment(
        software=software,
        world_size=len(placements),
        nodes=len({place.node_rank for place in placements}),
        launcher=launcher,
        backend=backend,
        device_type=device_type,
        placements=placements,
        os=os_name(),
        cpu=cpu_name(),
        emulates_bfloat16=emulates_bfloat16(),
        variables=speed_variables(),
        transport=transport,
        health_unavailable_reason=health_unavailable_reason,
    )


def describe_environment() -> list[tuple[str, str, str]]:
    """Rows (name, value, how to install it if missing) of ``ddpbench env``. Does not import torch."""
    gpus = gpu_names()
    rows = [
        ("ddpbench", __version__, ""),
        ("python", f"{platform.python_version()} ({sys.executable})", ""),
        *(
            (module, *_value_or_hint(installed_version(module), install_command(module)))
            for module in ("torch", "torchvision", "accelerate", "matplotlib")
        ),
        ("DALI", *_value_or_hint(installed_version(*DALI_SPEC.packages), install_command(DALI_SPEC.modules[0]))),
        ("NVIDIA driver", *_value_or_hint(driver_version(), "without one, training runs on the CPU")),
        ("GPUs", *_value_or_hint(f"{len(gpus)} x {gpus[0]}" if gpus else None, "NVML finds none")),
        ("CPU", cpu_name(), ""),
        ("usable cores", f"{usable_cores():g} of {os.cpu_count()}", ""),
        ("memory", f"{host_memory_bytes() / 2**30:.0f} GiB", ""),
        ("system", os_name(), ""),
    ]
    return rows + [(name, value, "") for name, value in speed_variables().items()]


def _value_or_hint(value: str | None, hint: str) -> tuple[str, str]:
    return (value, "") if value else ("missing", hint)
