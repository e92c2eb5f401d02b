"""What ddpbench's stopwatches take of a loader of small samples, ``torch`` on made CIFAR-10 without augmentation: with them and without.

OMP_NUM_THREADS=1 python results/loading/small.py small.json
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from time import process_time

import torch
from uint8 import standing_still

from ddpbench.analysis.stats import paired_ratio
from ddpbench.data.open import open_loader
from ddpbench.experiments.interleaving import schedule
from ddpbench.machine.host import cpu_name
from ddpbench.record.config import Config

TIMED, UNTIMED = "torch", "torch, not timed"
BATCH, WARM_UP, BATCHES = 512, 8, 500

CIFAR = Config(workload="vgg16-cifar10", loader="torch", batch_size=BATCH, image_size=32, workers=0, augment=False, device="cpu")


def main(target: str) -> None:
    """Alternates ABBA, batch by batch, in this process and one thread, and writes the rate of every batch beside the ratio."""
    torch.set_num_threads(1)
    loaders = [open_loader(CIFAR, "cifar10", 10, 0, 1, torch.device("cpu")) for _ in (TIMED, UNTIMED)]
    rates: dict[str, list[float]] = {TIMED: [], UNTIMED: []}
    for arm, _ in schedule([WARM_UP + BATCHES] * len(loaders)):
        name = (TIMED, UNTIMED)[arm]
        with standing_still() if name == UNTIMED else nullcontext():
            begin = process_time()
            loaders[arm].next_batch(lambda: None)
            rates[name].append(BATCH / (process_time() - begin))
    rates = {name: each[WARM_UP:] for name, each in rates.items()}
    ratio = paired_ratio(rates[TIMED], rates[UNTIMED])
    print(f"{median(rates[TIMED]):,.0f} images/s a core; not timed {ratio.center:.3f} ({ratio.low:.3f} to {ratio.high:.3f}) times as many")
    result = {
        "command": "OMP_NUM_THREADS=1 python results/loading/small.py small.json",
        "processor": cpu_name(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "data": loaders[0].data.description,
        "augment": CIFAR.augment,
        "batch": BATCH,
        "ratio": vars(ratio),
        "images_a_core_second": {name: [round(rate) for rate in each] for name, each in rates.items()},
    }
    Path(target).write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
