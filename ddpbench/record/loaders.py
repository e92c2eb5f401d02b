"""Registry of loaders, without torch: what each reads and needs, how it loads batches, and its factory; user-defined loaders.

A new loader needs a ``LoaderSpec`` in ``LOADERS`` and its factory in ``data/loaders/``. If it may replace others, diagnoses benchmark it.
They recommend it where a rule table in ``analysis/remedies/recommend.py`` has ``other_loader(name)``, for the reason that
``report/messages/remedies.py`` gives, or its ``help``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal

from ddpbench.record import names
from ddpbench.record.errors import UsageError
from ddpbench.record.packages import DALI_PACKAGES, is_installed
from ddpbench.record.registry import DATASETS

SYNTHETIC, REPLAY = "synthetic", "replay"
"""Names of two control loaders: a constant batch on the device, for compute-only throughput (nothing to learn); and real
batches in page-locked host memory, copied every step.
"""

DEFAULT_LOADER = "torch"
"""Name of the loader that reads files if none is named: the common setup."""

DECODING_LOADER = "DecodingLoader"
"""Class of what ``ddpbench.loaders.decode_on_gpu`` returns, in a script that calls it."""

DECODED_AHEAD = 5
"""Batches that ``ddpbench.loaders.decode_on_gpu`` has begun: one is read, two are decoded, and two are ready."""

MAX_THREADS_PER_PIPELINE = 5
"""Maximum number of threads of one ``dali-cpu`` pipeline.

