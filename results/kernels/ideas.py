"""What each idea in a fast step gains: the step with all of them, and with each left out in turn.

    torchrun --standalone --nproc_per_node=1 results/kernels/ideas.py resnet50 256 ideas-resnet50.json [--rounds 6]

Trains as ``steps.py`` does: all trainings in one process, in turn, forwards and backwards. The prediction is the difference of the bytes
that the operators of one step move, divided by the measured rate of copies; what saves launches or waits has no prediction.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torchvision
from torch import distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness-tax"))

from bare import bare_windows, start_rank, unchanged, windows_in_turn

from ddpbench.analysis.stats import ratio_of
from ddpbench.kernels import fuse
from ddpbench.kernels.deferred import FusedBatchNorm2d
from ddpbench.kernels.images import ImageConv2d
from ddpbench.kernels.modules import GlobalAvgPool2d, ShortcutConv2d
from ddpbench.machine.backends import configure_backends
from ddpbench.machine.device import describe_device
from ddpbench.machine.peaks import measure_copy_bytes_per_s
from ddpbench.training.engines import BROADCAST_FLAG
from ddpbench.training.layer_tracker import LayerTracker
from ddpbench.training.roofline import OperatorCounter

WARMUP = 20


def without(kind: type[nn.Module]) -> Callable[[nn.Module], nn.Module]:
    """``fuse``, but modules of ``kind`` stay what they were."""

    def prepare(model: nn.Module) -> nn.Module:
        for module in fuse(model).modules():
            if type(module) is kind:
                module.__class__ = kind.__base__  # type: ignore[assignment]
        return model

    return prepare


def without_pools(model: nn.Module) -> nn.Module:
    for module in fuse(model).modules():
        if isinstance(module, FusedBatchNorm2d):
            module.pools = False
    return model


@dataclass(frozen=True)
class Training:
    """A training of the bare loop."""

    prepare: Callable[[nn.Module], nn.Module] = fuse
    in_graph: bool = True
    settings: dict[str, Any] = field(default_factory=lambda: {BROADCAST_FLAG: False})


ALL = "all"
TRAININGS = {
    ALL: Training(),
    "fused kernels": Training(unchanged),
    "max-pool in the kernels of its BatchNorm": Training(without_pools),
    "convolution of images over blocks": Training(without(ImageConv2d)),
    "gradient of global average pooling in channels-last": Training(without(GlobalAvgPool2d)),
    "gradients of a shortcut added in a kernel": Training(without(ShortcutConv2d)),
    "CUDA graph": Training(in_graph=False),
    "no broadcast of buffers": Training(settings={}),
}
"""What is left out of each training, except for the first."""


def bytes_per_image(model_name: str, prepare: Callable[[nn.Module], nn.Module], device: torch.device) -> float:
    """Bytes that the operators of forward and backward move."""
    batch = 8
    model = prepare(torchvision.models.get_model(model_name).to(device).to(memory_format=torch.channels_last))
    images = torch.randn(batch, 3, 224, 224, device=device).contiguous(memory_format=torch.channels_last)
    with OperatorCounter(LayerTracker({}), device.type) as counter:
        with torch.autocast(device.type, torch.float16 if device.type == "cuda" else torch.bfloat16):
            loss = model(images).float().square().mean()
        loss.backward()
    return sum(place.num_bytes for place in counter.counted.values()) / batch


def main(model: str, batch_size: int, target: Path, steps: int, rounds: int) -> None:
    """Measure ``rounds`` windows of each training and write them to ``target``."""
    device = start_rank()
    configure_backends(tf32=True)
    bytes_per_s = measure_copy_bytes_per_s(describe_device(device))
    moved = {name: bytes_per_image(model, training.prepare, device) for name, training in TRAININGS.items()}
    dtype = torch.float16 if device.type == "cuda" else torch.bfloat16
    trainings = {
        name: bare_windows(
            model, batch_size, device, steps, WARMUP, dtype, each.prepare, each.in_graph and device.type == "cuda", **each.settings
        )
        for name, each in TRAININGS.items()
    }
    step_ms = {name: [1e3 * each / steps for each in seconds] for name, seconds in windows_in_turn(trainings, rounds, device).items()}
    words = f"{model} {batch_size} {target.name} --steps {steps} --rounds {rounds}"
    result = {
        "command": f"torchrun --nproc_per_node=1 results/kernels/ideas.py {words}",
        "device": describe_device(device).name,
        "torch": str(torch.__version__),
        "copy_gb_per_s": bytes_per_s / 1e9,
        "step_ms": step_ms,
        "ideas": [gain_of(name, step_ms, 1e3 * batch_size * (moved[name] - moved[ALL]) / bytes_per_s) for name in list(TRAININGS)[1:]],
    }
    target.write_text(json.dumps(result, indent=1) + "\n")
    dist.destroy_process_group()


def gain_of(name: str, step_ms: dict[str, list[float]], predicted_ms: float) -> dict[str, Any]:
    """What the idea ``name`` saves of a step; also printed."""
    longer, measured_ms = ratio_of(step_ms[ALL], step_ms[name]), median(step_ms[name]) - median(step_ms[ALL])
    predicted = f", predicted {predicted_ms:.2f} ms" if predicted_ms else ""
    print(f"{name:52} saves {measured_ms:6.2f} of {median(step_ms[name]):.2f} ms{predicted}", flush=True)
    return {
        "idea": name,
        "predicted_ms": predicted_ms or None,
        "measured_ms": measured_ms,
        "step_without_relative_to_all": [longer.center, longer.low, longer.high],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="name of a model of torchvision")
    parser.add_argument("batch_size", type=int, metavar="BATCH", help="per GPU")
    parser.add_argument("target", type=Path, metavar="TARGET.json")
    parser.add_argument("--steps", type=int, default=20, help="per window (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=6, help="default: %(default)s")
    main(**vars(parser.parse_args()))
