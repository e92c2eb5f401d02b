"""Families of workloads that differ only in numbers, such as ``wrn40x2-cifar10`` or ``disc-mlp-7``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ddpbench.record.errors import UsageError
from ddpbench.workloads.spec import WorkloadSpec


@dataclass(frozen=True, kw_only=True)
class WorkloadFamily:
    """A family of workloads, named by a pattern.

    ``name`` has a word in braces per number, ``ranges`` limits each number, and ``build_spec`` takes the numbers in that order.
    """

    name: str
    help: str
    ranges: Mapping[str, range]
    build_spec: Callable[..., WorkloadSpec]

    def parse_name(self, name: str) -> list[int] | None:
        """The numbers in ``name``, in range or not; None if it is not a name of this family."""
        pattern = re.sub(r"\\{\w+\\}", r"(0|[1-9]\\d*)", re.escape(self.name))
        match = re.fullmatch(pattern, name)
        return [int(number) for number in match.groups()] if match else None

    def find(self, name: str) -> WorkloadSpec | None:
        """The workload called ``name``; None if it is not a name of this family.

        Raises UsageError if a number is out of range.
        """
        numbers = self.parse_name(name)
        if numbers is None:
            return None
        for number, (word, allowed) in zip(numbers, self.ranges.items(), strict=True):
            if number not in allowed:
                raise UsageError(f"no workload '{name}': {word} {number} is out of range", self.range_hint())
        return self.build_spec(*numbers)

    def range_hint(self) -> str:
        """The ranges as text: ``depth 10 to 100 in steps of 6, width 1 to 20``."""
        return ", ".join(f"{word} {_format_range(allowed)}" for word, allowed in self.ranges.items())


def _format_range(allowed: range) -> str:
    steps = f" in steps of {allowed.step}" if allowed.step > 1 else ""
    return f"{allowed[0]:,} to {allowed[-1]:,}{steps}"


def wide_resnet(depth: int, width: int) -> WorkloadSpec:
    """Wide-ResNet-``depth``-``width`` on CIFAR-10, with the recipe of its paper (arXiv 1605.07146)."""
    return WorkloadSpec(
        name=f"wrn{depth}x{width}-cifar10",
        help=f"Wide-ResNet-{depth}-{width}, dropout 0.3, on CIFAR-10",
        dataset="cifar10",
        image_size=32,
        classes=10,
        model=f"ddpbench.workloads.wrn:wrn{depth}x{width}",
        batch_cuda=128,
        batch_cpu=8,
        lr=0.1,
        weight_decay=5e-4,
        source="wrn-cifar10-apex-levels",
    )


def vgg16(width: int) -> WorkloadSpec:
    """VGG16 with ``width`` channels in its first stage.

    The other stages keep the published proportions.
    """
    return WorkloadSpec(
        name=f"vgg16-{width}-cifar10",
        help=f"VGG16 of {width} to {8 * width} channels with batch norm on CIFAR-10",
        dataset="cifar10",
        image_size=32,
        classes=10,
        model=f"ddpbench.workloads.cifar:vgg16x{width}",
        batch_cuda=128,
        batch_cpu=32,
        source="vgg16-cifar10-batch-sweep",
    )


def disc_mlp(layers: int) -> WorkloadSpec:
    """An MLP that classifies points as inside or outside a disc.

    It has ``layers`` layers, each twice as wide as the previous one.
    """
    return WorkloadSpec(
        name=f"disc-mlp-{layers}",
        help=f"MLP of {layers} layers, 2-4-...-{2**layers}-2, on 1,000 points in and around a disc",
        dataset="disc",
        classes=2,
        sample_unit="point",
        model=f"ddpbench.workloads.mlp:disc{layers}",
        batch_cuda=100,
        batch_cpu=100,
        lr=0.1,
        momentum=0.0,
        weight_decay=0.0,
        convolutional=False,
        source="disc-mlp-cpu-vs-gpu",
    )


def gemm_mlp(width: int) -> WorkloadSpec:
    """Three square Linear layers of ``width``: almost only matrix products."""
    return WorkloadSpec(
        name=f"gemm-mlp-{width}",
        help=f"three Linear {width}-{width} and a squared error",
        dataset="gemm",
        classes=width,
        iterations=150,
        loss="mse",
        sample_unit="row",
        model="ddpbench.workloads.mlp:gemm",
        batch_cuda=512,
        batch_cpu=16,
        lr=1e-3,
        momentum=0.0,
        weight_decay=0.0,
        convolutional=False,
        source="t4-tensor-cores",
    )


FAMILIES = (
    WorkloadFamily(
        name="wrn{depth}x{width}-cifar10",
        help="Wide-ResNet of that depth and width, dropout 0.3, on CIFAR-10",
        ranges={"depth": range(10, 101, 6), "width": range(1, 21)},
        build_spec=wide_resnet,
    ),
    WorkloadFamily(
        name="vgg16-{width}-cifar10",
        help="VGG16 with that many channels in its first stage, 64 in vgg16-cifar10",
        ranges={"width": range(1, 257)},
        build_spec=vgg16,
    ),
    WorkloadFamily(
        name="disc-mlp-{layers}",
        help="MLP that doubles its width with every layer, on 1,000 points in and around a disc",
        ranges={"layers": range(2, 13)},
        build_spec=disc_mlp,
    ),
    WorkloadFamily(
        name="gemm-mlp-{width}",
        help="three square Linear layers of that width and a squared error",
        ranges={"width": range(8, 16385)},
        build_spec=gemm_mlp,
    ),
)
