"""The best number of threads per DALI pipeline, with one thread per core but one and without training.

ddpbench make-data imagenet jpegs
python results/loading/pipelines.py jpegs pipelines.json 15,8,5,3,2,1 [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

from ddpbench.data.datasets import image_folder
from ddpbench.data.loaders.dali.graph import DaliGraph, EncodedPath, encode_path
from ddpbench.data.loaders.dali.pipeline_pool import RoundRobin
from ddpbench.data.sampler import DistributedBatchSampler
from ddpbench.machine.host import cpu_name, usable_cores
from ddpbench.record.loaders import loader_spec

GRAPH = DaliGraph(image_size=224, augment=True, dtype="UINT8", layout="HWC")
BATCH, PREFETCH, SECONDS = 256, 2, 2.0


def main(directory: Path, target: Path, sizes: str, rounds: int) -> None:
    """Measure thread groups of every size in turn, ``rounds`` times."""
    files, threads = image_folder.read_index(str(directory)).files, max(1, int(usable_cores()) - 1)
    spec = loader_spec("dali-cpu")
    teams = {size: replace(spec, max_threads_per_batch=int(size)).thread_group_sizes(threads) for size in sizes.split(",")}
    found: dict[str, list[dict[str, float]]] = {size: [] for size in teams}
    for number in range(rounds):
        for size in list(teams)[:: 1 if number % 2 == 0 else -1]:
            found[size].append(measured(teams[size], files))
    for size, seen in found.items():
        medians = {name: median(each[name] for each in seen) for name in seen[0]}
        shares = "+".join(map(str, teams[size]))
        print(f"{shares}: {medians['images_per_s']:,.0f} images/s, {medians['cores']:.1f} cores, first batch in {medians['first_s']:.2f} s")
    result = {
        "command": f"python results/loading/pipelines.py jpegs {target.name} {sizes}",
        "processor": cpu_name(),
        "cores": usable_cores(),
        "threads": threads,
        "batch": BATCH,
        "prefetch": PREFETCH,
        "teams": teams,
        "rounds": found,
    }
    target.write_text(json.dumps(result) + "\n")


def measured(teams: Sequence[int], files: Sequence[str]) -> dict[str, float]:
    """Images per second with one pipeline per thread group, busy cores, and seconds until the first batch."""
    begin = perf_counter()
    turns = RoundRobin([GRAPH.build_pipeline(names(files, seed), BATCH, size, PREFETCH, seed) for seed, size in enumerate(teams)], teams)
    turns.next_output()
    first_s = perf_counter() - begin
    for _ in range(2 * PREFETCH * len(teams)):
        turns.next_output()  # drain the prefetched batches, and reach a steady state
    begin, busy_s, batches = perf_counter(), process_time(), 0
    while perf_counter() - begin < SECONDS:
        turns.next_output()
        batches += 1
    span_s = perf_counter() - begin
    result = {"images_per_s": batches * BATCH / span_s, "cores": (process_time() - busy_s) / span_s, "first_s": first_s}
    turns.close()
    return result


def names(files: Sequence[str], seed: int) -> Iterator[list[EncodedPath]]:
    for batch in DistributedBatchSampler(len(files), BATCH, 0, 1, seed, shuffle=True):
        yield [encode_path(files[number]) for number in batch]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="FOLDER", help="folder of JPEGs, like ImageNet")
    parser.add_argument("target", type=Path, metavar="TARGET.json")
    parser.add_argument("sizes", metavar="SIZE,...", help="threads per pipeline")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per size (default: %(default)s)")
    main(**vars(parser.parse_args()))
