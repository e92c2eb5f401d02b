"""Arms of the published experiments, at full size and shrunk for a quick try.

Settings that a source leaves open are chosen and stated here. No source used channels-last, which PyTorch added later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddpbench.bench.arm_specs import ArmSpec, build_request
from ddpbench.published import crossover_sides
from ddpbench.record.config import Config
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.request import OutputOptions, Request
from ddpbench.record.roles import EARLIER_MODEL_ALIVE

DISC_EXPERIMENT = "disc-mlp-cpu-vs-gpu"

QUICK_OVERRIDES: dict[str, Any] = {
    "epochs": None,
    "steps": 1,
    "rounds": 2,
    "warmup": 1,
    "validate": False,  # too short for accuracy
    "static_loss_scale": 1.0,  # too short to find a scale, and gradients of a few samples overflow
    "channels_last": True,  # half-precision convolutions on a CPU take twice as long in the default layout
}
"""Overrides for a quick run, which only shows that the training works."""


def reproduction_request(name: str, quick: bool, overrides: Mapping[str, Any], output: OutputOptions, command: Sequence[str]) -> Request:
    """The arms of the published experiment ``name``, shrunk if ``quick``.

    ``overrides`` are Config fields for every arm: device, data, length.
    """
    if name != DISC_EXPERIMENT:
        return build_request(PROTOCOLS[name](quick), overrides, output, command)
    remaining = {field: value for field, value in overrides.items() if field != "device"}
    device = overrides.get("device", "auto")
    return build_request(disc_arms(quick, [] if device == "auto" else [device]), remaining, output, command)


def disc_arms(quick: bool, devices: Sequence[str]) -> list[ArmSpec]:
    """Arms that compare CPU and GPU, or two CPU thread counts if ``devices`` names the CPU.

    ``quick`` shrinks them. Raises UsageError if ``devices`` names the GPU only.
    """
    if devices and devices[0] == "cuda":
        raise UsageError("the disc experiment compares a GPU with a CPU, but --device cuda selects only the GPU", "drop --device")
    depths = range(2, 7) if quick else range(2, 13)
    return crossover_sides.crossover_arms("disc-mlp", crossover_sides.resolve_sides(devices), depths, *((5, 2) if quick else ()))


def t4_tensor_cores(quick: bool) -> list[ArmSpec]:
    """Three square Linear layers, and a small CNN on MNIST.

    The source leaves the CNN's optimizer open: plain SGD, the workload's default.
    """
    gemm_settings = _shared_settings(150, rounds=5, batch_size=512, set_to_none=False, loader=SYNTHETIC, validate=False)
    mnist_settings = _shared_settings(epochs=20, rounds=1, schedule="step", loader="torch", workers=2, pin_memory=False, log_loss=True)
    gemm, batches = "gemm-mlp", (512, 1024)
    if quick:
        gemm, batches = "gemm-mlp-128", (2, 4)
        gemm_settings |= {"batch_size": 16, "steps": 10, "rounds": 2}
        mnist_settings |= QUICK_OVERRIDES | {"steps": 2}
    return [
        ArmSpec(Config(workload=gemm, precision="fp32", **gemm_settings)),
        ArmSpec(Config(workload=gemm, precision="amp-fp16", **gemm_settings), EARLIER_MODEL_ALIVE),
        ArmSpec(Config(workload=gemm, precision="amp-fp16", **gemm_settings)),
        ArmSpec(Config(workload="mnist-cnn", precision="fp32", batch_size=batches[0], **mnist_settings)),
        ArmSpec(Config(workload="mnist-cnn", precision="amp-fp16", batch_size=batches[0], **mnist_settings)),
        ArmSpec(Config(workload="mnist-cnn", precision="amp-fp16", batch_size=batches[1], **mnist_settings)),
    ]


def wrn_cifar10_apex_levels(quick: bool) -> list[ArmSpec]:
    """A Wide-ResNet at levels O0 to O3; then two slow CPU cores at batch size 512.

    The second part also trains a smaller Wide-ResNet.
    """
    workload, smaller, batch, large = "wrn28x10-cifar10", "wrn16x2-cifar10", 128, 512
    full_settings = _shared_settings(epochs=10, rounds=1, schedule="linear", loader="torch")
    starved_settings = _shared_settings(20, rounds=5, loader="torch", cores=2, workers=2, validate=False)
    if quick:
        workload, smaller, batch, large = "wrn10x2-cifar10", "wrn10x1-cifar10", 1, 2
        full_settings |= QUICK_OVERRIDES
        starved_settings |= QUICK_OVERRIDES | {"cores": 1, "workers": 1}
    levels = ("fp32", "amp-fp16", "o2")
    return [
        *(ArmSpec(Config(workload=workload, precision=level, batch_size=batch, **full_settings)) for level in (*levels, "fp16")),
        *(
            ArmSpec(Config(workload=name, precision=level, batch_size=large, **starved_settings))
            for name in (workload, smaller)
            for level in levels
        ),
    ]


def vgg16_cifar10_batch_sweep(quick: bool) -> list[ArmSpec]:
    """VGG16 in three precisions, five batch sizes, 100 iterations, five times.

    The source's FP16 is o2 with a static loss scale.
    """
    settings = _shared_settings(100, rounds=5, loader="torch", workers=0, shuffle=False, augment=False, pin_memory=False)
    settings |= {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.0}
    workload, batches = "vgg16-cifar10", [128, 256, 512, 1024, 2048]
    if quick:
        workload, batches = "vgg16-4-cifar10", [2, 3]
        settings |= QUICK_OVERRIDES
    return [
        ArmSpec(Config(workload=workload, precision=precision, batch_size=batch, **{"static_loss_scale": scale, **settings}))
        for precision, scale in (("fp32", None), ("o2", 128.0), ("amp-fp16", None))
        for batch in batches
    ]


def imagenet_resnet_slurm_vs_container(quick: bool) -> list[ArmSpec]:
    """ResNet-18 and ResNet-50 with four loader workers.

    The source's FP16 is o2. Its FP32 command sets the loss scale too.
    """
    settings = _shared_settings(360, rounds=1, batch_size=128, static_loss_scale=256.0, loader="torch", workers=4, validate=False)
    if quick:
        settings |= QUICK_OVERRIDES | {"batch_size": 4, "image_size": 32, "workers": 1}
    return [
        ArmSpec(Config(workload=workload, precision=precision, **settings))
        for workload in ("resnet18", "resnet50")
        for precision in ("fp32", "o2")
    ]


PROTOCOLS: Mapping[str, Callable[[bool], list[ArmSpec]]] = {
    "t4-tensor-cores": t4_tensor_cores,
    "wrn-cifar10-apex-levels": wrn_cifar10_apex_levels,
    "vgg16-cifar10-batch-sweep": vgg16_cifar10_batch_sweep,
    "imagenet-resnet-slurm-vs-container": imagenet_resnet_slurm_vs_container,
}
"""Publication id -> its arms. The disc experiment is missing: its arms depend on the devices."""


def _shared_settings(steps: int | None = None, **settings: Any) -> dict[str, Any]:
    """Settings of all protocols: every round trains from scratch, in the default memory layout."""
    return {"steps": steps, "fresh": True, "channels_last": False, **settings}
