"""A training loop without measurements, the baseline for ddpbench's own overhead.

The same training as ``ddpbench run --precision amp-fp16`` or ``amp-bf16`` on synthetic data: torchvision's model, channels-last,
DDP with its buckets as gradient views, fused SGD, in float16 a dynamic loss scaler, one resident batch.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any

import torch
import torchvision
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LR, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 1e-4


def unchanged(model: nn.Module) -> nn.Module:
    return model


def bare_windows(
    name: str,
    batch_size: int,
    device: torch.device,
    steps: int,
    warmup: int,
    dtype: torch.dtype = torch.float16,
    prepare: Callable[[nn.Module], nn.Module] = unchanged,
    in_graph: bool = False,
    **settings: Any,
) -> Iterator[float]:
    """Train windows of ``steps`` steps endlessly; yields the wall seconds of each, between two synchronisations.

    ``dtype`` is autocast's, ``prepare`` changes the model before DDP wraps it, and ``in_graph`` replays the whole step as a CUDA graph.
    ``settings`` are DDP's, ``process_group`` among them.
    """
    stream = torch.cuda.Stream(device) if in_graph else None
    with torch.cuda.stream(stream):  # DDP must be built and warmed up on the stream of the capture
        torch.manual_seed(0)
        model = prepare(torchvision.models.get_model(name).to(device).to(memory_format=torch.channels_last))
        here = [device.index] if device.index is not None else None
        ranks = DistributedDataParallel(model, device_ids=here, gradient_as_bucket_view=True, **settings)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, fused=True)
        for parameter in model.parameters():  # otherwise a first update that the scaler skips leaves them uninitialised
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        loss_of, scaler = nn.CrossEntropyLoss(), torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        images = torch.randn(batch_size, 3, 224, 224, device=device).contiguous(memory_format=torch.channels_last)
        labels = torch.randint(0, 1000, (batch_size,), device=device)

        def step() -> torch.Tensor:
            with torch.autocast(device.type, dtype=dtype):
                loss: torch.Tensor = loss_of(ranks(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            return loss

        for _ in range(warmup):
            step()
        if stream:
            torch.cuda.synchronize(device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):  # NCCL's watchdog calls CUDA meanwhile
                in_graph_loss = step().detach()

    def train(count: int) -> torch.Tensor:
        for _ in range(count):
            if stream:
                graph.replay()
            else:
                loss = step()
        return in_graph_loss if stream else loss

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    while True:
        train(3)
        synchronize()
        dist.barrier(settings.get("process_group"))
        begin = perf_counter()
        loss = train(steps)
        synchronize()
        seconds = perf_counter() - begin
        if not torch.isfinite(loss):
            raise SystemExit("the loss of the bare loop is not finite: its speed is meaningless")
        yield seconds


def start_rank() -> torch.device:
    """Join the process group of the launch; the device of this rank."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # as torch's documentation asks before the capture of DDP
    dist.init_process_group(device_id=device if device.type == "cuda" else None)
    return device


def windows_in_turn(trainings: Mapping[str, Iterator[float]], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds of ``rounds`` windows of each training, of the slowest rank. They take turns, forwards and backwards (ABBA)."""
    found: dict[str, list[float]] = {name: [] for name in trainings}
    for number in range(rounds + 1):
        for name in trainings if number % 2 else reversed(trainings):
            gc.disable()  # as in ddpbench's rounds
            seconds = torch.tensor(next(trainings[name]), dtype=torch.float64, device=device)
            gc.enable()
            dist.all_reduce(seconds, dist.ReduceOp.MAX)
            if number:  # the first window may contain what is done once
                found[name].append(seconds.item())
    return found
