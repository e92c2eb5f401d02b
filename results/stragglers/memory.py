"""What malloc does to the ranks of a processor: their own time beside the pages that they touch anew, as glibc has it and kept from it.

    python results/stragglers/memory.py [LAUNCHES]

The training of stragglers.py without a delay, on two ranks with a core each. Launches take turns. Writes memory.json and memory.md beside
this file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, quantiles

import stragglers

from ddpbench.machine.host import cpu_name

HERE = Path(__file__).resolve().parent
WINDOWS = 20

Round = dict[str, float]


def rounds_of(options: argparse.Namespace, variables: Mapping[str, str]) -> list[list[Round]]:
    """Of each rank the own time of a step and the pages that it touched anew, round by round."""
    with tempfile.TemporaryDirectory() as folder:
        stragglers.launched(options, WINDOWS, {"PAGES_TO": folder, **variables})
        ranks = [Path(folder) / f"{rank}.jsonl" for rank in range(options.ranks)]
        return [[json.loads(line) for line in file.read_text().splitlines()] for file in ranks]


def line(name: str, launches: Sequence[list[list[Round]]]) -> str:
    pairs = [pair for first, second in launches for pair in zip(first, second, strict=True)]
    times = [first["own_ms"] / second["own_ms"] for first, second in pairs]
    low, *_, high = quantiles(times, n=20)
    own = fmean(each["own_ms"] for pair in pairs for each in pair)
    fewer, *_, more = quantiles([each["pages"] for pair in pairs for each in pair], n=20)
    return f"| {name} | {own:.1f} | {low:.2f} to {high:.2f} | {fewer:,.0f} to {more:,.0f} |"


def main(launches: int) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    options = argparse.Namespace(device="cpu", ranks=2)
    told: dict[str, list[list[list[Round]]]] = {"as glibc has it": [], "kept": []}
    for _ in range(launches):
        told["as glibc has it"].append(rounds_of(options, {}))
        told["kept"].append(rounds_of(options, stragglers.KEEPS_MEMORY))
    head = [
        f"Two ranks, each on a core of {cpu_name()}, {launches} launches of {stragglers.WINDOW * WINDOWS} rounds each way, in turn; "
        "ranges are the 5th to the 95th percentile.",
        "",
        "| malloc | own time of a step, ms | the first rank's over the second's | pages touched anew a step |",
        "|---|---|---|---|",
    ]
    page = "\n".join([*head, *(line(name, each) for name, each in told.items())]) + "\n"
    (HERE / "memory.json").write_text(json.dumps({"command": f"python results/stragglers/memory.py {launches}", **told}) + "\n")
    (HERE / "memory.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
