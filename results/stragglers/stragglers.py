"""Recall and false alarms of the straggler rule: delays injected into the workload of tests/support/slow_rank.py.

    python results/stragglers/stragglers.py [--ranks N] [--device cpu|cuda] [--share 0.25] [--steps 20] [--injected 40] [--clean 200]

On CPU each rank has its own core, and malloc keeps freed memory. A control, constant work, is timed with every step; it shows in which
windows one core was slower than another, whatever the ranks did. A launch is split into windows of five rounds, each judged like a run of
five rounds; the late rank, or the kind of its delay, changes from window to window. Writes DEVICE-N-ranks.json after every launch, and at
the end a table, DEVICE-N-ranks.md, next to this file. If interrupted, it resumes when started again with the same arguments on the same
devices.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

import slow_rank

from ddpbench.analysis.ranks import drop_none, own_ms
from ddpbench.analysis.straggler import MIN_EXCESS_FRACTION
from ddpbench.analysis.summary import summarize
from ddpbench.record.io import atomic_write, load
from ddpbench.record.record import Record
from ddpbench.record.trace import Trace

HERE = Path(__file__).resolve().parent
SUPPORT = Path(slow_rank.__file__).parent
WINDOW = slow_rank.WINDOW
MOST_WINDOWS = 100
KINDS = ("data", "compute", "host")
KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_MMAP_MAX_": "0"}
"""Otherwise glibc returns memory and faults it in again in every step of one rank but not of another, and this changes within minutes
(memory.py): that rank is slow, and correctly reported, although no delay was injected.
"""


class RankReport(msgspec.Struct):
    """What a rank of tests/support/slow_rank.py reports per round: its mean step, and on CPU the control."""

    own_ms: float
    pages: float
    control_ms: float | None


class Launch(NamedTuple):
    """Its record, and the reports of all ranks by round."""

    record: Record
    reports: list[list[RankReport]]


def launched(options: argparse.Namespace, windows: int, variables: Mapping[str, str]) -> Launch:
    """One launch of ``windows`` windows, with ``variables`` in its environment."""
    rounds = WINDOW * windows
    words = ["slow_rank:net", "--loader", "slow_rank:loader", "--device", options.device, "--gpus", str(options.ranks)]
    words += ["--rounds", str(rounds), "--steps", str(options.steps), *(["--cores", "1"] if options.device == "cpu" else [])]
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join(filter(None, [str(SUPPORT), os.environ.get("PYTHONPATH", "")]))
        command = [sys.executable, "-m", "ddpbench", *words, "-q", "-o", folder]
        report_dir = Path(folder) / "reports"
        report_dir.mkdir()
        variables = {"PYTHONPATH": path, "REPORT_DIR": str(report_dir), **variables}
        done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        files = [[report_dir / f"{index}-{rank}.json" for rank in range(options.ranks)] for index in range(rounds)]
        reports = [[msgspec.json.decode(file.read_bytes(), type=RankReport) for file in ranks] for ranks in files]
        return Launch(load(next(Path(folder).glob("*.json"))).records[0], reports)


def memory_of(options: argparse.Namespace) -> Mapping[str, str]:
    return KEEPS_MEMORY if options.device == "cpu" else {}


def windows_of(launch: Launch) -> Iterator[Launch]:
    for begin in range(0, len(launch.reports), WINDOW):
        window = slice(begin, begin + WINDOW)
        yield Launch(msgspec.structs.replace(launch.record, rounds=launch.record.rounds[window]), launch.reports[window])


def core_excess(reports: list[list[RankReport]]) -> float | None:
    """Excess of the control on the slowest core over the median of the others, a fraction."""
    ranks = [drop_none(rank.control_ms for rank in ranks) for ranks in zip(*reports, strict=True)]
    if not all(ranks):
        return None
    *others, slowest = sorted(map(fmean, ranks))
    return round(slowest / median(others) - 1, 4)


class Found(msgspec.Struct):
    """The slow rank that a window names."""

    rank: int
    kind: str
    excess: float


class Judged(msgspec.Struct):
    """A window: the injected delay, and the straggler found. ``kind`` is empty without a delay."""

    kind: str
    rank: int
    found: Found | None
    core_excess: float | None = None

    @property
    def named(self) -> bool:
        return self.found is not None and self.found.rank == self.rank

    @property
    def named_with_its_kind(self) -> bool:
        return self.named and self.found is not None and self.found.kind == self.kind

    @property
    def on_equal_cores(self) -> bool:
        return self.core_excess is not None and self.core_excess < MIN_EXCESS_FRACTION["cpu"]


class Results(msgspec.Struct):
    """All windows measured so far, and the arguments of the script."""

    words: list[str]
    devices: list[str]
    step_ms: float
    injected: list[Judged] = []
    clean: list[Judged] = []


def judged(window: Launch, kind: str = "", rank: int = -1) -> Judged:
    slow = summarize(window.record).straggler
    found = Found(slow.rank, slow.slow_in, round(slow.excess_fraction, 4)) if slow else None
    return Judged(kind, rank, found, core_excess(window.reports))


def cells_of(ranks: int) -> list[tuple[str, int]]:
    """Every kind of delay on the first rank, on one in the middle, and on the last."""
    return [(kind, rank) for kind in KINDS for rank in sorted({0, ranks // 2, ranks - 1})]


def launches(options: argparse.Namespace, results: Results) -> Iterator[str]:
    """Measure what is missing, launch by launch; yields a line about each."""
    cells, memory = cells_of(options.ranks), memory_of(options)
    late = cells * -(-options.injected // len(cells))
    if not results.injected:
        words = {
            **memory,
            "LATE": " ".join(f"{kind}@{rank}" for kind, rank in late),
            "DELAY_S": str(options.share * results.step_ms / 1000),
        }
        windows = windows_of(launched(options, len(late), words))
        results.injected += [judged(window, kind, rank) for window, (kind, rank) in zip(windows, late, strict=True)]
        yield f"late: {len(late)}, {sum(window.named_with_its_kind for window in results.injected)} named with their kind"
    while len(results.clean) < options.clean:
        launch = launched(options, min(MOST_WINDOWS, options.clean - len(results.clean)), memory)
        results.clean += [judged(window) for window in windows_of(launch)]
        yield f"clean: {len(results.clean)}, {sum(window.found is not None for window in results.clean)} alarms"


def table(results: Results, options: argparse.Namespace) -> str:
    def share(rows: Sequence[bool]) -> str:
        return f"{sum(rows)} of {len(rows)} ({sum(rows) / len(rows):.1%})" if rows else "-"

    cores = any(row.core_excess is not None for row in (*results.injected, *results.clean))
    equal = f"windows with equally fast cores (control times within {MIN_EXCESS_FRACTION['cpu']:.0%})"
    command = " ".join(["python results/stragglers/stragglers.py", *results.words])
    lines = [
        f"{options.ranks} ranks ({options.device}), delays of {options.share:.0%} of the step time ({results.step_ms:.1f} ms), "
        f"windows of {WINDOW} rounds of {options.steps} steps. Windows with delays come from one launch, those without from "
        f"{-(-len(results.clean) // MOST_WINDOWS)}.",
        "",
        f"Record: `{options.device}-{options.ranks}-ranks.json`. Command: `{command}`.",
        "",
        row_of("", "all windows", *([equal] if cores else [])),
        row_of("---", "---", *(["---"] if cores else [])),
    ]

    def line(name: str, rows: Sequence[Judged], holds: Callable[[Judged], bool]) -> str:
        row_sets = [rows, *([[row for row in rows if row.on_equal_cores]] if cores else [])]
        return row_of(name, *(share([holds(row) for row in row_set]) for row_set in row_sets))

    for kind in KINDS:
        rows = [row for row in results.injected if row.kind == kind]
        lines.append(line(f"{kind}: rank identified", rows, lambda row: row.named))
        lines.append(line(f"{kind}: rank and kind identified", rows, lambda row: row.named_with_its_kind))
    lines.append(line("recall", results.injected, lambda row: row.named))
    lines.append(line("false alarms", results.clean, lambda row: row.found is not None))
    return "\n".join(lines) + "\n"


def row_of(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def begun(kept: Path, first: Record) -> Results:
    """The unfinished results of an earlier start with the same arguments on the same devices, or empty ones."""
    new = Results(sys.argv[1:], [place.device_name for place in first.environment.placements], median(map(own_ms, traces_of(first))))
    if kept.exists() and not kept.with_suffix(".md").exists():
        results = msgspec.json.decode(kept.read_bytes(), type=Results)
        if (results.words, results.devices) == (new.words, new.devices):
            return results
        print(f"{kept.name} has other arguments or devices: starting from scratch", file=sys.stderr)
    kept.unlink(missing_ok=True)
    kept.with_suffix(".md").unlink(missing_ok=True)
    return new


def traces_of(record: Record) -> list[Trace]:
    return [trace for timed in record.rounds for trace in timed.traces]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--injected", type=int, default=40)
    parser.add_argument("--clean", type=int, default=200)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    kept = HERE / f"{options.device}-{options.ranks}-ranks.json"
    results = begun(kept, launched(options, 1, memory_of(options)).record)
    for line in launches(options, results):
        print(line, file=sys.stderr, flush=True)
        atomic_write(kept, msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    kept.with_suffix(".md").write_text(table(results, options))
    print(table(results, options))


if __name__ == "__main__":
    main()
