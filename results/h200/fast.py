"""Write ``fast.md``, the table of eager, compiled and ``--fast`` trainings, from the records beside it.

python results/h200/fast.py
"""

from __future__ import annotations

from math import fsum
from pathlib import Path

from ddpbench.analysis.summary import summarize
from ddpbench.record.io import load
from ddpbench.record.record import Record
from ddpbench.report.format import format_rounded

HERE = Path(__file__).resolve().parent
RECORDS = ("resnet50-1gpu-fast", "resnet50-1gpu-bf16-fast", "resnet18-1gpu-fast")

PAGE = """# ResNets with `--fast` on one H200

Synthetic images, DDP with one rank, five rounds of each arm, the arms of a model and precision interleaved in one job. Intervals are those
of the mean of the rounds (95%). MFU is relative to the matrix products measured on the same GPU. Written by `fast.py` from the records,
which contain their commands.

{rows}

In float16 and bfloat16, the power limit of the GPU lowers its clocks in every arm, and hosts differ by 2 to 3%.

NVIDIA's submission to MLPerf Training trains ResNet-50 with 7,950 images/s per GPU on eight H200s with MXNet, at batch 400. That figure
contains the decoding of most images, gradient sync of eight GPUs and the LARS optimizer, which the rows above do not: none of them can be
called faster or slower than that.
"""


def mode_of(record: Record) -> str:
    config = record.config
    if config.fused_kernels:
        return "`--fast`"
    return {"off": "eager", "default": "compiled"}[config.compile] + (" in a CUDA graph" if config.cuda_graph else "")


def row_of(record: Record, name: str) -> str:
    speed, summary = record.throughput, summarize(record)
    assert speed
    assert summary.joules_per_sample
    assert summary.mfu
    samples, seconds = sum(timed.samples for timed in record.rounds), fsum(timed.wall_s for timed in record.rounds)
    figures = (speed.samples_per_s, speed.low, speed.high)
    images = "{} ({} to {})".format(*(format_rounded(figure, 4) for figure in figures))
    cells = (
        record.config.workload,
        record.config.precision,
        f"{record.config.batch_size:,}",
        mode_of(record),
        images,
        f"{summary.joules_per_sample * samples / seconds:.0f}",
        f"{1 / summary.joules_per_sample:.1f}",
        f"{summary.mfu:.0%}",
        f"`{name}.json`",
    )
    return f"| {' | '.join(cells)} |"


def page() -> str:
    titles = ("workload", "precision", "batch", "training", "images/s", "watts", "images per joule", "MFU", "record")
    rows = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    rows += [row_of(record, name) for name in RECORDS for record in load(HERE / f"{name}.json").records]
    return PAGE.format(rows="\n".join(rows))


if __name__ == "__main__":
    (HERE / "fast.md").write_text(page())
