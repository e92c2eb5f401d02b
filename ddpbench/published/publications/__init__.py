"""The published experiments, typed: protocol, figures, claims and later notes."""

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
    """Mean and standard deviation over the source's own repeats."""

    mean: float
    std: float


class PublishedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of a published table. A field is None if the source gives no figure."""

    gpu: str = ""
    platform: str = ""
    environment: str = ""
    precision: str = ""  # name or alias of a precision of this package
    published_label: str = ""  # the source's name of the precision
    batch_size: int | None = None
    static_loss_scale: float | str | None = None
    seconds: float | PublishedMean | None = None
    memory_mib: float | PublishedMean | None = msgspec.field(default=None, name="memory_mb")  # MiB (2^20 bytes), as nvidia-smi reports
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
        """GPU, platform and environment of the row, as far as its table names them.

        ``Tesla T4, Colab``; empty if it names none.
        """
        return ", ".join(filter(None, [self.gpu, self.platform, self.environment]))


class PublishedExperiment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One workload of a publication, and its table."""

    workload: str
    rows: list[PublishedRow]
    protocol: str = ""
    notes: str = ""


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conclusion of the source, and how it is checked."""

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
    """The names of all published experiments."""
    return _PUBLICATION_NAMES


def load_publication(name: str) -> Publication:
    """Load the published experiment ``name``.

    Raises UsageError, with "did you mean", if there is none.
    """
    known = lookup("published experiment", name, {each: each for each in _PUBLICATION_NAMES})
    return msgspec.json.decode(files(__name__).joinpath(f"{known}.json").read_bytes(), type=Publication)
