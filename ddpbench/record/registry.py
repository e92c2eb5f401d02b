"""Registries of precisions, engines and datasets, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ddpbench.record.names import lookup

Dtype = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class PrecisionSpec:
    """Dtypes, loss scaling and TF32 of a precision. ``tf32=None`` keeps torch's defaults."""

    name: str
    help: str
    model_dtype: Dtype = "float32"  # of parameters and inputs, except BatchNorm
    batch_norm_dtype: Dtype = "float32"
    master_weights: bool = False  # the optimizer updates float32 copies of the parameters
    autocast_dtype: Dtype | None = None
    loss_scaling: bool = False  # dynamic, unless a static scale is requested
    tf32: bool | None = True

    @property
    def aliases(self) -> list[str]:
        """Its other names."""
        return [alias for alias, name in PRECISION_ALIASES.items() if name == self.name]

    @property
    def compute_dtype(self) -> str:
        """Dtype of matrix products and convolutions, as a key of ``PeakThroughput.matmul_tflops``."""
        return self.layer_dtype if self.layer_dtype != "float32" or self.tf32 is False else "tf32"

    @property
    def layer_dtype(self) -> Dtype:
        """Input dtype of convolutions and linear layers."""
        return self.autocast_dtype or self.model_dtype

    def static_loss_scale(self, requested: float | None) -> float | None:
        """``requested`` for float16; None for other dtypes, in which gradients do not underflow."""
        return requested if self.layer_dtype == "float16" else None

    def scales_loss(self, requested: float | None) -> bool:
        """Whether the loss is scaled, dynamically or by the static scale ``requested``."""
        return self.loss_scaling or self.static_loss_scale(requested) is not None


PRECISIONS: Mapping[str, PrecisionSpec] = {
    spec.name: spec
    for spec in (
        PrecisionSpec("torch-default", "the default: float32 with torch's TF32 settings (cuDNN on, matmul off)", tf32=None),
        PrecisionSpec("fp32", "float32, TF32 off for matmul and cuDNN; alias O0", tf32=False),
        PrecisionSpec("tf32", "float32, TF32 on for matmul and cuDNN"),
        PrecisionSpec(
            "amp-fp16", "autocast to float16, dynamic loss scaling; --amp on CUDA; alias O1", autocast_dtype="float16", loss_scaling=True
        ),
        PrecisionSpec("amp-bf16", "autocast to bfloat16; --amp on the CPU", autocast_dtype="bfloat16"),
        PrecisionSpec(
            "o2",
            "float16, with float32 BatchNorm and master weights; dynamic loss scaling; alias O2",
            model_dtype="float16",
            master_weights=True,
            loss_scaling=True,
        ),
        PrecisionSpec("fp16", "float16 throughout, no loss scaling; alias O3", model_dtype="float16", batch_norm_dtype="float16"),
        PrecisionSpec("bf16", "bfloat16 throughout", model_dtype="bfloat16", batch_norm_dtype="bfloat16"),
    )
}

PRECISION_ALIASES: Mapping[str, str] = {"O0": "fp32", "O1": "amp-fp16", "O2": "o2", "O3": "fp16"}
"""Optimisation levels of NVIDIA's apex.amp, which introduced these precisions, and their names here."""


def find_precision(name: str) -> PrecisionSpec:
    """The precision called ``name``, or the one of an apex level in either case. Raises UsageError with "did you mean"."""
    return lookup("precision", PRECISION_ALIASES.get(name.upper(), name), PRECISIONS)


ENGINES: Mapping[str, str] = {
    "ddp": "torch.nn.parallel.DistributedDataParallel",
    "accelerate": "Hugging Face Accelerate, with its own autocast and gradient scaler, on top of DDP",
    "no-sync": "DDP in no_sync(): its hooks run, but gradients are never averaged",
    "none": "no gradient sync: every rank trains independently, to measure the cost of gradient sync",
}

ENGINES_WITHOUT_SYNC = ("none", "no-sync")
"""Engines that do not synchronise gradients."""


DatasetName = Literal["imagenet", "cifar10", "mnist", "disc", "gemm"]


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """One dataset: images with ``channels`` channels, or vectors if ``channels`` is 0.

    Vectors have ``features`` elements, or one per class if ``features`` is 0.
    """

    title: str
    channels: int = 0
    features: int = 0

    @property
    def has_files(self) -> bool:
        """Whether samples can be read from ``--data-dir``. Vectors are always generated."""
        return self.channels > 0

    def input_shape(self, image_size: int | None, classes: int) -> tuple[int, ...]:
        """Shape of one sample: (channels, S, S), where S is ``image_size`` in pixels, or (features,)."""
        if not self.channels:
            return (self.features or classes,)
        assert image_size, "images have a size"
        return (self.channels, image_size, image_size)


DATASETS: Mapping[str, DatasetSpec] = {
    "imagenet": DatasetSpec(title="ImageNet", channels=3),
    "cifar10": DatasetSpec(title="CIFAR-10", channels=3),
    "mnist": DatasetSpec(title="MNIST", channels=1),
    "disc": DatasetSpec(title="disc points", features=2),
    "gemm": DatasetSpec(title="matrices"),
}
"""Every dataset by name."""
