"""The loaders by name: what each reads, what it needs, and where it is opened. Nothing here needs torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ddpbench.record import names
from ddpbench.record.errors import UsageError

ALL = ("imagenet", "cifar10", "mnist", "disc", "gemm")


@dataclass(frozen=True, kw_only=True)
class LoaderSpec:
    """One loader. ``open`` is ``module:function``, called as ``data.open.open_loader`` is.

    It returns a ``data.loader.HostLoader``, or where the loader is ``on_device``, and makes its batches there, a Loader.
    ``reads_files`` where its samples mean something: they are read, or made or drawn to be learnt. ``needs`` is the pip extra
    that brings ``module``; both are empty where nothing beyond torch is needed. Of the ``packages`` that may bring it, versions
    before ``oldest`` will not do. ``shared_bytes`` is what a pixel's value takes in
    the shared memory through which workers hand over images; 0 without such workers. One that is somebody's ``own`` brings data
    of which nothing is known before, and one that works on a ``gpu`` is refused where a run has none.
    """

    name: str
    help: str
    open: str
    reads_files: bool
    on_device: bool = False
    datasets: tuple[str, ...] = ("imagenet", "cifar10", "mnist", "disc")
    needs: str = ""
    module: str = ""
    packages: tuple[str, ...] = ()
    oldest: int = 0
    shared_bytes: int = 0
    own: bool = False
    gpu: bool = False


DALI, OLDEST_DALI = ("nvidia-dali-cuda130", "nvidia-dali-cuda120"), 2

LOADERS: Mapping[str, LoaderSpec] = {
    spec.name: spec
    for spec in (
        LoaderSpec(
            name="synthetic",
            help="batches that lie on the device: what the device alone can do",
            open="ddpbench.data.synthetic:open_synthetic",
            reads_files=False,
            on_device=True,
            datasets=ALL,
        ),
        LoaderSpec(
            name="replay",
            help="16 batches of torch in pinned host memory, copied every step: what the copies cost, and the host",
            open="ddpbench.data.replay:open_replay",
            reads_files=True,
            shared_bytes=4,
        ),
        LoaderSpec(
            name="torch",
            help="DataLoader workers, PIL decode, the classic transforms in float32: what most people run",
            open="ddpbench.data.stock:open_stock",
            reads_files=True,
            shared_bytes=4,
        ),
        LoaderSpec(
            name="torch-uint8",
            help="DataLoader workers that decode with libjpeg-turbo and stay at bytes; the device normalises",
            open="ddpbench.data.uint8:open_uint8",
            reads_files=True,
            datasets=("imagenet", "cifar10", "mnist"),
            shared_bytes=1,
        ),
        LoaderSpec(
            name="tensor",
            help="the whole data set as one tensor on the device, crop and flip batch-wise: a loader that costs next to nothing",
            open="ddpbench.data.tensor:open_tensor",
            reads_files=True,
            on_device=True,
            datasets=("cifar10", "mnist", "disc"),
        ),
        LoaderSpec(
            name="dali-cpu",
            help="NVIDIA DALI, decode and augmentation in threads on the CPU; image folders only",
            open="ddpbench.data.dali.cpu:open_dali_cpu",
            reads_files=True,
            datasets=("imagenet",),
            needs="dali-cuda13",
            module="nvidia.dali",
            packages=DALI,
            oldest=OLDEST_DALI,
        ),
        LoaderSpec(
            name="dali-gpu",
            help="NVIDIA DALI, decode and augmentation on the GPU that trains, with its hardware decoder; image folders only",
            open="ddpbench.data.dali.gpu:open_dali_gpu",
            reads_files=True,
            on_device=True,
            datasets=("imagenet",),
            needs="dali-cuda13",
            module="nvidia.dali",
            packages=DALI,
            oldest=OLDEST_DALI,
            gpu=True,
        ),
    )
}
"""Every loader by name."""

OFFERED = ("config", "dataset", "classes", "rank", "world_size", "device")
"""What somebody's own function may ask for, by the names of its parameters."""


def find(name: str) -> LoaderSpec:
    """The loader called ``name``, or the one that ``package.module:name`` points at: a LoaderSpec, or a function that makes one's own.

    Raises UsageError where there is none, and for a function that asks for what it cannot be given.
    """
    if ":" not in name:
        return names.lookup("loader", name, LOADERS)
    found = names.resolve(name)
    if isinstance(found, LoaderSpec):
        return found
    if not callable(found):
        raise UsageError(f"'{name}' is no loader", "it must be a function that returns batches of (samples, labels), as a DataLoader does")
    if unknown := set(asked_for(found, required=True)) - set(OFFERED):
        raise UsageError(f"'{name}' asks for {', '.join(sorted(unknown))}", f"it can be given {', '.join(OFFERED)}, by these names")
    return LoaderSpec(name=name, help="one's own", open="ddpbench.data.own:open_own", reads_files=True, datasets=ALL, own=True)


def asked_for(function: Callable[..., Any], required: bool = False) -> list[str]:
    """The names of a function's parameters, or of those alone that it cannot do without."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # of some that are built in
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [parameter for parameter in parameters if parameter.kind not in variable]
    return [parameter.name for parameter in named if not required or parameter.default is inspect.Parameter.empty]
