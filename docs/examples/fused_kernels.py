"""Trains a ResNet on random images with the fused kernels of ddpbench, and prints how fast.

From the root of a clone, with the kernels and without them:

    torchrun --standalone --nproc_per_node=1 docs/examples/fused_kernels.py
    torchrun --standalone --nproc_per_node=1 docs/examples/fused_kernels.py --plain
"""

import argparse
import os
import time

import torch
from torch import distributed, nn
from torchvision.models import get_model

from ddpbench.kernels import fuse

WARMUP = 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.backends.cudnn.benchmark = True
    model: nn.Module = get_model(options.model).to(device, memory_format=torch.channels_last)
    if not options.plain:
        model = fuse(model)
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type)
    images = torch.randn(options.batch, 3, options.size, options.size, device=device).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (options.batch,), device=device)

    def train(steps: int) -> float:
        for _ in range(steps):
            with torch.autocast(device.type, torch.float16 if device.type == "cuda" else torch.bfloat16):
                loss = nn.functional.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return loss.item()

    first = train(WARMUP)
    begin = time.perf_counter()
    last = train(options.steps)
    speed = options.batch * options.steps * distributed.get_world_size() / (time.perf_counter() - begin)
    if distributed.get_rank() == 0:
        print(f"{speed:,.0f} images/s, loss {first:.3f} to {last:.3f}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
