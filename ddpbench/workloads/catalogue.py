"""The workloads by name: what each trains on, its size, and where its model is built. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ddpbench.record import names
from ddpbench.workloads.torchvision_names import TORCHVISION_NAMES


@dataclass(frozen=True, kw_only=True)
class WorkloadSpec:
    """One workload; its loss is cross-entropy.

    ``model`` is ``module:function``, a function ``build(image_size, classes) -> nn.Module`` from images (B, 3, S, S) to
    scores (B, classes). ``parameters`` are the trainable ones; ``gflops`` is forward and backward of one image of
    ``image_size``, 2 a multiply-add, as ``workloads.cost`` counts them. Both are None where only building the model tells.
    """

    name: str
    help: str
    dataset: Literal["imagenet", "cifar10"]
    image_size: int
    classes: int
    model: str
    parameters: int | None = None
    gflops: float | None = None
    batch_cuda: int
    batch_cpu: int
    convolutional: bool = True


def _imagenet(name: str) -> WorkloadSpec:
    """torchvision's model ``name`` on ImageNet."""
    return WorkloadSpec(
        name=name,
        help=f"torchvision's {name} on ImageNet",
        dataset="imagenet",
        image_size=299 if name == "inception_v3" else 224,
        classes=1000,
        model=f"ddpbench.workloads.imagenet:{name}",
        batch_cuda=256,
        batch_cpu=8,
        convolutional=not name.startswith(("vit_", "swin_")),
    )


_NAMED = (
    replace(_imagenet("resnet18"), help="ResNet-18 on ImageNet", parameters=11_689_512, gflops=10.648),
    replace(_imagenet("resnet50"), help="ResNet-50 on ImageNet", parameters=25_557_032, gflops=24.299),
    WorkloadSpec(
        name="vgg16-cifar10",
        help="VGG16 with batch norm and a convolutional classifier on CIFAR-10",
        dataset="cifar10",
        image_size=32,
        classes=10,
        model="ddpbench.workloads.cifar:vgg16",
        parameters=33_650_624,
        gflops=1.989,
        batch_cuda=128,
        batch_cpu=32,
    ),
)

WORKLOADS: Mapping[str, WorkloadSpec] = {name: _imagenet(name) for name in TORCHVISION_NAMES} | {spec.name: spec for spec in _NAMED}
"""Every workload by name. The named ones carry their parameters and GFLOPs."""


def find(name: str) -> WorkloadSpec:
    """The workload called ``name``, or the one that ``package.module:name`` points at. Raises UsageError where there is none."""
    return names.find("workload", name, WORKLOADS, WorkloadSpec)
