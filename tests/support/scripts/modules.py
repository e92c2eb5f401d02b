"""Trains a little, and prints which packages have been imported when the interpreter ends."""

import atexit
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

atexit.register(lambda: print("imported", sorted({name.partition(".")[0] for name in sys.modules})))
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for (x,) in DataLoader(TensorDataset(torch.randn(400, 8)), 4):
    model(x).sum().backward()
    optimizer.step()
