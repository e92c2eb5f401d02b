"""Whether a slow rank is named, and a healthy one is not: delays on a rank of the workload in tests/straggling.py.

    python results/stragglers/stragglers.py [--ranks N] [--device cpu|cuda] [--share 0.25] [--injected 40] [--clean 200]

Each rank has a core of its own. Every launch is cut into windows of five rounds, each of which is judged as a run of five rounds is.
Writes a json and a table, NAME-of-the-device, beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median

import msgspec

from ddpbench.analysis.pipeline.neighbours import busiest
from ddpbench.analysis.ranks import own_ms
from ddpbench.analysis.summary import summarise
from ddpbench.record.record import Record, load

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1] / "tests"
WINDOW, STEPS = 5, 20
KINDS = ("data", "compute", "host")


def launched(options: argparse.Namespace, windows: int, late: Mapping[str, str]) -> Record:
    """So many windows of one launch."""
    words = ["straggling:net", "--loader", "straggling:loader", "--device", options.device, "--gpus", str(options.ranks)]
    words += ["--rounds", str(WINDOW * windows), "--steps", str(STEPS), *(["--cores", "1"] if options.device == "cpu" else [])]
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
        command = [sys.executable, "-m", "ddpbench", *words, "-q", "-o", folder]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path, **late}, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        return load(next(Path(folder).glob("*.json"))).records[0]


def windows_of(record: Record) -> Iterator[Record]:
    for begin in range(0, len(record.rounds), WINDOW):
        yield msgspec.structs.replace(record, rounds=record.rounds[begin : begin + WINDOW])


def judged(window: Record) -> dict[str, object]:
    slow = summarise(window).slow
    found = {"rank": slow.rank, "kind": slow.kind, "excess": round(slow.excess, 4)} if slow else None
    watched = busiest(window)
    return {"found": found, "others_on_the_cores": watched is not None and watched.shared}


def injected(options: argparse.Namespace, delay_s: float) -> list[dict[str, object]]:
    ranks = sorted({0, options.ranks // 2, options.ranks - 1})
    cells = [(kind, rank) for kind in KINDS for rank in ranks]
    each = -(-options.injected // len(cells))
    told = []
    for kind, rank in cells:
        record = launched(options, each, {"SLOW_IN": kind, "SLOW_RANK": str(rank), "DELAY_S": str(delay_s)})
        told += [{"kind": kind, "rank": rank, **judged(window)} for window in windows_of(record)]
        print(f"{kind} on rank {rank}: {[each['found'] for each in told[-each:]]}", file=sys.stderr, flush=True)
    return told


def clean(options: argparse.Namespace) -> list[dict[str, object]]:
    told: list[dict[str, object]] = []
    while len(told) < options.clean:
        record = launched(options, min(50, options.clean - len(told)), {})
        told += [judged(window) for window in windows_of(record)]
        print(f"clean: {len(told)}, {sum(each['found'] is not None for each in told)} alarms", file=sys.stderr, flush=True)
    return told


def table(late: list[dict[str, object]], quiet: list[dict[str, object]], options: argparse.Namespace, step_ms: float) -> str:
    def share(rows: list[bool]) -> str:
        return f"{sum(rows)} of {len(rows)} ({sum(rows) / len(rows):.1%})" if rows else "-"

    def named(row: dict[str, object], kind: bool) -> bool:
        found = row["found"]
        return isinstance(found, dict) and found["rank"] == row["rank"] and (not kind or found["kind"] == row["kind"])

    lines = [
        f"{options.ranks} ranks, {options.device}, delays of {options.share:.0%} of a step of {step_ms:.1f} ms, windows of {WINDOW} rounds "
        f"of {STEPS} steps.",
        "",
        "| | all windows | where nobody else took the cores |",
        "|---|---|---|",
    ]

    def line(name: str, rows: list[dict[str, object]], holds: Callable[[dict[str, object]], bool]) -> str:
        alone = [row for row in rows if not row["others_on_the_cores"]]
        return f"| {name} | {share([holds(row) for row in rows])} | {share([holds(row) for row in alone])} |"

    for kind in KINDS:
        rows = [row for row in late if row["kind"] == kind]
        lines.append(line(f"{kind}: slow rank named", rows, lambda row: named(row, False)))
        lines.append(line(f"{kind}: and its kind", rows, lambda row: named(row, True)))
    lines.append(line("recall", late, lambda row: named(row, False)))
    lines.append(line("false alarms", quiet, lambda row: row["found"] is not None))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--injected", type=int, default=40)
    parser.add_argument("--clean", type=int, default=200)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    first = launched(options, 1, {})
    step_ms = median(own_ms(trace) for timed in first.rounds for trace in timed.traces)
    late = injected(options, options.share * step_ms / 1000)
    quiet = clean(options)
    name = f"{options.device}-{options.ranks}-ranks"
    told = {"command": sys.argv, "step_ms": step_ms, "injected": late, "clean": quiet}
    (HERE / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")
    (HERE / f"{name}.md").write_text(table(late, quiet, options, step_ms))
    print(table(late, quiet, options, step_ms))


if __name__ == "__main__":
    main()
