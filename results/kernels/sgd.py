"""What an update by SGD takes with torch's fused implementation and in Triton kernels, of the gradients in the buckets of DDP.

    torchrun --standalone --nproc_per_node=1 results/kernels/sgd.py vgg16-cifar10 sgd-vgg16-cifar10.json

An update searches for infinite gradients, unscales them and changes weights and momenta; torch's does so in the order of ``--fast``.
Updates are replayed as CUDA graphs, in turn, forwards and backwards (ABBA). The limit of each is the time in which a copy moves the bytes
that it must read and write.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness-tax"))

from bare import start_rank, windows_in_turn

from ddpbench.analysis.stats import ratio_of
from ddpbench.kernels.sgd import SGD
from ddpbench.machine.device import describe_device
from ddpbench.machine.peaks import measure_copy_bytes_per_s
from ddpbench.training.precision import GradScaler
from ddpbench.workloads.init_model import init_model
from ddpbench.workloads.registry import find_workload

BATCH, STEPS_BEFORE = 8, 3
"""Images of the steps that make the gradients, and their number: in the second, DDP rebuilds its buckets."""

CONSTANT = {"init_scale": 1.0, "growth_interval": 10**9}
"""So that updates that unscale the same gradients again do not change them."""

BYTES_PER_PARAMETER = {"fused": 8 + 20, "triton": 4 + 20}
"""The search reads gradients, and torch's writes them; the update reads weight, gradient and momentum, and writes weight and momentum."""


def trained_model(workload: str, device: torch.device) -> nn.Module:
    """A model whose gradients lie in buckets of DDP."""
    spec = find_workload(workload)
    model = init_model(spec.model, spec.image_size, spec.classes, seed=0).to(device, memory_format=torch.channels_last)
    ranks = DistributedDataParallel(model, device_ids=[device.index], gradient_as_bucket_view=True)
    for _ in range(STEPS_BEFORE):
        model.zero_grad(set_to_none=True)
        ranks(torch.randn(BATCH, *spec.input_shape(None), device=device)).square().mean().backward()
    return model


def make_update(kind: str, model: nn.Module, device: torch.device) -> Callable[[], None]:
    """An update of ``model`` whose gradients are of a scaled loss."""
    implementation = SGD if kind == "triton" else partial(torch.optim.SGD, fused=True)
    optimizer, scaler = implementation(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4), GradScaler(device.type, **CONSTANT)
    scaler.scale(torch.zeros((), device=device))

    def update() -> None:
        if kind == "fused":
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    return update


def windows(update: Callable[[], object], device: torch.device, steps: int) -> Iterator[float]:
    """Replay windows of ``steps`` updates endlessly; yields the wall seconds of each."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        update()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            update()
    while True:
        torch.cuda.synchronize(device)
        start_s = perf_counter()
        for _ in range(steps):
            graph.replay()
        torch.cuda.synchronize(device)
        yield perf_counter() - start_s


def main(workload: str, target: Path, steps: int, rounds: int) -> None:
    device = start_rank()
    models = {kind: trained_model(workload, device) for kind in BYTES_PER_PARAMETER}
    updates = {kind: windows(make_update(kind, model, device), device, steps) for kind, model in models.items()}
    found = windows_in_turn(updates, rounds, device)
    parameters = sum(each.numel() for each in models["fused"].parameters())
    bytes_per_s = measure_copy_bytes_per_s(describe_device(device))
    ratio = ratio_of(found["triton"], found["fused"])
    result = {
        "command": f"torchrun --nproc_per_node=1 results/kernels/sgd.py {workload} {target.name} --steps {steps} --rounds {rounds}",
        "device": describe_device(device).name,
        "torch": str(torch.__version__),
        "parameters": parameters,
        "copy_gb_per_s": bytes_per_s / 1e9,
        "limit_ms": {name: each * parameters / bytes_per_s * 1e3 for name, each in BYTES_PER_PARAMETER.items()},
        "ms": {name: [seconds / steps * 1e3 for seconds in each] for name, each in found.items()},
        "fused_relative_to_triton": [ratio.center, ratio.low, ratio.high],
    }
    target.write_text(json.dumps(result, indent=1) + "\n")
    for name, each in found.items():
        print(f"{workload} {name:6} {median(each) / steps * 1e3:.4f} ms, limit {result['limit_ms'][name]:.4f}", flush=True)  # type: ignore[index]
    print(f"fused takes {ratio.center:.3f} ({ratio.low:.3f} to {ratio.high:.3f}) times as long")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", help="one of ddpbench, such as vgg16-cifar10")
    parser.add_argument("target", type=Path, metavar="TARGET.json")
    parser.add_argument("--steps", type=int, default=500, help="updates per window (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=6, help="default: %(default)s")
    main(**vars(parser.parse_args()))
