"""mnist-cnn learns the real MNIST digits within an epoch, if the files are available."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from open_loaders import memory_config, opened, shard
from torch import nn

from ddpbench.data.validation import held_out_batches
from ddpbench.record.names import import_object
from ddpbench.workloads.registry import find_workload

DIGITS = Path(__file__).parents[4] / "shared" / "data" / "mnist"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not DIGITS.is_dir(), reason="the MNIST files are not here")
def test_mnist_cnn_reaches_90_percent_after_a_fifth_of_an_epoch() -> None:
    spec, batch_size = find_workload("mnist-cnn"), 64
    settled = memory_config("tensor", "mnist", DIGITS, batch_size=batch_size)
    torch.manual_seed(0)
    net = import_object(spec.model)(spec.image_size, spec.classes)
    optimizer = torch.optim.SGD(net.parameters(), spec.lr, spec.momentum, weight_decay=spec.weight_decay)
    with opened(settled, "mnist", classes=10) as live:
        assert (live.data.dataset, live.data.num_samples) == ("mnist", 60_000)
        for _ in range(60_000 // batch_size // 5):
            images, labels = live.next_batch(lambda: None)
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
    net.eval()
    shares = held_out_batches(settled, shard("mnist", 10))
    assert shares is not None
    with torch.no_grad():
        right = torch.cat([net(images).argmax(1) == labels for images, labels in shares])
    assert len(right) == 10_000
    assert right.float().mean() > 0.9
