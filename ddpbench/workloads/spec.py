"""What a workload is, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ddpbench.record.errors import UsageError
from ddpbench.record.names import lookup
from ddpbench.record.registry import DATASETS, DatasetName


@dataclass(frozen=True, kw_only=True)
class WorkloadSpec:
    """One workload: its data, its model, its recipe of plain SGD.

    ``model`` is ``module:function``, a function ``build(image_size, classes) -> nn.Module`` from a batch of inputs to scores
    (B, classes). Inputs are samples of the ``dataset``; ``image_size``, their side in pixels, is None where these are vectors.
    ``iterations`` are the steps of a whole training on a GPU, as its publication has it where that counts steps.
    ``parameters`` are the trainable ones; ``gflops`` is forward and backward of one ``item`` of the workload's own size, 2 a
    multiply-add, as ``workloads.cost`` counts them. Both are None where only building the model tells.
    """

    name: str
    help: str
    dataset: DatasetName
    classes: int
    model: str
    image_size: int | None = None
    iterations: int = 100
    loss: Literal["cross-entropy", "mse"] = "cross-entropy"
    sample_unit: Literal["image", "point", "row"] = "image"
    batch_cuda: int
    batch_cpu: int
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-4
    convolutional: bool = True
    parameters: int | None = None
    gflop_per_sample: float | None = None
    source: str = ""
    """The published experiment that it comes from, by its id."""

    def input_shape(self, image_size: int | None) -> tuple[int, ...]:
        """The shape of one input: (channels, S, S), S being ``image_size`` or else the workload's own, or (features,).

        Raises UsageError for an image size where there are no images, and for an unknown data set.
        """
        shape = lookup("data set", self.dataset, DATASETS).input_shape(image_size or self.image_size, self.classes)
        if image_size is not None and len(shape) == 1:
            raise UsageError(f"{self.name} trains on {self.sample_unit}s of {shape[0]:,} numbers", "leave out --image-size")
        return shape
