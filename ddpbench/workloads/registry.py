"""Registry of workloads by name: dataset, size, and path of the model. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ddpbench.record import names
from ddpbench.workloads.families import FAMILIES, disc_mlp, gemm_mlp, vgg16, wide_resnet
from ddpbench.workloads.spec import WorkloadSpec, check_spec

_NAMES = """
alexnet
convnext_base convnext_large convnext_small convnext_tiny
densenet121 densenet161 densenet169 densenet201
efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3
efficientnet_b4 efficientnet_b5 efficientnet_b6 efficientnet_b7
efficientnet_v2_l efficientnet_v2_m efficientnet_v2_s
googlenet inception_v3 maxvit_t
mnasnet0_5 mnasnet0_75 mnasnet1_0 mnasnet1_3
mobilenet_v2 mobilenet_v3_large mobilenet_v3_small
regnet_x_16gf regnet_x_1_6gf regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf
regnet_y_128gf regnet_y_16gf regnet_y_1_6gf regnet_y_32gf regnet_y_3_2gf regnet_y_400mf regnet_y_800mf regnet_y_8gf
resnet101 resnet152 resnet18 resnet34 resnet50
resnext101_32x8d resnext101_64x4d resnext50_32x4d
shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5 shufflenet_v2_x2_0
squeezenet1_0 squeezenet1_1
swin_b swin_s swin_t swin_v2_b swin_v2_s swin_v2_t
vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn
vit_b_16 vit_b_32 vit_h_14 vit_l_16 vit_l_32
wide_resnet101_2 wide_resnet50_2
"""

TORCHVISION_NAMES = tuple(_NAMES.split())


def _torchvision_spec(name: str) -> WorkloadSpec:
    """torchvision's model ``name`` on ImageNet."""
    return WorkloadSpec(
        name=name,
        help=f"torchvision's {name} on ImageNet",
        dataset="imagenet",
        image_size=299 if name == "inception_v3" else 224,
        classes=1000,
        model=f"ddpbench.workloads.imagenet:{name}",
        modules=("torchvision",),
        batch_cuda=256,
        batch_cpu=8,
        convolutional=not name.startswith(("vit_", "swin_")),
    )


_RESNETS = "imagenet-resnet-slurm-vs-container"

_MEASURED = (
    replace(
        _torchvision_spec("resnet18"),
        help="ResNet-18 on ImageNet",
        iterations=360,
        parameters=11_689_512,
        gflop_per_sample=10.648,
        source=_RESNETS,
    ),
    replace(
        _torchvision_spec("resnet50"),
        help="ResNet-50 on ImageNet",
        iterations=360,
        parameters=25_557_032,
        gflop_per_sample=24.299,
        source=_RESNETS,
    ),
    replace(
        vgg16(64),
        name="vgg16-cifar10",
        help="VGG16 with batch norm and a convolutional classifier on CIFAR-10",
        parameters=33_650_624,
        gflop_per_sample=1.989,
    ),
    replace(wide_resnet(28, 10), parameters=36_489_290, gflop_per_sample=31.459),
    WorkloadSpec(
        name="mnist-cnn",
        help="two convolutions and two Linear layers on MNIST",
        dataset="mnist",
        image_size=28,
        classes=10,
        model="ddpbench.workloads.mnist:cnn",
        parameters=1_199_882,
        gflop_per_sample=0.07157,
        batch_cuda=512,
        batch_cpu=64,
        lr=0.05,
        weight_decay=0.0,
        source="t4-tensor-cores",
    ),
    replace(gemm_mlp(4096), name="gemm-mlp", parameters=50_343_936, gflop_per_sample=0.26844),
    replace(disc_mlp(10), parameters=703_142, gflop_per_sample=0.0042066),
)

WORKLOADS: Mapping[str, WorkloadSpec] = {name: _torchvision_spec(name) for name in TORCHVISION_NAMES} | {
    spec.name: spec for spec in _MEASURED
}
"""Workloads by name; FAMILIES has more. The explicitly defined ones state their parameters and GFLOPs."""


def find_workload(name: str) -> WorkloadSpec:
    """The workload called ``name``, or the one at ``package.module:name``.

    Raises UsageError if there is none, if its fields are invalid, or if a number in the name is out of its family's range.
    """
    if name not in WORKLOADS:
        for family in FAMILIES:
            if spec := family.find(name):
                return spec
    spec = names.find("workload", name, WORKLOADS, WorkloadSpec)
    check_spec(spec)
    return spec


def is_workload(name: str) -> bool:
    """Whether ``name`` looks like a workload's name.

    Numbers of a family may be out of range. Nothing is imported, so ``package.module:name`` is never recognised.
    """
    return name in WORKLOADS or any(family.parse_name(name) for family in FAMILIES)
