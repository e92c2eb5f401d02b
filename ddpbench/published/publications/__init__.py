"""The published experiments that this tool was made for, typed: protocol, figures, claims, and what is known of them by now."""

from __future__ import annotations

from importlib.resources import files

import msgspec

from ddpbench.record.names import lookup

_PUBLICATION_NAMES = (
    "t4-tensor-cores",
    "wrn-cifar10-apex-levels",
    "vgg16-cifar10-batch-sweep",
    "disc-mlp-cpu-vs-gpu",
    "imagenet-resnet-slurm-vs-container",
)


class PublishedMean(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mean and standard deviation of the source's own repeats."""

    mean: float
    std: float


class PublishedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of a published table. ``None`` where the source gives no figure."""

    gpu: str = ""
    platform: str = ""
    environment: str = ""
    precision: str = ""  # the name of a precision here, or an alias of one
    published_label: str = ""  # what the source calls it
    batch_size: int | None = None
    static_loss_scale: float | str | None = None
    seconds: float | PublishedMean | None = None
    memory_mib: float | PublishedMean | None = msgspec.field(default=None, name="memory_mb")  # as nvidia-smi counts them: 2^20 bytes
    max_memory_allocated_bytes: int | None = None
    accuracy_percent: PublishedMean | None = None
    val_accuracy_percent: float | None = msgspec.field(default=None, name="val_accuracy")  # percent
    images_per_s: float | None = None
    min_images_per_s: float | None = msgspec.field(default=None, name="min")  # images/s
    max_images_per_s: float | None = msgspec.field(default=None, name="max")
    last_loss: float | None = msgspec.field(default=None, name="loss_last")
    mean_loss: float | None = msgspec.field(default=None, name="loss_average")
    crossover_parameters: int | None = None
    crossover_layers: int | None = None
    note: str = ""

    @property
    def measured_on(self) -> str:
        """What the row was measured on, as far as rows of one table differ in it: ``Tesla T4, Colab``; empty where they do not."""
        return ", ".join(filter(None, [self.gpu, self.platform, self.environment]))


class PublishedExperiment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One workload of a publication, and its table."""

    workload: str
    rows: list[PublishedRow]
    protocol: str = ""
    notes: str = ""


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the source concludes, and how that is checked."""

    statement: str = msgspec.field(name="says")
    check: str


class Publication(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published experiment."""

    id: str
    title: str
    source: str
    software: str
    experiments: list[PublishedExperiment]
    claims: list[Claim]
    hardware: str = ""
    protocol: str = ""
    model: str = ""
    unit: str = ""
    notes: str = ""
    our_reading: str = ""


def published_names() -> tuple[str, ...]:
    """Every experiment that can be reproduced."""
    return _PUBLICATION_NAMES


def load_publication(name: str) -> Publication:
    """The published experiment called ``name``; raises UsageError, with "did you mean", where there is none."""
    known = lookup("published experiment", name, {each: each for each in _PUBLICATION_NAMES})
    return msgspec.json.decode(files(__name__).joinpath(f"{known}.json").read_bytes(), type=Publication)
