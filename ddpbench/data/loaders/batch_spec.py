"""Whether a batch of somebody's own is one that the model can be trained on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ddpbench.data.loader import HostBatch
from ddpbench.record.errors import BenchError


@dataclass(frozen=True)
class BatchSpec:
    """What a model takes: samples of a ``shape``, and labels of ``classes``, or with a squared error ``targets`` as many as these."""

    shape: tuple[int, ...]
    classes: int
    targets: bool = False

    def check(self, batch: HostBatch, name: str) -> None:
        """Raises BenchError, naming the loader. Where labels lie on the host they are looked at; a device would be waited for."""
        samples, labels = batch.samples, batch.labels
        if samples.shape[1:] != self.shape or samples.dtype != torch.float32:
            wanted = "x".join(map(str, self.shape))
            raise BenchError(
                f"'{name}' gives samples of {'x'.join(map(str, samples.shape[1:]))} in {_dtype_name(samples.dtype)}, "
                f"and the model takes {wanted} in float32",
                "convert them, or choose --image-size",
            )
        what, shape, dtype = ("labels", samples.shape[:1], torch.int64)
        if self.targets:
            what, shape, dtype = ("targets", torch.Size([len(samples), self.classes]), torch.float32)
        if labels.shape != shape or labels.dtype != dtype:
            raise BenchError(
                f"'{name}' gives {what} of shape {tuple(labels.shape)} in {_dtype_name(labels.dtype)}, "
                f"and the model takes {tuple(shape)} in {_dtype_name(dtype)}",
                "convert them",
            )
        if not self.targets and labels.device.type == "cpu" and len(labels):
            least, greatest = (int(each) for each in labels.aminmax())
            if least < 0 or greatest >= self.classes:
                raise BenchError(
                    f"'{name}' gives labels from {least:,} to {greatest:,}, and the model takes 0 to {self.classes - 1:,}",
                    "number the classes from 0, or use another workload",
                )


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
