"""A model for MNIST."""

from __future__ import annotations

from torch import nn

from ddpbench.record.errors import UsageError


def cnn(image_size: int, classes: int) -> nn.Module:
    """Two convolutions and two Linear layers.

    Maps images (B, 1, S, S) to scores (B, classes). 1,199,882 parameters at 28 px. The published run only states "a small CNN" and a
    learning-rate step every epoch. The layers, with their dropout, are those of the MNIST example in pytorch/examples, a common starting
    point. That example trains with Adadelta; the recipe here is SGD, at a rate that classifies over 97% of the held-out digits correctly
    after one epoch with batches of 64 to 512. Raises UsageError for images under 6 px.
    """
    side = (image_size - 4) // 2
    if side < 1:
        raise UsageError(f"mnist-cnn does not support images of {image_size} px", "set --image-size to 6 or more")
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * side * side, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, classes),
    )
