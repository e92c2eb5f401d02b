"""A training script that imports the modules named by its arguments before torch, or after it, as ``--after`` says."""

import importlib
import sys

MODULES = [word for word in sys.argv[1:] if word != "--after"]
if "--after" not in sys.argv:
    for name in MODULES:
        importlib.import_module(name)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

if "--after" in sys.argv:
    for name in MODULES:
        importlib.import_module(name)

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    for x, y in DataLoader(TensorDataset(torch.randn(160, 4), torch.randint(0, 2, (160,))), 4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
