"""Write what each setting that ``--fast`` chooses gains, which pages show, from the records beside this script.

    python results/kernels/fast_gains.py [TARGET.json]

The records are those of ``ideas.py``, ``fast-*.json`` of ``ddpbench WORKLOAD --fast`` with and without some of its settings, all of
them in the first arm, and ``trials-*.json``, whose launches try 10 or all (0) algorithms of cuDNN, which arms of a job cannot.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from ddpbench.analysis.compare import throughput_ratio
from ddpbench.analysis.stats import PairedRatio, ratio_of
from ddpbench.record.io import load
from ddpbench.record.record import Job
from ddpbench.workloads.registry import find_workload

HERE = Path(__file__).resolve().parent
TARGET = HERE.parents[1] / "ddpbench" / "report" / "messages" / "fast_gains.json"
SETTINGS = {"fused kernels": "fused_kernels", "CUDA graph": "cuda_graph", "no broadcast of buffers": "broadcast_buffers"}
"""Ideas that are settings, and their fields."""


def gains_of_ideas(path: Path) -> dict[str, Any]:
    record = json.loads(path.read_text())
    _, _, _, workload, batch_size, *_ = record["command"].split()
    longer = {idea["idea"]: [round(end, 3) for end in idea["step_without_relative_to_all"]] for idea in record["ideas"]}
    return {
        "workload": workload,
        "precision": "amp-fp16",
        "batch_size": int(batch_size),
        "gpu": record["device"],
        "gains": {field: longer[name] for name, field in SETTINGS.items()},
    }


def gains_of_trials(path: Path) -> dict[str, Any]:
    record = json.loads(path.read_text())
    _, workload, *_ = record["command"].split()
    rates = {limit: [*map(fmean, launches)] for limit, launches in record["cudnn_benchmark_limit"]["images_per_s"].items()}
    return {
        "workload": workload,
        "precision": "amp-fp16",
        "batch_size": find_workload(workload).batch_cuda,
        "gpu": record["device"],
        "gains": {"cudnn_benchmark_limit": rounded(ratio_of(rates["10"], rates["0"]))},
    }


def gains_of_arms(path: Path) -> dict[str, Any]:
    job = load(path)
    fastest = job.records[0]
    return {
        "workload": fastest.config.workload,
        "precision": fastest.config.precision,
        "batch_size": fastest.config.batch_size,
        "gpu": fastest.environment.placements[0].device_name,
        "gains": {field: longer_step(job, field) for field in job.swept},
    }


def longer_step(job: Job, field: str) -> list[float]:
    """The step of the arm that differs from the first only in ``field``, relative to that of the first: center, low, high."""
    fastest, *others = job.records
    shared = [name for name in job.swept if name != field]
    without = next(arm for arm in others if all(getattr(arm.config, name) == getattr(fastest.config, name) for name in shared))
    ratio = throughput_ratio(fastest, without)
    if ratio is None:
        raise ValueError(f"no round without {field} to compare with")
    return rounded(ratio)


def rounded(ratio: PairedRatio) -> list[float]:
    return [round(end, 3) for end in (ratio.center, ratio.low, ratio.high)]


def main(target: Path = TARGET) -> None:
    readers = {"ideas": gains_of_ideas, "fast": gains_of_arms, "trials": gains_of_trials}
    found = [read(path) for kind, read in readers.items() for path in sorted(HERE.glob(f"{kind}-*.json"))]
    target.write_text(json.dumps(merged(found), indent=1) + "\n")


def merged(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per measured training, with the gains from all its records."""
    entries: dict[tuple[Any, ...], dict[str, Any]] = {}
    for each in found:
        measured_with = {name: value for name, value in each.items() if name != "gains"}
        entry = entries.setdefault(tuple(measured_with.values()), {**measured_with, "gains": {}})
        entry["gains"].update(each["gains"])
    return list(entries.values())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
