"""Write ``fast.md``, the table of eager, compiled and ``--fast`` trainings, from the records beside it.

python results/h200/fast.py
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from pathlib import Path

from ddpbench.analysis.summary import summarize
from ddpbench.record.io import load
from ddpbench.record.record import Record
from ddpbench.report.format import format_rounded

HERE = Path(__file__).resolve().parent
SYNTHETIC = (
    "resnet50-1gpu-fast",
    "resnet50-1gpu-fast-later",
    "resnet50-1gpu-bf16-fast",
    "resnet50-1gpu-precisions-fast",
    "resnet50-1gpu-precisions-compiled",
    "resnet50-1gpu-fp32-fast",
    "resnet50-1gpu-fp32-compiled",
    "resnet18-1gpu-fast",
    "resnet18-1gpu-precisions-fast",
    "resnet18-1gpu-bf16-compiled",
    "resnet18-1gpu-tf32-compiled",
    "resnet18-1gpu-torch-default-compiled",
    "resnet18-1gpu-fp32-fast",
    "resnet18-1gpu-fp32-compiled",
)
JPEG = ("resnet50-dali-gpu-fast", "resnet18-dali-gpu-fast")
WORKLOADS, MODES = ("resnet50", "resnet18"), ("eager", "compiled", "compiled in a CUDA graph", "`--fast`")
PRECISIONS = ("amp-fp16", "amp-bf16", "tf32", "torch-default", "fp32")

PAGE = """# ResNets with `--fast` on one H200

Synthetic images, DDP with one rank, five rounds of each arm. Arms of one record were interleaved in one job; most records are of different
hosts. Intervals are those of the mean of the rounds (95%). MFU is relative to the matrix products measured on the same GPU. Written by
`fast.py` from the records, which contain their commands.

{synthetic}

`resnet50-1gpu-fast-later.json` is of a later version, whose steps are one CUDA graph each.

The power limit of the GPU lowers its clocks in most rows, and hosts differ by 2 to 3%. In `torch-default`, only convolutions use TF32: the
last layer, the only other matrix product, makes no difference.

From 12,800 generated JPEGs in the page cache, by `dali-gpu` with 12 threads:

{jpeg}

NVIDIA's submission to MLPerf Training trains ResNet-50 with 7,950 images/s per GPU on eight H200s with MXNet, at batch 400. That figure
contains the decoding of most images, gradient sync of eight GPUs and the LARS optimizer. No row contains all of these: none of them can be
called faster or slower than that.
"""


def mode_of(record: Record) -> str:
    config = record.config
    if config.fused_kernels:
        return "`--fast`"
    return {"off": "eager", "default": "compiled"}[config.compile] + (" in a CUDA graph" if config.cuda_graph else "")


def cells_of(record: Record, name: str) -> dict[str, str]:
    """The cells of a row by title."""
    speed, summary = record.throughput, summarize(record)
    assert speed
    assert summary.joules_per_sample
    samples, seconds = sum(timed.samples for timed in record.rounds), fsum(timed.wall_s for timed in record.rounds)
    return {
        "workload": record.config.workload,
        "precision": record.config.precision,
        "batch": f"{record.config.batch_size:,}",
        "training": mode_of(record),
        "images/s": "{} ({} to {})".format(*(format_rounded(figure, 4) for figure in (speed.samples_per_s, speed.low, speed.high))),
        "watts": f"{summary.joules_per_sample * samples / seconds:.0f}",
        "images per joule": f"{1 / summary.joules_per_sample:.1f}",
        "MFU": f"{summary.mfu:.0%}" if summary.mfu else "",
        "record": f"`{name}.json`",
    }


def order_of(row: tuple[Record, str]) -> tuple[int, int, int]:
    config = row[0].config
    return WORKLOADS.index(config.workload), PRECISIONS.index(config.precision), MODES.index(mode_of(row[0]))


def table(names: Sequence[str]) -> str:
    found = [(record, name) for name in names for record in load(HERE / f"{name}.json").records]
    rows = [cells_of(*row) for row in sorted(found, key=order_of)]
    lines = [[*rows[0]], ["---"] * len(rows[0]), *([*row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page() -> str:
    return PAGE.format(synthetic=table(SYNTHETIC), jpeg=table(JPEG))


if __name__ == "__main__":
    (HERE / "fast.md").write_text(page())
