"""What a loader reads, in words."""

from __future__ import annotations

import msgspec

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
