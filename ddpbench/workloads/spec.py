"""The definition of a workload, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ddpbench.record.errors import UsageError
from ddpbench.record.names import lookup
from ddpbench.record.registry import DATASETS, DatasetName


@dataclass(frozen=True, kw_only=True)
class WorkloadSpec:
    """One workload: its dataset, model and SGD recipe.

    ``model`` is ``module:function``, a function ``build(image_size, classes) -> nn.Module`` whose model maps a batch of inputs to scores
    (B, classes); it needs the optional ``modules``. Inputs are samples of ``dataset``; ``image_size`` is their side in pixels, None for
    vectors. ``iterations`` is the steps of a whole training on a GPU, as published if the publication counts steps. ``parameters`` counts
    trainable parameters; ``gflop_per_sample`` is forward and backward of one sample at ``image_size`` (2 per multiply-add), as counted by
    ``workloads.model_cost``. Both are None if they are known only after building the model.
    """

    name: str
    help: str
    dataset: DatasetName
    classes: int
    model: str
    modules: tuple[str, ...] = ()
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
    """Id of the published experiment that the workload reproduces."""

    def input_shape(self, image_size: int | None) -> tuple[int, ...]:
        """Shape of one input: (channels, S, S), S being ``image_size`` or the workload's own, or (features,).

        Raises UsageError if ``image_size`` is set but inputs are not images, and for an unknown dataset.
        """
        shape = lookup("dataset", self.dataset, DATASETS).input_shape(image_size or self.image_size, self.classes)
        if image_size is not None and len(shape) == 1:
            raise UsageError(f"{self.name} trains on {self.sample_unit}s of {shape[0]:,} numbers", "drop --image-size")
        return shape
