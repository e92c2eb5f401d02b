"""The cost of ddpbench's stopwatches in a loader of small samples: ``torch`` on generated CIFAR-10, timed and untimed.

OMP_NUM_THREADS=1 python results/loading/small.py small.json
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from statistics import median

import torch
from uint8 import NOT_TIMED, STOCK, rates_of

from ddpbench.analysis.stats import ratio_of
from ddpbench.bench.resolve import resolve_config
from ddpbench.data.loaders.open import open_loader
from ddpbench.data.shard import Shard
from ddpbench.machine.host import cpu_name
from ddpbench.record.config import Config
from ddpbench.report.messages.dataset import dataset_text

TIMED, UNTIMED = STOCK, STOCK + NOT_TIMED
BATCH, WARM_UP = 512, 8

ASKED = Config(workload="vgg16-cifar10", loader="torch", batch_size=BATCH, workers=0, augment=False, channels_last=False, device="cpu")
CIFAR = resolve_config(ASKED, cuda=False, local_world_size=1)


def main(target: Path, batches: int) -> None:
    """Alternate ABBA, batch by batch, in this process and one thread; write the ratio and the rate of every batch."""
    torch.set_num_threads(1)
    loaders = {arm: open_loader(CIFAR, Shard("cifar10", 10, 0, 1, torch.device("cpu"))) for arm in (TIMED, UNTIMED)}
    rates_of(loaders, WARM_UP, BATCH)
    rates = rates_of(loaders, batches, BATCH)
    ratio = ratio_of(rates[TIMED], rates[UNTIMED])
    print(
        f"{median(rates[TIMED]):,.0f} images/s per core; not timed: {ratio.center:.3f} ({ratio.low:.3f} to {ratio.high:.3f}) times the rate"
    )
    result = {
        "command": f"OMP_NUM_THREADS=1 python results/loading/small.py small.json --batches {batches}",
        "processor": cpu_name(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "data": dataset_text(loaders[TIMED].data),
        "augment": CIFAR.augment,
        "batch": BATCH,
        "ratio": vars(ratio),
        "images_a_core_second": {name: [round(rate) for rate in each] for name, each in rates.items()},
    }
    target.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, metavar="TARGET.json")
    parser.add_argument("--batches", type=int, default=500, help="of each side (default: %(default)s)")
    main(**vars(parser.parse_args()))
