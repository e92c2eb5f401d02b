"""The typed fingerprint of a machine: versions, places, and what is missing with the way to get it."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata

from ddpbench import __version__
from ddpbench.machine.gpu import driver_version, gpu_names
from ddpbench.machine.host import cpu_name, host_memory_bytes, os_name, usable_cores
from ddpbench.machine.variables import speed_variables
from ddpbench.record.environment import DeviceType, Environment, RankPlace, Software, Transport
from ddpbench.record.loaders import DALI


def version_of(*packages: str) -> str | None:
    """The version of the first of ``packages`` that is installed, without importing it."""
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None


def software(cuda: bool) -> Software:
    """The versions that this rank runs; imports torch."""
    import torch

    nccl = ".".join(str(part) for part in torch.cuda.nccl.version()) if cuda else None
    return Software(
        ddpbench=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        torchvision=version_of("torchvision"),
        accelerate=version_of("accelerate"),
        dali=version_of(*DALI.packages),
        cuda=torch.version.cuda if cuda else None,
        cudnn=str(torch.backends.cudnn.version()) if cuda else None,
        nccl=nccl,
        driver=driver_version() if cuda else None,
    )


def environment(
    software: Software,
    places: list[RankPlace],
    launcher: str,
    backend: str,
    device_type: DeviceType,
    health: str,
    transport: list[Transport],
) -> Environment:
    """The environment of a job whose ranks stand at ``places``, as this rank sees it."""
    return Environment(
        software=software,
        world_size=len(places),
        nodes=len({place.node_rank for place in places}),
        launcher=launcher,
        backend=backend,
        device_type=device_type,
        places=places,
        os=os_name(),
        cpu=cpu_name(),
        variables=speed_variables(),
        transport=transport,
        health=health,
    )


def describe() -> list[tuple[str, str, str]]:
    """(what, value, how to get it where it is missing) for ``ddpbench env``; torch is not imported."""
    gpus = gpu_names()
    rows = [
        ("ddpbench", __version__, ""),
        ("python", f"{platform.python_version()} ({sys.executable})", ""),
        ("torch", *_or(version_of("torch"), "pip install torch torchvision")),
        ("torchvision", *_or(version_of("torchvision"), "pip install torchvision")),
        ("accelerate", *_or(version_of("accelerate"), "pip install accelerate")),
        ("DALI", *_or(version_of(*DALI.packages), "pip install 'ddpbench[dali-cuda13]' for --loader dali-cpu")),
        ("NVIDIA driver", *_or(driver_version(), "without one, training runs on the processor")),
        ("GPUs", *_or(f"{len(gpus)} x {gpus[0]}" if gpus else None, "none seen by NVML")),
        ("processor", cpu_name(), ""),
        ("usable cores", f"{usable_cores():g} of {os.cpu_count()}", ""),
        ("memory", f"{host_memory_bytes() / 2**30:.0f} GiB", ""),
        ("system", os_name(), ""),
    ]
    return rows + [(name, value, "") for name, value in speed_variables().items()]


def _or(value: str | None, cure: str) -> tuple[str, str]:
    return (value, "") if value else ("missing", cure)
