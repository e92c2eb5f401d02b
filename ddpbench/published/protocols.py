"""The published experiments as cells: what each of them trained, and the same made small for a try.

What a source leaves open is chosen here, and said. None of them used the channels-last layout, which PyTorch got later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddpbench.bench.sweep import ArmSpec, build_request
from ddpbench.published import crossover
from ddpbench.published.sweep_points import EARLIER_MODEL_ALIVE
from ddpbench.record.config import Config
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.request import OutputOptions, Request

DISC_EXPERIMENT = "disc-mlp-cpu-vs-gpu"

QUICK_OVERRIDES: dict[str, Any] = {
    "epochs": None,
    "steps": 1,
    "rounds": 2,
    "warmup": 1,
    "validate": False,  # too short for accuracy
    "static_loss_scale": 1.0,  # too short to find one, and gradients of a few samples overflow
    "channels_last": True,  # half convolutions on a processor take twice as long in the plain layout
}
"""A training that shows that it runs."""


def reproduction_request(name: str, quick: bool, overrides: Mapping[str, Any], output: OutputOptions, command: Sequence[str]) -> Request:
    """What the published experiment ``name`` trains, all of it or made small.

    ``overrides`` are fields of Config that hold in every cell: where, on which data, for how long.
    """
    if name != DISC_EXPERIMENT:
        return build_request(PROTOCOLS[name](quick), overrides, output, command)
    others = {field: value for field, value in overrides.items() if field != "device"}
    device = overrides.get("device", "auto")
    return build_request(disc_arms(quick, [] if device == "auto" else [device]), others, output, command)


def disc_arms(quick: bool, devices: Sequence[str]) -> list[ArmSpec]:
    """The crossover of the processor and the GPU, or of the processor with itself where it is named, or the same made small for a try.

    Raises UsageError for the GPU alone.
    """
    if devices and devices[0] == "cuda":
        raise UsageError("the disc sets a GPU beside a processor, and --device cuda leaves the GPU alone", "leave --device out")
    depths = range(2, 7) if quick else range(2, 13)
    return crossover.crossover_arms("disc-mlp", crossover.resolve_sides(devices), depths, *((5, 2) if quick else ()))


def t4_tensor_cores(quick: bool) -> list[ArmSpec]:
    """Three square Linear layers, and a small CNN on MNIST. The optimizer of the CNN is open: plain SGD, as the workload has it."""
    products = _shared_settings(150, rounds=5, batch_size=512, set_to_none=False, loader=SYNTHETIC, validate=False)
    digits = _shared_settings(epochs=20, rounds=1, schedule="step", loader="torch", workers=2, pin_memory=False, log_loss=True)
    gemm, batches = "gemm-mlp", (512, 1024)
    if quick:
        gemm, batches = "gemm-mlp-128", (2, 4)
        products |= {"batch_size": 16, "steps": 10, "rounds": 2}
        digits |= QUICK_OVERRIDES | {"steps": 2}
    return [
        ArmSpec(Config(workload=gemm, precision="fp32", **products)),
        ArmSpec(Config(workload=gemm, precision="amp-fp16", **products), EARLIER_MODEL_ALIVE),
        ArmSpec(Config(workload=gemm, precision="amp-fp16", **products)),
        ArmSpec(Config(workload="mnist-cnn", precision="fp32", batch_size=batches[0], **digits)),
        ArmSpec(Config(workload="mnist-cnn", precision="amp-fp16", batch_size=batches[0], **digits)),
        ArmSpec(Config(workload="mnist-cnn", precision="amp-fp16", batch_size=batches[1], **digits)),
    ]


def wrn_cifar10_apex_levels(quick: bool) -> list[ArmSpec]:
    """A Wide-ResNet under the levels O0 to O3; then the claim on two weak cores, for it and for a smaller one, at batch 512."""
    workload, smaller, batch, large = "wrn28x10-cifar10", "wrn16x2-cifar10", 128, 512
    whole = _shared_settings(epochs=10, rounds=1, schedule="linear", loader="torch")
    starved = _shared_settings(20, rounds=5, loader="torch", cores=2, workers=2, validate=False)
    if quick:
        workload, smaller, batch, large = "wrn10x2-cifar10", "wrn10x1-cifar10", 1, 2
        whole |= QUICK_OVERRIDES
        starved |= QUICK_OVERRIDES | {"cores": 1, "workers": 1}
    levels = ("fp32", "amp-fp16", "o2")
    return [
        *(ArmSpec(Config(workload=workload, precision=level, batch_size=batch, **whole)) for level in (*levels, "fp16")),
        *(ArmSpec(Config(workload=name, precision=level, batch_size=large, **starved)) for name in (workload, smaller) for level in levels),
    ]


def vgg16_cifar10_batch_sweep(quick: bool) -> list[ArmSpec]:
    """VGG16 in three precisions over five batch sizes, 100 iterations, five times. What it called FP16 is o2 with a static scale."""
    how = _shared_settings(100, rounds=5, loader="torch", workers=0, shuffle=False, augment=False, pin_memory=False)
    how |= {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.0}
    workload, batches = "vgg16-cifar10", [128, 256, 512, 1024, 2048]
    if quick:
        workload, batches = "vgg16-4-cifar10", [2, 3]
        how |= QUICK_OVERRIDES
    return [
        ArmSpec(Config(workload=workload, precision=precision, batch_size=batch, **{"static_loss_scale": scale, **how}))
        for precision, scale in (("fp32", None), ("o2", 128.0), ("amp-fp16", None))
        for batch in batches
    ]


def imagenet_resnet_slurm_vs_container(quick: bool) -> list[ArmSpec]:
    """ResNet-18 and ResNet-50 fed by four loader workers. What it called FP16 is o2; its FP32 command carries the scale too."""
    how = _shared_settings(360, rounds=1, batch_size=128, static_loss_scale=256.0, loader="torch", workers=4, validate=False)
    if quick:
        how |= QUICK_OVERRIDES | {"batch_size": 4, "image_size": 32, "workers": 1}
    return [
        ArmSpec(Config(workload=workload, precision=precision, **how))
        for workload in ("resnet18", "resnet50")
        for precision in ("fp32", "o2")
    ]


PROTOCOLS: Mapping[str, Callable[[bool], list[ArmSpec]]] = {
    "t4-tensor-cores": t4_tensor_cores,
    "wrn-cifar10-apex-levels": wrn_cifar10_apex_levels,
    "vgg16-cifar10-batch-sweep": vgg16_cifar10_batch_sweep,
    "imagenet-resnet-slurm-vs-container": imagenet_resnet_slurm_vs_container,
}
"""By the id of the publication. The fifth, the disc, is a crossover: its cells follow from the devices."""


def _shared_settings(steps: int | None = None, **how: Any) -> dict[str, Any]:
    """What all of them share: every round a training from the start, with the plain memory layout."""
    return {"steps": steps, "fresh": True, "channels_last": False, **how}
