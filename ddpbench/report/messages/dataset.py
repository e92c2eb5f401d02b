"""The data of a training, and why the speed of its storage is unknown."""

from __future__ import annotations

import msgspec

from ddpbench.record.diagnosis import NoColdRateReason, Storage
from ddpbench.record.loaders import loader_spec
from ddpbench.record.record import DatasetInfo
from ddpbench.record.registry import DATASETS
from ddpbench.record.text import pluralize

MAX_LISTED_EXTENSIONS = 4
"""Maximum number of extensions listed for skipped files."""


def dataset_text(data: DatasetInfo) -> str:
    """``ImageNet folder, 1,281,167 JPEGs``; ``synthetic batch on the device``; ``16 batches of torch in host memory: ...``."""
    if data.replayed_loader:
        source = msgspec.structs.replace(data, loader=data.replayed_loader, replayed_loader="", num_batches=None)
        return f"{pluralize(data.num_batches or 0, 'batch', 'es')} of {data.replayed_loader} in host memory: {dataset_text(source)}"
    if data.num_batches is not None:
        return "synthetic batch on the device" if data.num_batches == 1 else f"{data.num_batches:,} synthetic batches on the device"
    if loader_spec(data.loader).user_defined:
        return f"batches of {data.loader}, which shards them itself"
    samples = f"{data.num_samples or 0:,}"
    if data.dataset == "disc":
        return f"{samples} points in and around a disc"
    return f"{_title(data)}, {samples} {'JPEGs' if data.is_jpeg else 'images'}{_skipped(data)}"


def _title(data: DatasetInfo) -> str:
    title = DATASETS[data.dataset].title if data.dataset in DATASETS else ""
    if data.generated:
        return f"generated {title}-like dataset"
    return f"{title or 'image'} folder" if data.is_image_folder else title or "image dataset"


def _skipped(data: DatasetInfo) -> str:
    if not data.skipped_extensions:
        return ""
    extensions = sorted(extension or "no extension" for extension in data.skipped_extensions)
    return f", {sum(data.skipped_extensions.values()):,} skipped ({', '.join(extensions[:MAX_LISTED_EXTENSIONS])})"


NO_COLD_RATE_REASONS: dict[NoColdRateReason, str] = {
    "in_memory": "{file_system} keeps files in memory",
    "own_cache": "{file_system} has a separate cache that cannot be dropped",
    "no_time": "no sampled file was read in time",
    "unreadable": "no sampled file is readable",
    "not_evicted": "{fraction:.0%} of the sample stayed in the page cache: another process keeps it there",
    "unknown_residency": "page cache not dropped: another process keeps the files, or the kernel hides residency",
}


def no_cold_rate_reason(storage: Storage) -> str:
    if storage.no_cold_rate_reason is None:
        return ""
    return NO_COLD_RATE_REASONS[storage.no_cold_rate_reason].format(
        file_system=storage.file_system, fraction=storage.cached_after_fraction or 0.0
    )
