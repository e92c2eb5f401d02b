"""What limits each script of this folder, how to start it, and what a watcher must see of it.

The scripts are trainings as users write them, without a word of ddpbench. With ``arguments`` each runs for three to four minutes on two
cores, or on an H100, unless it is ended before; with ``short`` for some seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ddpbench.record.bottleneck import Bottleneck
from ddpbench.record.root_cause import Cause

FOLDER = Path(__file__).parent

LAUNCHERS = {
    "plain": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"],
    "accelerate": [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--multi_gpu",
        "--num_processes=2",
        "--main_process_port=0",
    ],
}
"""What starts a script, or ``-m ddpbench``."""

WORKERS: tuple[Cause, ...] = ("too-few-workers", "storage")
"""Reads that wait, and fewer of them at a time than there could be: more workers help, and so would faster storage."""

CORES: tuple[Cause, ...] = ("too-few-workers", "too-few-cores", "oversubscribed")
"""Work in a loader that more workers share, until the cores are busy."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What ``watch`` reports of a script that was started with ``short``."""

    model: str
    optimizers: tuple[str, ...]
    dataset: str = ""
    loader: str = "DataLoader"
    batches: int  # of the training loader, per rank; updates if ``is_unfed``
    epochs: int
    batch_size: int = 16
    batches_per_update: int = 1
    precision: str = "torch-default"
    engine: str = "none"
    is_unfed: bool = False  # its batches come from no DataLoader that is watched
    outside: tuple[str, ...] = ("between-epochs",)
    least_ms: tuple[tuple[str, float], ...] = ()  # phases that take at least so many ms per step, by what the script waits for


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script and its limit: ``kind`` is the verdict that is right, ``causes`` are the root causes that are, empty if it has none."""

    name: str
    arguments: tuple[str, ...]
    short: tuple[str, ...]
    kind: Bottleneck
    causes: tuple[Cause, ...] = ()
    launcher: Literal["plain", "torchrun", "accelerate"] = "plain"  # the latter two with two ranks
    is_diagnosed: bool = True  # otherwise only watched: no other batches can be given to it
    is_cuda: bool = False
    extra: str = ""  # of pyproject.toml, that it needs
    seen: Seen | None = None  # None if it needs a GPU

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.py"

    @property
    def title(self) -> str:
        """The name, with the flag that makes it another script."""
        return " ".join([self.name, *(word for word in self.short if word == "--log")])


def script(name: str, arguments: str, short: str, kind: Bottleneck, causes: Sequence[Cause] = (), **fields: object) -> Script:
    return Script(name=name, arguments=(*arguments.split(),), short=(*short.split(),), kind=kind, causes=(*causes,), **fields)  # type: ignore[arg-type]


SCRIPTS = (
    script(
        "plain",
        "--epochs 12",
        "--epochs 2 --samples 640 --read-ms 0.5",
        "data-bound",
        WORKERS,
        seen=Seen(
            model="Sequential",
            optimizers=("SGD",),
            dataset="Readings",
            batches=80,
            epochs=2,
            outside=("between-epochs", "validation"),
            least_ms=(("data", 5.0),),
        ),
    ),
    script(
        "distributed_data_parallel",
        "--epochs 12 --slow-rank 1",
        "--epochs 2 --samples 1280 --slow-rank 1 --slow-ms 0.5",
        "straggler",
        ("one-rank",),
        launcher="torchrun",
        seen=Seen(
            model="DistributedDataParallel(Sequential)",
            optimizers=("SGD",),
            dataset="Readings",
            batches=80,
            epochs=2,
            engine="ddp",
            least_ms=(("broadcast", 0.001), ("sync", 0.001)),
        ),
    ),
    script(
        "with_accelerate",
        "--epochs 20",
        "--epochs 2 --samples 1280 --read-ms 0.5 --bf16",
        "data-bound",
        WORKERS,
        launcher="accelerate",
        seen=Seen(
            model="DistributedDataParallel(Classifier)",
            optimizers=("AdamW",),
            dataset="Sentences",
            batches=79,  # without the first one, which no update follows
            epochs=2,
            batches_per_update=2,
            precision="amp-bf16",
            engine="ddp",
            least_ms=(("data", 2.0), ("sync", 0.001)),
        ),
    ),
    script(
        "with_lightning",
        "--epochs 12",
        "--epochs 2 --samples 640 --read-ms 0.5",
        "data-bound",
        WORKERS,
        extra="frameworks",
        seen=Seen(
            model="Digits",
            optimizers=("Adam",),
            dataset="Images",
            batches=80,
            epochs=2,
            outside=("validation",),
            least_ms=(("data", 5.0), ("host_to_device", 0.001)),
        ),
    ),
    script(
        "with_hf_trainer",
        "--epochs 10",
        "--epochs 2 --samples 320",
        "compute-bound",
        extra="frameworks",
        seen=Seen(
            model="BertForSequenceClassification",
            optimizers=("AdamW",),
            dataset="Sentences",
            batches=40,
            epochs=2,
            outside=("validation",),  # between two epochs, workers start
        ),
    ),
    script(
        "accumulation",
        "--epochs 12",
        "--epochs 2 --samples 320 --read-ms 5",
        "data-bound",
        WORKERS,
        seen=Seen(
            model="Regressor",
            optimizers=("AdamW",),
            dataset="Clips",
            batches=77,  # without the first three, which no update follows
            epochs=2,
            batch_size=8,
            batches_per_update=4,
            precision="amp-bf16",
            least_ms=(("data", 2.0),),
        ),
    ),
    script(
        "gan",
        "--epochs 60",
        "--epochs 2 --samples 2560 --width 128",
        "compute-bound",
        seen=Seen(model="Sequential", optimizers=("Adam", "Adam"), dataset="TensorDataset", batches=80, epochs=2, batch_size=64),
    ),
    script(
        "stream",
        "--epochs 12",
        "--epochs 2 --files 10 --records 64 --read-ms 0.5",
        "data-bound",
        WORKERS,
        seen=Seen(model="Sequential", optimizers=("SGD",), dataset="Shards", batches=80, epochs=2, least_ms=(("data", 5.0),)),
    ),
    script(
        "zipped_loaders",
        "--epochs 12",
        "--epochs 2 --samples 640 --read-ms 0.5",
        "data-bound",
        WORKERS,
        seen=Seen(model="Sequential", optimizers=("SGD",), dataset="Samples", batches=80, epochs=2, least_ms=(("data", 5.0),)),
    ),
    script(
        "workers",
        "--epochs 30 --start spawn --persistent",
        "--epochs 2 --samples 640 --blurs 1 --start spawn --persistent",
        "data-bound",
        (*CORES, "augment"),
        seen=Seen(model="Sequential", optimizers=("SGD",), dataset="Augmented", batches=80, epochs=2),
    ),
    script(
        "stateful_loader",
        "--epochs 12",
        "--epochs 2 --samples 640 --read-ms 0.5 --save-every 20",
        "data-bound",
        WORKERS,
        extra="frameworks",
        seen=Seen(
            model="Sequential",
            optimizers=("SGD",),
            dataset="Readings",
            loader="StatefulDataLoader",
            batches=80,
            epochs=2,
            least_ms=(("data", 5.0),),
        ),
    ),
    script(
        "own_iterable",
        "--epochs 12",
        "--epochs 2 --batches 40 --read-ms 5",
        "data-bound",
        is_diagnosed=False,
        seen=Seen(
            model="Sequential",
            optimizers=("SGD",),
            batches=79,
            epochs=0,
            batch_size=1,
            is_unfed=True,
            outside=(),
            least_ms=(("script", 5.0),),
        ),
    ),
    script(
        "compiled",
        "--epochs 20",
        "--epochs 2 --samples 1280 --width 64 --backend aot_eager",
        "compute-bound",
        seen=Seen(model="OptimizedModule(Sequential)", optimizers=("AdamW",), dataset="TensorDataset", batches=80, epochs=2, batch_size=32),
    ),
    script(
        "prefetcher",
        "--epochs 12",
        "--epochs 2 --samples 640 --read-ms 0.5",
        "data-bound",
        is_diagnosed=False,
        seen=Seen(
            model="Sequential",
            optimizers=("SGD",),
            batches=79,
            epochs=0,
            batch_size=1,
            is_unfed=True,
            outside=(),
            least_ms=(("script", 4.0),),
        ),
    ),
    script(
        "fsdp",
        "--epochs 7",
        "--epochs 2 --samples 640 --width 32 --layers 2",
        "sync-bound",
        launcher="torchrun",
        seen=Seen(
            model="FSDPTransformer",
            optimizers=("AdamW",),
            dataset="TensorDataset",
            batches=80,
            epochs=2,
            batch_size=8,
            engine="fsdp",
            least_ms=(("sync", 0.1),),
        ),
    ),
    script(
        "slow_decode",
        "--epochs 30",
        "--epochs 2 --images 640 --side 64",
        "data-bound",
        ("decode", *CORES),
        seen=Seen(model="Sequential", optimizers=("SGD",), dataset="ImageFolder", batches=80, epochs=2),
    ),
    script(
        "slow_collate",
        "--epochs 20",
        "--epochs 2 --samples 640",
        "data-bound",
        ("collate", *CORES),
        seen=Seen(model="Sequential", optimizers=("Adam",), dataset="Texts", batches=80, epochs=2),
    ),
    script(
        "late_batches",
        "--epochs 40",
        "--epochs 2 --rows 1280 --late-ms 50",
        "data-bound",
        ("head-of-line",),
        seen=Seen(model="Sequential", optimizers=("Adam",), dataset="Table", batches=160, epochs=2),
    ),
    script("small_kernels", "--epochs 12", "--epochs 2 --samples 4096", "launch-bound", is_cuda=True),
    script("small_kernels", "--epochs 12 --log", "--epochs 2 --samples 4096 --log", "launch-bound", is_cuda=True),
    script("pageable_copies", "--epochs 70", "--epochs 2 --batches 60", "host-to-device-bound", is_cuda=True),
)
