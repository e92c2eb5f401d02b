"""Checks that a loader can feed its ranks, before the rendezvous. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from ddpbench.data.datasets import files, image_folder
from ddpbench.data.datasets.download import download_dataset
from ddpbench.data.in_memory import os_error_as_usage_error
from ddpbench.machine.host import shared_memory_free_bytes
from ddpbench.machine.rank_env import from_env
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.diagnosis import SHM_DIR
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import LOADERS, LoaderSpec, find_loader
from ddpbench.record.packages import install_command, require_modules
from ddpbench.record.registry import DATASETS

HELD_OUT_BYTES_PER_VALUE = 4
"""Bytes per pixel value of held-out images from workers: float32, with every loader."""


def check_loader(config: ResolvedConfig, dataset: str, classes: int, world_size: int) -> None:
    """Raise UsageError if the loader of ``config`` cannot feed ``world_size`` ranks.

    Imports torch only for a download. Images of a tree are counted only until there are enough for one batch on every rank; datasets that
    fit in memory are read completely.
    """
    spec = find_loader(config.loader)
    _check_loader_spec(spec, dataset, config)
    with os_error_as_usage_error():
        if spec.user_defined:
            _check_user_loader(config)
        elif spec.reads_dataset:
            _check_data(config, dataset, classes, world_size)
    held_out = 0
    if _decodes_held_out(spec, config, dataset):
        require_modules("--validate on an image folder", "torchvision")
        held_out = HELD_OUT_BYTES_PER_VALUE
    if spec.shm_bytes_per_value or held_out:
        check_shm(config, spec.shm_bytes_per_value, held_out, DATASETS[dataset].channels)


def _check_user_loader(config: ResolvedConfig) -> None:
    """Check the flags and the folder of a user-defined loader; its data are not checked."""
    if config.download:
        raise UsageError(f"--download supports only built-in loaders, not '{config.loader}'", "drop --download")
    if config.data_dir and not Path(config.data_dir).exists():
        raise UsageError(f"no such folder: '{config.data_dir}'", "check --data-dir")


def _check_data(config: ResolvedConfig, dataset: str, classes: int, world_size: int) -> None:
    if config.download:
        download_dataset(dataset, config.data_dir)
    batch, needed = config.batch_size, config.batch_size * world_size
    num_samples = _count(config.data_dir, dataset, classes, needed)
    if num_samples < needed:
        where = f"in '{config.data_dir}'" if config.data_dir else "in the dataset"
        raise UsageError(
            f"too few samples {where}: {num_samples:,} found, {needed:,} needed for one step of {batch:,} x {world_size:,}",
            f"{'reduce the batch size (-b)' if batch > 1 else 'start fewer ranks'}, or add images",
        )


def _decodes_held_out(spec: LoaderSpec, config: ResolvedConfig, dataset: str) -> bool:
    """Whether workers read held-out images."""
    if dataset != "imagenet" or not (config.validate and spec.reads_dataset):
        return False
    return image_folder.has_held_out(config.data_dir) if config.data_dir else not spec.user_defined  # the generated dataset has some


def _check_loader_spec(spec: LoaderSpec, dataset: str, config: ResolvedConfig) -> None:
    if dataset not in spec.datasets:
        if config.data_dir and not any(other.reads_dataset for other in LOADERS.values() if dataset in other.datasets):
            raise UsageError(f"the {DATASETS[dataset].title} are generated; --data-dir is not read", "drop --data-dir")
        alternatives = [f"--loader {other.name}" for other in LOADERS.values() if dataset in other.datasets]
        raise UsageError(f"loader '{spec.name}' does not read {dataset}", f"use {' or '.join(alternatives)}")
    if spec.needs_gpu and config.device == "cpu":
        raise UsageError(f"loader '{spec.name}' needs a GPU, but this run is on the CPU", "use --loader dali-cpu")
    require_modules(f"loader '{spec.name}'", *spec.modules)
    for version in _versions(spec.packages):
        if int(version.partition(".")[0]) < spec.min_major_version:
            raise UsageError(
                f"loader '{spec.name}' needs {spec.modules[0]} {spec.min_major_version}.0 or newer, but {version} is installed",
                install_command(spec.modules[0]),
            )


def _versions(packages: Iterable[str]) -> Iterator[str]:
    """Versions of those ``packages`` that are installed."""
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            yield metadata.version(package)


def dataset_fingerprint(config: ResolvedConfig, dataset: str) -> str:
    """Fingerprint of an image tree, which must be equal on all ranks.

    Empty if no tree is read by index.
    """
    spec = find_loader(config.loader)
    reads_tree = dataset == "imagenet" and spec.reads_dataset and not spec.user_defined
    return image_folder.index_fingerprint(config.data_dir) if reads_tree and config.data_dir else ""


def _count(directory: str | None, dataset: str, classes: int, enough: int) -> int:
    if dataset != "imagenet":
        return files.check_dataset(dataset, directory, classes)
    if directory is None:
        return enough  # the generated dataset has that many
    return image_folder.count_images(directory, classes, enough)


MIB = 2**20


def check_shm(config: ResolvedConfig, train_bytes_per_value: int, held_out_bytes_per_value: int, channels: int) -> None:
    """Raise UsageError if the prefetched batches exceed shared memory.

    The batches of all ranks of this node are counted. ``train_bytes_per_value`` and ``held_out_bytes_per_value`` are the bytes per pixel
    value of training and held-out batches, 0 if workers do not hand them over. Both add up: prefetched training batches stay in memory
    while held-out images are read. A worker that runs out of shared memory is killed during the run, and containers have little of it by
    default.
    """
    values = config.batch_size * channels * (config.image_size or 0) ** 2
    ranks, batches_per_rank = from_env().local_world_size, config.workers * config.prefetch + 1
    needed = ranks * batches_per_rank * values * (train_bytes_per_value + held_out_bytes_per_value) if config.workers else 0
    free = shared_memory_free_bytes()
    if free is not None and needed > free:
        kinds = ((train_bytes_per_value, ""), (held_out_bytes_per_value, " of held-out images"))
        sizes = " and ".join(f"{-(-values * bytes_per_value // MIB):,} MiB{suffix}" for bytes_per_value, suffix in kinds if bytes_per_value)
        raise UsageError(
            f"{SHM_DIR} has {free // MIB:,} MiB free, but prefetched batches need {-(-needed // MIB):,}: "
            f"{ranks} x {batches_per_rank} of {sizes}",
            "use fewer workers (-j), --prefetch 1, a smaller batch (-b) or --loader torch-uint8; "
            "in a container --ipc=host or --shm-size=16g",
        )
