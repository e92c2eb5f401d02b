"""Images per second and core, from file to model input: with torch, with torch-uint8, and with torch-uint8 untimed.

ddpbench make-data imagenet jpegs --images 1024
OMP_NUM_THREADS=1 python results/loading/uint8.py jpegs uint8.json
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from time import process_time
from unittest import mock

import torch

from ddpbench.analysis.stats import ratio_of
from ddpbench.bench.resolve import resolve_config
from ddpbench.bench.scheduler import abba_schedule
from ddpbench.data.batch_timing import Stopwatch
from ddpbench.data.loader import Loader
from ddpbench.data.loaders.open import open_loader
from ddpbench.data.shard import Shard
from ddpbench.machine.host import cpu_name
from ddpbench.record.config import Config

NOT_TIMED = ", not timed"
STOCK, BYTEWISE = "torch", "torch-uint8"
PAIRS = [(STOCK, BYTEWISE), (BYTEWISE, BYTEWISE + NOT_TIMED)]
"""Pairs instead of three in turn: otherwise each arm would always follow the same other arm, and inherit its caches."""

BATCH, SIDE = 32, 224


def main(folder: Path, target: Path, batches: int) -> None:
    """Alternate each pair ABBA, batch by batch of the same files; write the ratios and the rate of every batch."""
    torch.set_num_threads(1)
    pairs = []
    for base, other in PAIRS:
        loaders = {arm: opened(arm.partition(",")[0], str(folder)) for arm in (base, other)}
        rates_of(loaders, max(1, batches // 10), BATCH)  # warm-up
        rates = rates_of(loaders, batches, BATCH)
        ratio = ratio_of(rates[base], rates[other])
        print(f"{base}: {median(rates[base]):.0f} images/s per core")
        print(f"{other}: {median(rates[other]):.0f}, {ratio.center:.3f} ({ratio.low:.3f} to {ratio.high:.3f}) times the rate")
        pairs.append({"ratio": vars(ratio), "images_a_core_second": {arm: [round(rate) for rate in rates[arm]] for arm in rates}})
    result = {
        "command": f"OMP_NUM_THREADS=1 python results/loading/uint8.py jpegs uint8.json --batches {batches}",
        "processor": cpu_name(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "images": len(list(folder.glob("train/*/*"))),
        "batch": BATCH,
        "image_size": SIDE,
        "pairs": pairs,
    }
    target.write_text(json.dumps(result) + "\n")


def opened(loader: str, folder: str) -> Loader:
    """A loader that does all its work in this process and one thread, including the part that it leaves to the device."""
    asked = Config(
        workload="resnet50", loader=loader, data_dir=folder, batch_size=BATCH, image_size=SIDE, workers=0, channels_last=True, device="cpu"
    )
    resolved = resolve_config(asked, cuda=False, local_world_size=1)
    return open_loader(resolved, Shard("imagenet", 1000, 0, 1, torch.device("cpu")))


def rates_of(loaders: dict[str, Loader], batches: int, images: int) -> dict[str, list[float]]:
    """Images per second of CPU time for the next ``batches`` batches of each arm, of ``images`` images each."""
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for arm, batch in abba_schedule([batches] * len(loaders)):
        name = list(loaders)[arm]
        torch.manual_seed(batch)  # the same crops for all arms
        with standing_still() if name.endswith(NOT_TIMED) else nullcontext():
            begin = process_time()
            loaders[name].next_batch(lambda: None)
            rates[name].append(images / (process_time() - begin))
    return rates


@contextmanager
def standing_still() -> Iterator[None]:
    """Disable all stopwatches within the context."""
    with mock.patch.multiple(Stopwatch, start=lambda watch: None, lap=lambda watch, stage: None, finish_batch=lambda watch: None):
        yield


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of JPEGs, like ImageNet")
    parser.add_argument("target", type=Path, metavar="TARGET.json")
    parser.add_argument("--batches", type=int, default=320, help="of each side of a pair (default: %(default)s)")
    main(**vars(parser.parse_args()))
