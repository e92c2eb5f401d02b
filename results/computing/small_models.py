"""Trains a small network on generated images. Without a word of ddpbench.

python results/computing/small_models.py NAME                            trains until it is ended
python results/computing/small_models.py NAME --seconds S --cures A,B    with those settings from the start, on batches that are ready;
                                                                         prints steps per second
"""

import argparse
import itertools
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def convolutions() -> nn.Module:
    block = [nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    return nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), *block, *head(64))


def head(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]


def flattened() -> nn.Module:
    """Needs its maps in the usual order again, right after a convolution of one pixel."""
    return nn.Sequential(nn.Conv2d(3, 32, 1), nn.Flatten(2), nn.Linear(1024, 64), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 10))


def deep() -> nn.Module:
    """Has many small parameters."""
    layers = [each for _ in range(40) for each in (nn.Linear(32, 32), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 32), *layers, nn.Linear(32, 10))


def wide() -> nn.Module:
    """Has few parameters, and computes long between two updates."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 512), nn.ReLU(), nn.Linear(512, 10))


MODELS = {"convolutions": (convolutions, 16), "flattened": (flattened, 64), "deep": (deep, 8), "wide": (wide, 256)}
"""By name, with their batch sizes."""


def batches(loader: DataLoader, seconds: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Those of ``loader`` again and again; with ``seconds``, eight of them for so long after five steps."""
    ready: Iterable = [*itertools.islice(loader, 8)] if seconds else ()
    source = itertools.cycle(ready) if seconds else (batch for _ in itertools.count() for batch in loader)
    yield from itertools.islice(source, 5)
    begin, steps = time.perf_counter(), 0
    while not seconds or time.perf_counter() - begin < seconds:
        yield next(source)
        steps += 1
    print(steps / (time.perf_counter() - begin))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--cures", default="")
    options = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    make, batch_size = MODELS[options.name]
    model = make()
    if "channels-last" in options.cures:
        model.to(memory_format=torch.channels_last)
    kind = torch.optim.SGD if options.name == "wide" else torch.optim.AdamW
    optimizer = kind(model.parameters(), lr=1e-3, fused=True) if "fused-optimizer" in options.cures else kind(model.parameters(), lr=1e-3)
    samples = TensorDataset(torch.randn(16 * batch_size, 3, 32, 32), torch.randint(0, 10, (16 * batch_size,)))
    for images, labels in batches(DataLoader(samples, batch_size, shuffle=True), options.seconds):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if "bf16-autocast" in options.cures else nullcontext():
            outputs = model(images)
        nn.functional.cross_entropy(outputs.float(), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
