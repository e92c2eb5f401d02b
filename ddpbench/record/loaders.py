"""The loaders by name, without torch: what each reads and needs, how it makes its batches, and where it is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from ddpbench.record.registry import DATASETS

SYNTHETIC, REPLAY = "synthetic", "replay"
"""A batch that is on the device already, what training could reach, and nothing to train on; batches in page-locked host memory."""

MAX_THREADS_PER_PIPELINE = 5
"""Threads of ``dali-cpu`` that make a batch together, at most.

DALI runs one operator after the other, and at the end of each all threads wait for the last, which costs the more the more they are;
the fewer they are, the longer the first batch takes (results/loading/pipelines.py measures both).
"""


@dataclass(frozen=True, kw_only=True)
class LoaderSpec:
    """One loader. ``open`` is ``module:function``, called as ``data.open.open_loader`` is.

    It returns a ``data.loader.HostLoader``, or where the loader is ``on_device``, and makes its batches there, a Loader.
    ``reads_files`` where its samples mean something: they are read, or made or drawn to be learnt. ``needs`` is the pip extra
    that brings ``module``; both are empty where nothing beyond torch is needed. Of the ``packages`` that may bring it, versions
    before ``oldest`` will not do. Batches are ``made_by`` worker processes, by threads of the trainer's, or by nobody else; so many threads
    are a ``team``, at most, that makes a batch together: all of them where it is 0. A pixel's value has ``value_bytes`` on its way to
    the device. One that is somebody's ``own`` brings data of which nothing is known before, and one that works on a ``gpu`` is
    refused where a run has none.
    """

    name: str
    help: str
    factory: str
    reads_dataset: bool
    on_device: bool = False
    datasets: tuple[str, ...] = ("imagenet", "cifar10", "mnist", "disc")
    pip_extra: str = ""
    module: str = ""
    packages: tuple[str, ...] = ()
    min_major_version: int = 0
    worker_type: Literal["processes", "threads", ""] = ""
    max_threads_per_batch: int = 0
    bytes_per_value: int = 4
    user_defined: bool = False
    needs_gpu: bool = False

    @property
    def device_resident(self) -> bool:
        """Whether all samples lie on the device before the first step."""
        return self.on_device and not self.worker_type

    @property
    def uses_threads(self) -> bool:
        return self.worker_type == "threads"

    @property
    def shm_bytes_per_value(self) -> int:
        """What a pixel's value takes in the shared memory through which workers hand over images; 0 without such workers."""
        return self.bytes_per_value if self.worker_type == "processes" else 0

    def thread_group_sizes(self, threads: int) -> list[int]:
        """The sizes of the teams among which so many threads are shared out, as evenly as may be: one of one thread at the least."""
        threads = max(1, threads)
        number = ceil(threads / self.max_threads_per_batch) if self.max_threads_per_batch else 1
        return [len(range(first, threads, number)) for first in range(number)]

    def num_producers(self, workers: int) -> int:
        """How many make a batch each, all at once: the processes, or the teams of threads; 0 where nobody works ahead."""
        if self.device_resident:
            return 0
        return len(self.thread_group_sizes(workers)) if self.uses_threads else workers


DALI_SPEC = LoaderSpec(
    name="",
    help="",
    factory="",
    reads_dataset=True,
    datasets=("imagenet",),
    pip_extra="dali-cuda13",
    module="nvidia.dali",
    packages=("nvidia-dali-cuda130", "nvidia-dali-cuda120"),
    min_major_version=2,
    worker_type="threads",
)
"""What both loaders of NVIDIA DALI are."""

LOADERS: Mapping[str, LoaderSpec] = {
    spec.name: spec
    for spec in (
        LoaderSpec(
            name=SYNTHETIC,
            help="batches that lie on the device: what the device alone can do",
            factory="ddpbench.data.loaders.synthetic:open_synthetic",
            reads_dataset=False,
            on_device=True,
            datasets=tuple(DATASETS),
        ),
        LoaderSpec(
            name=REPLAY,
            help="16 batches of torch in pinned host memory, copied every step: what the copies cost, and the host",
            factory="ddpbench.data.loaders.replay:open_replay",
            reads_dataset=True,
            worker_type="processes",
        ),
        LoaderSpec(
            name="torch",
            help="DataLoader workers, PIL decode, the classic transforms in float32: what most people run",
            factory="ddpbench.data.loaders.torch:open_torch",
            reads_dataset=True,
            worker_type="processes",
        ),
        LoaderSpec(
            name="torch-uint8",
            help="DataLoader workers that decode with libjpeg-turbo and stay at bytes; the device normalises",
            factory="ddpbench.data.loaders.uint8:open_uint8",
            reads_dataset=True,
            datasets=("imagenet", "cifar10", "mnist"),
            worker_type="processes",
            bytes_per_value=1,
        ),
        LoaderSpec(
            name="tensor",
            help="the whole data set as one tensor on the device, crop and flip batch-wise: a loader that costs next to nothing",
            factory="ddpbench.data.loaders.tensor:open_tensor",
            reads_dataset=True,
            on_device=True,
            datasets=("cifar10", "mnist", "disc"),
        ),
        replace(
            DALI_SPEC,
            name="dali-cpu",
            help="NVIDIA DALI, decode and augmentation in threads on the CPU; image folders only",
            factory="ddpbench.data.loaders.dali.cpu:open_dali_cpu",
            max_threads_per_batch=MAX_THREADS_PER_PIPELINE,
        ),
        replace(
            DALI_SPEC,
            name="dali-gpu",
            help="NVIDIA DALI, decode and augmentation on the GPU that trains, with its hardware decoder; image folders only",
            factory="ddpbench.data.loaders.dali.gpu:open_dali_gpu",
            on_device=True,
            needs_gpu=True,
        ),
    )
}
"""Every loader by name."""


def loader_spec(name: str | None) -> LoaderSpec:
    """What is known of the loader of a record by its name alone: of somebody's own next to nothing."""
    return LOADERS.get(name or "") or user_loader_spec(name or "")


def user_loader_spec(name: str) -> LoaderSpec:
    """A function of somebody's that returns batches."""
    return LoaderSpec(
        name=name,
        help="one's own",
        factory="ddpbench.data.loaders.user:open_user_loader",
        reads_dataset=True,
        datasets=tuple(DATASETS),
        user_defined=True,
    )
