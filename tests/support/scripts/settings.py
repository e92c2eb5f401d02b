"""Trains a small network of convolutions, and prints its settings at the end. Without a word of ddpbench.

``--no-bfloat16`` raises an error where outputs are in bfloat16.
"""

import argparse
import os
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--no-bfloat16", action="store_true")
arguments = parser.parse_args()
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Flatten(), nn.Linear(144, 5))
layers = list(model)
if "WORLD_SIZE" in os.environ and os.environ["WORLD_SIZE"] != "1":
    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(640, 3, 8, 8), torch.randint(0, 5, (640,)))


def settings() -> str:
    moments = [value.stride() for state in optimizer.state.values() for value in state.values() if value.dim() == 4]
    group = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
    strides = [parameter.stride() for parameter in model.parameters()]
    attributes = [sorted(vars(each)) for each in (optimizer, *layers)]
    return f"{strides} {moments} {group} {attributes} {torch.is_autocast_enabled('cpu')}"


before = ""
try:
    for _ in range(100_000):
        for images, labels in DataLoader(data, batch_size=16):
            outputs = model(images)
            if arguments.no_bfloat16 and outputs.dtype == torch.bfloat16:
                raise TypeError("no bfloat16, please")
            optimizer.zero_grad()
            nn.functional.cross_entropy(outputs.float(), labels).backward()
            optimizer.step()
            before = before or settings()
finally:
    text = "settings kept" if settings() == before else f"settings changed from {before} to {settings()}"
    sys.stdout.write(f"{text}\n")  # at once: print() lets the other rank write before the end of the line
    sys.stdout.flush()