DALI runs operators one after another, and all threads wait for the slowest at the end of each. This costs more with more
threads; with fewer threads, the first batch takes longer (results/loading/pipelines.py measures both).
"""


@dataclass(frozen=True, kw_only=True)
class LoaderSpec:
    """One loader.

    ``factory`` is ``module:function`` with the signature of ``data.loaders.open.open_loader``. It returns a
    ``data.loader.HostLoader``, or a ``data.loader.Loader`` if ``on_device``, which means that it produces batches on the device.
    ``reads_dataset`` is true if the samples can be learned: read from files or generated. A loader needs the optional ``modules``;
    one of ``packages`` provides the first of them, at least in version ``min_major_version``.
    ``worker_type`` says whether worker processes, threads of the trainer, or neither load batches. Up to
    ``max_threads_per_batch`` threads load one batch together; 0 means all of them. Each pixel value takes ``bytes_per_value``
    bytes in the copy to the device. The data of a ``user_defined`` loader are unknown in advance. A loader that ``needs_gpu`` is
    rejected on the CPU. ``replaces`` names the loaders in whose place this one may be recommended.
    """

    name: str
    help: str
    factory: str
    reads_dataset: bool
    on_device: bool = False
    datasets: tuple[str, ...] = ("imagenet", "cifar10", "mnist", "disc")
    modules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    min_major_version: int = 0
    worker_type: Literal["processes", "threads", ""] = ""
    max_threads_per_batch: int = 0
    bytes_per_value: int = 4
    user_defined: bool = False
    needs_gpu: bool = False
    replaces: tuple[str, ...] = ()

    @property
    def device_resident(self) -> bool:
        """Whether all samples are on the device before the first step."""
        return self.on_device and not self.worker_type

    @property
    def uses_threads(self) -> bool:
        return self.worker_type == "threads"

    @property
    def shm_bytes_per_value(self) -> int:
        """Bytes per pixel value in the shared memory through which worker processes pass images; 0 without them."""
        return self.bytes_per_value if self.worker_type == "processes" else 0

    def thread_group_sizes(self, threads: int) -> list[int]:
        """Sizes of the groups into which ``threads`` are split as evenly as possible; at least one group of one thread."""
        threads = max(1, threads)
        number = ceil(threads / self.max_threads_per_batch) if self.max_threads_per_batch else 1
        return [len(range(first, threads, number)) for first in range(number)]

    def num_producers(self, workers: int) -> int:
        """Number of batches loaded in parallel: one per process or thread group; 0 without prefetch."""
        if self.device_resident:
            return 0
        return len(self.thread_group_sizes(workers)) if self.uses_threads else workers


DALI_SPEC = LoaderSpec(
    name="",
    help="",
    factory="",
    reads_dataset=True,
    datasets=("imagenet",),
    modules=("nvidia.dali", "PIL"),
    packages=DALI_PACKAGES,
    min_major_version=2,
    worker_type="threads",
)
"""What both NVIDIA DALI loaders have in common."""

LOADERS: Mapping[str, LoaderSpec] = {
    spec.name: spec
    for spec in (
        LoaderSpec(
            name=SYNTHETIC,
            help="constant batch on the device: compute-only throughput",
            factory="ddpbench.data.loaders.synthetic:open_synthetic",
            reads_dataset=False,
            on_device=True,
            datasets=tuple(DATASETS),
        ),
        LoaderSpec(
            name=REPLAY,
            help="16 batches of torch in pinned host memory, copied every step: cost of the copies and the host",
            factory="ddpbench.data.loaders.replay:open_replay",
            reads_dataset=True,
            modules=("torchvision",),
            worker_type="processes",
        ),
        LoaderSpec(
            name="torch",
            help="DataLoader workers, PIL decode, standard float32 transforms: the common setup",
            factory="ddpbench.data.loaders.torch:open_torch",
            reads_dataset=True,
            modules=("torchvision",),
            worker_type="processes",
        ),
        LoaderSpec(
            name="torch-uint8",
            help="DataLoader workers, libjpeg-turbo decode, uint8 batches; the device normalises",
            factory="ddpbench.data.loaders.uint8:open_uint8",
            reads_dataset=True,
            datasets=("imagenet", "cifar10", "mnist"),
            modules=("torchvision",),
            worker_type="processes",
            bytes_per_value=1,
            replaces=("torch", "dali-cpu"),
        ),
        LoaderSpec(
            name="tensor",
            help="the whole dataset as one tensor on the device, batched crop and flip: almost no loading cost",
            factory="ddpbench.data.loaders.tensor:open_tensor",
            reads_dataset=True,
            on_device=True,
            datasets=("cifar10", "mnist", "disc"),
            replaces=("torch", "torch-uint8"),
        ),
        replace(
            DALI_SPEC,
            name="dali-cpu",
            help="NVIDIA DALI, decode and augmentation in CPU threads; image folders only",
            factory="ddpbench.data.loaders.dali.cpu:open_dali_cpu",
            max_threads_per_batch=MAX_THREADS_PER_PIPELINE,
            replaces=("torch", "torch-uint8", "dali-gpu"),
        ),
        replace(
            DALI_SPEC,
            name="dali-gpu",
            help="NVIDIA DALI, decode and augmentation on the training GPU, with its hardware decoder; image folders only",
            factory="ddpbench.data.loaders.dali.gpu:open_dali_gpu",
            on_device=True,
            needs_gpu=True,
            replaces=("torch", "torch-uint8", "dali-cpu"),
        ),
    )
}
"""Every loader by name."""


def find_loader(name: str) -> LoaderSpec:
    """The loader called ``name``, or the one at ``package.module:name``.

    That object is a LoaderSpec, or a function that returns batches. Raises UsageError if it does not exist, or if the function has
    required parameters other than LOADER_KWARGS.
    """
    if ":" not in name:
        return names.lookup("loader", name, LOADERS)
    found = names.import_object(name)
    if isinstance(found, LoaderSpec):
        return found
    if not callable(found):
        raise UsageError(f"'{name}' is not a loader", "it must be a function that returns batches of (samples, labels), like a DataLoader")
    if unknown := set(accepted_kwargs(found, required_only=True)) - set(LOADER_KWARGS):
        raise UsageError(f"'{name}' has unknown parameters: {', '.join(sorted(unknown))}", f"supported are {', '.join(LOADER_KWARGS)}")
    return user_loader_spec(name)


def loader_spec(name: str | None) -> LoaderSpec:
    """The LoaderSpec for the loader name in a record; an unknown name is taken as a user-defined loader."""
    return LOADERS.get(name or "") or user_loader_spec(name or "")


def alternative_loaders(name: str, dataset: str) -> list[LoaderSpec]:
    """The loaders that may replace the loader ``name`` and read ``dataset``, in the order of ``LOADERS``.

    Only the device-resident one, if there is one: nothing loads faster than data that are already on the device.
    """
    alternatives = [spec for spec in LOADERS.values() if name in spec.replaces and dataset in spec.datasets]
    return [spec for spec in alternatives if spec.device_resident] or alternatives


def has_gpu_loader(dataset: str) -> bool:
    """Whether a loader is installed that decodes ``dataset`` on the training GPU."""
    return any(spec.needs_gpu and dataset in spec.datasets and all(map(is_installed, spec.modules)) for spec in LOADERS.values())


def user_loader_spec(name: str) -> LoaderSpec:
    """The LoaderSpec of a user-defined function that returns batches."""
    return LoaderSpec(
        name=name,
        help="user-defined",
        factory="ddpbench.data.loaders.user:open_user_loader",
        reads_dataset=True,
        datasets=tuple(DATASETS),
        user_defined=True,
    )


LOADER_KWARGS = ("config", "dataset", "classes", "rank", "world_size", "device")
"""Parameter names that a user-defined loader function may have."""


def accepted_kwargs(function: Callable[..., Any], required_only: bool = False) -> list[str]:
    """Parameter names of a function; with ``required_only``, only those without a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some built-ins have no signature
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [parameter for parameter in parameters if parameter.kind not in variable]
    return [parameter.name for parameter in named if not required_only or parameter.default is inspect.Parameter.empty]
