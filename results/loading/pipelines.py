"""How DALI's threads on the CPU are best shared out: so many pipelines of so many threads, on all cores but one, with nobody training.

ddpbench make-data imagenet jpegs
python results/loading/pipelines.py jpegs pipelines.json 1x15,2x8,3x5,5x3,8x2,15x1
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

from ddpbench.data import folder
from ddpbench.data.dali.graph import Graph, Name, name_of
from ddpbench.data.plan import ShardPlan
from ddpbench.machine.host import cpu_name

GRAPH = Graph(image_size=224, augment=True, dtype="UINT8", layout="HWC")
BATCH, PREFETCH, SECONDS, ROUNDS = 256, 2, 2.0, 3


def main(directory: str, target: str, shapes: str) -> None:
    """Every shape in turn, several times over."""
    files = folder.read(directory).files
    rounds: dict[str, list[dict[str, float]]] = {shape: [] for shape in shapes.split(",")}
    for number in range(ROUNDS):
        for shape in list(rounds)[:: 1 if number % 2 == 0 else -1]:
            rounds[shape].append(measured(shape, files))
    for shape, seen in rounds.items():
        told = {name: median(each[name] for each in seen) for name in seen[0]}
        print(f"{shape:>6}: {told['images_per_s']:6,.0f} images/s, {told['cores']:.1f} cores, first {told['first_s']:.2f} s")
    result = {
        "command": f"python results/loading/pipelines.py jpegs {Path(target).name} {shapes}",
        "processor": cpu_name(),
        "cores": os.cpu_count(),
        "batch": BATCH,
        "prefetch": PREFETCH,
        "rounds": rounds,
    }
    Path(target).write_text(json.dumps(result) + "\n")


def measured(shape: str, files: list[str]) -> dict[str, float]:
    """Images a second of these pipelines, which take turns, the cores that they keep busy, and the seconds until each has given a batch."""
    number, threads = map(int, shape.split("x"))
    begin = perf_counter()
    pipelines = [GRAPH.pipeline(names(files, seed), BATCH, threads, PREFETCH, seed) for seed in range(number)]
    for pipeline in pipelines:
        pipeline.run()
    first_s = perf_counter() - begin
    for pipeline in pipelines * PREFETCH:
        pipeline.run()  # what was ready
    begin, busy_s, batches = perf_counter(), process_time(), 0
    turns: Iterator[Any] = cycle(pipelines)
    while perf_counter() - begin < SECONDS:
        next(turns).run()
        batches += 1
    span_s = perf_counter() - begin
    return {"images_per_s": batches * BATCH / span_s, "cores": (process_time() - busy_s) / span_s, "first_s": first_s}


def names(files: list[str], seed: int) -> Iterator[list[Name]]:
    for batch in ShardPlan(len(files), BATCH, 0, 1, seed, shuffle=True):
        yield [name_of(files[number]) for number in batch]


if __name__ == "__main__":
    main(*sys.argv[1:])
