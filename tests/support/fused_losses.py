"""Train a ResNet with and without fused kernels under DistributedDataParallel; rank 0 prints the losses as JSON."""

from __future__ import annotations

import copy
import json

import torch
from residual_net import Net
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from training import world

from ddpbench.kernels import fuse

STEPS = 4


def losses(model: nn.Module, images: Tensor, labels: Tensor) -> list[float]:
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.05, momentum=0.9)
    found = []
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(wrapped(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


ranks = world()
torch.manual_seed(0)
net = Net().to(memory_format=torch.channels_last)
plain = copy.deepcopy(net)
torch.manual_seed(ranks.rank)
images = torch.randn(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
labels = torch.randint(4, (4,))
both = [losses(model, images, labels) for model in (plain, fuse(net))]
if ranks.rank_env.is_rank0:
    print(json.dumps(both))
ranks.close()
