"""The loaders by name: what each reads, what it needs, and where it is opened. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddpbench.record import names


@dataclass(frozen=True, kw_only=True)
class LoaderSpec:
    """One loader. ``open`` is ``module:function``, called as ``data.open.open_loader`` is, and returns a ``data.loader.Loader``.

    ``reads_files`` where its samples mean something: they are read, or made or drawn to be learnt. ``needs`` is the pip extra
    that brings ``module``; both are empty where nothing beyond torch is needed.
    """

    name: str
    help: str
    open: str
    reads_files: bool
    datasets: tuple[str, ...] = ("imagenet", "cifar10", "mnist", "disc")
    needs: str = ""
    module: str = ""


LOADERS: Mapping[str, LoaderSpec] = {
    spec.name: spec
    for spec in (
        LoaderSpec(
            name="synthetic",
            help="batches that lie on the device: what the device alone can do",
            open="ddpbench.data.synthetic:open_synthetic",
            reads_files=False,
            datasets=("imagenet", "cifar10", "mnist", "disc", "gemm"),
        ),
        LoaderSpec(
            name="torch",
            help="DataLoader workers, PIL decode, the classic transforms in float32: what most people run",
            open="ddpbench.data.workers:open_workers",
            reads_files=True,
        ),
        LoaderSpec(
            name="tensor",
            help="the whole data set as one tensor on the device, crop and flip batch-wise: a loader that costs next to nothing",
            open="ddpbench.data.tensor:open_tensor",
            reads_files=True,
            datasets=("cifar10", "mnist", "disc"),
        ),
        LoaderSpec(
            name="dali-cpu",
            help="NVIDIA DALI, decode and augmentation in threads on the CPU; image folders only",
            open="ddpbench.data.dali:open_dali_cpu",
            reads_files=True,
            datasets=("imagenet",),
            needs="dali-cuda13",
            module="nvidia.dali",
        ),
    )
}
"""Every loader by name."""


def find(name: str) -> LoaderSpec:
    """The loader called ``name``, or the one that ``package.module:name`` points at. Raises UsageError where there is none."""
    return names.find("loader", name, LOADERS, LoaderSpec)
