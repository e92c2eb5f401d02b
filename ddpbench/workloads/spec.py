"""The definition of a workload, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import msgspec

from ddpbench.record.errors import UsageError
from ddpbench.record.ranges import AtLeastOne
from ddpbench.record.registry import DATASETS, DatasetName
from ddpbench.record.text import format_validation_error

Loss = Literal["cross-entropy", "mse"]
SampleUnit = Literal["image", "point", "row"]


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
    classes: AtLeastOne
    model: str
    modules: tuple[str, ...] = ()
    image_size: AtLeastOne | None = None
    iterations: AtLeastOne = 100
    loss: Loss = "cross-entropy"
    sample_unit: SampleUnit = "image"
    batch_cuda: AtLeastOne
    batch_cpu: AtLeastOne
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

        Raises UsageError if ``image_size`` is set but inputs are not images.
        """
        shape = DATASETS[self.dataset].input_shape(image_size or self.image_size, self.classes)
        if image_size is not None and len(shape) == 1:
            raise UsageError(f"{self.name} trains on {self.sample_unit}s of {shape[0]:,} numbers", "drop --image-size")
        return shape


def check_spec(spec: WorkloadSpec) -> None:
    """Raise UsageError if a field of ``spec`` is invalid, or contradicts its dataset."""
    workload = f"workload '{spec.name}'"
    for field, allowed in (("dataset", DatasetName), ("loss", Loss), ("sample_unit", SampleUnit)):
        if getattr(spec, field) not in get_args(allowed):
            raise UsageError(f"{workload}: unknown {field} '{getattr(spec, field)}'", f"use one of {', '.join(get_args(allowed))}")
    try:
        msgspec.convert(vars(spec), WorkloadSpec)
    except msgspec.ValidationError as problem:
        raise UsageError(f"{workload}: {format_validation_error(problem)}", "correct this field of the WorkloadSpec") from problem
    if DATASETS[spec.dataset].channels and spec.image_size is None:
        raise UsageError(f"{workload}: the dataset {spec.dataset} has images, but there is no image_size", "set image_size in the spec")
    if not DATASETS[spec.dataset].channels and spec.image_size is not None:
        raise UsageError(f"{workload}: the dataset {spec.dataset} has vectors, which have no image_size", "set image_size=None in the spec")
    loss: Loss = "mse" if spec.dataset == "gemm" else "cross-entropy"
    if spec.loss != loss:
        labels = "rows of numbers" if loss == "mse" else "classes"
        raise UsageError(f"{workload}: the labels of {spec.dataset} are {labels}, which do not fit {spec.loss}", f'set loss="{loss}"')
