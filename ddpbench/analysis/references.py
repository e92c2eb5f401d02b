"""Published throughputs of ResNet-50 v1.5 that a run of it may be set beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddpbench.record.catalogue import PRECISIONS
from ddpbench.record.published import Reference, references
from ddpbench.record.record import Record

WORKLOAD, IMAGE_SIZE = "resnet50", 224

HALF = ("AMP", "fp16 mixed")

PUBLISHED_AS: Mapping[str, Sequence[str]] = {"float16": HALF, "bfloat16": HALF, "tf32": ("TF32",)}
"""What the sources call a precision that computes in this dtype. Nobody trains it in plain float32."""


@dataclass(frozen=True)
class Beside:
    """A published throughput, and how many times as fast a GPU was here."""

    reference: Reference
    ratio: float


def beside(record: Record) -> list[Beside]:
    """Every published throughput of the same class of precision; none for another model or size, a processor, or without a figure."""
    config, headline = record.config, record.headline
    if headline is None or record.environment.device_type != "cuda" or (config.workload, config.image_size) != (WORKLOAD, IMAGE_SIZE):
        return []
    alike = PUBLISHED_AS.get(PRECISIONS[config.precision].compute_dtype, ())
    here = headline.images_per_s / record.world_size
    return [Beside(each, here / (each.images_per_s / each.gpus)) for each in references() if each.precision in alike]
