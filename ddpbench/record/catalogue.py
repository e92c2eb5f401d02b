"""Precisions and engines by name, without torch: what a name promises. A record attests what ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Dtype = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class PrecisionSpec:
    """How numbers are held. ``tf32`` is ``None`` where torch's own switches are left as they ship."""

    name: str
    help: str
    autocast: Dtype | None = None
    loss_scaling: bool = False
    tf32: bool | None = True

    @property
    def compute_dtype(self) -> str:
        """The dtype of matrix products and convolutions, as the ceilings name it."""
        return self.autocast or ("float32" if self.tf32 is False else "tf32")


PRECISIONS: Mapping[str, PrecisionSpec] = {
    spec.name: spec
    for spec in (
        PrecisionSpec("torch-default", "what runs without any flag: float32, TF32 as torch ships it (cuDNN on, matmul off)", tf32=None),
        PrecisionSpec("fp32", "float32, TF32 off for matmul and cuDNN", tf32=False),
        PrecisionSpec("tf32", "float32, TF32 on for matmul and cuDNN"),
        PrecisionSpec("amp-fp16", "autocast to float16 with dynamic loss scaling; --amp on CUDA", autocast="float16", loss_scaling=True),
        PrecisionSpec("amp-bf16", "autocast to bfloat16; --amp on a CPU", autocast="bfloat16"),
    )
}

ENGINES: Mapping[str, str] = {
    "ddp": "torch's DistributedDataParallel",
    "accelerate": "Hugging Face Accelerate: Accelerator, autocast and scaler of its own, DDP below",
}
