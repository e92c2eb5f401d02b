"""Diagnosis pages: golden files, sums, widths, copyable commands. ``DDPBENCH_GOLDEN=write`` rewrites the golden files."""

from __future__ import annotations

import io
import os
import re
import shlex
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import records
from diagnoses import DIAGNOSES, benchmark_of, diagnosis
from msgspec.structs import replace
from page_jobs import job_of_arms
from records import BUSY, RESNET50, next_command
from screened import at_the_limit, breaking, computing, half_edited, waiting, without_diff, without_time
from script_diagnoses import SCRIPT_DIAGNOSES

from ddpbench.analysis.summary import summarize
from ddpbench.bench.journal import close_records
from ddpbench.record.diagnosis import Diagnosis, RankNumaNodes
from ddpbench.record.loader_stats import LoaderStats
from ddpbench.record.record import DatasetInfo, Fault, Job
from ddpbench.record.roles import LOADER_IN_BACKGROUND, SkippedMeasurement
from ddpbench.record.verdict import RunCommand
from ddpbench.report.console import make_console
from ddpbench.report.messages.phrases import format_rounds
from ddpbench.report.pages.diagnosis import render_diagnosis
from ddpbench.report.pages.registry import view_of
from ddpbench.report.pages.run import render_run

GOLDEN = Path(__file__).parent / "golden" / "diagnosis"
RECORD = Path("results/runs/20261121T012930Z-diagnose-resnet50.json")
PHASES = "data wait|wait for peers' data|host to device|batch preparation|forward|backward|exposed sync|optimizer|unexplained|other"
PHASE_ROW = rf"^  (?:{PHASES}) +(-?[0-9.]+) +(-?[0-9.]+)"
PAGES = [
    *((name, False) for name in ("too-few-cores", "slow-storage", "loader-contends-gpu", "cifar-per-sample", "compute-bound")),
    *((name, False) for name in ("noisy-neighbour", "storage-or-cores", "competing")),
    ("too-few-cores", True),
]
"""Name of a diagnosis, and whether its page is verbose."""

OF_SCRIPTS = {
    **SCRIPT_DIAGNOSES,
    "script-screened": computing,
    "script-screened-without-diff": without_diff,
    "script-screened-without-time": without_time,
    "script-screened-while-waiting": waiting,
    "script-screened-half-edited": half_edited,
    "script-screened-other-losses": breaking,
    "script-screened-at-the-limit": at_the_limit,
}


@pytest.fixture(autouse=True)
def default_terminal_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def printed(job: Job, width: int | None = None, quiet: bool = False, verbose: bool = False) -> str:
    stream = io.StringIO()
    render_diagnosis(job, make_console(stream, width), RECORD, quiet=quiet, verbose=verbose)
    return stream.getvalue()


@cache
def page_of(name: str, verbose: bool = False) -> str:
    """The page of an unchanged diagnosis; cached because predicting gains makes rendering slow."""
    return printed(DIAGNOSES[name][0](), verbose=verbose)


def golden_name(name: str, verbose: bool) -> str:
    return f"{name}.80{'.verbose' if verbose else ''}.txt"


@pytest.mark.parametrize(("name", "verbose"), [*PAGES, *((name, False) for name in OF_SCRIPTS)])
def test_page_matches_golden_file(name: str, verbose: bool) -> None:
    golden = GOLDEN / golden_name(name, verbose)
    page = page_of(name, verbose) if name in DIAGNOSES else printed(OF_SCRIPTS[name](), verbose=verbose)
    if os.environ.get("DDPBENCH_GOLDEN") == "write":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(page, encoding="utf-8")
    assert page == golden.read_text(encoding="utf-8")


def test_no_golden_page_is_unused() -> None:
    drawn = {golden_name(*each) for each in (*PAGES, *((name, False) for name in OF_SCRIPTS))}
    assert {path.name for path in GOLDEN.iterdir()} == drawn


@pytest.mark.parametrize("name", DIAGNOSES)
def test_page_fits_phases_add_up_and_command_can_be_copied(name: str) -> None:
    job = DIAGNOSES[name][0]()
    pages = {verbose: page_of(name, verbose) for verbose in (False, True)}
    assert len(pages[False].splitlines()) <= 28
    for page in pages.values():
        assert [line for line in page.splitlines() if len(line) > 80 and not line.endswith(".json")] == []
        verdict = job.records[0].verdict
        assert verdict is not None
        shown = re.search(r"^  next  ((?:.*\\\n)*.*)$", page, re.MULTILINE)
        assert shlex.split(shown[1].replace("\\\n", " ") if shown else "") == shlex.split(next_command(verdict))
        rows = re.findall(PHASE_ROW, page, re.MULTILINE)
        step_ms, decimals = summarize(job.records[0]).step_ms, len(rows[0][0].partition(".")[2])
        assert step_ms is not None
        assert sum(Decimal(ms) for ms, _ in rows) == Decimal(f"{step_ms:.{decimals}f}")
        assert sum(Decimal(share) for _, share in rows) == 100


def test_recorded_next_step_is_not_repeated_as_the_command_of_a_remedy() -> None:
    """Another version may recommend other remedies for a kept record."""
    job = DIAGNOSES["too-few-cores"][0]()
    verdict = job.records[0].verdict
    assert verdict is not None
    uint8 = next_command(verdict).replace("torch,dali-gpu", "torch,torch-uint8")
    job.records[0].verdict = replace(verdict, next=RunCommand(uint8))
    remedies = " ".join(printed(job, verbose=True).partition("remedies ")[2].split())
    assert "CPU cost of torch-uint8" in remedies
    assert "--loader torch,dali-gpu" in remedies
    assert "--loader torch,torch-uint8" not in remedies


def test_diagnose_jobs_are_rendered_as_diagnosis() -> None:
    assert view_of(DIAGNOSES["compute-bound"][0]()).render is render_diagnosis


def test_quiet_page_is_the_conclusion() -> None:
    page = printed(DIAGNOSES["too-few-cores"][0](), quiet=True)
    assert page.startswith("DATA-BOUND, TOO FEW CORES   the GPUs wait for data 94% of the time\n")
    assert "step time by phase" not in page


def test_healthy_diagnosis_recommends_nothing_for_the_data() -> None:
    page = page_of("compute-bound")
    assert "the loader keeps up: data wait is 0.23% of a step" in page
    assert "remedies " not in page


@pytest.mark.parametrize("name", DIAGNOSES)
def test_every_remedy_has_gains_or_a_description(name: str) -> None:
    table = page_of(name).partition("remedies ")[2].partition("\n\n")[0].partition("\n")[2]
    rows = re.split(r"\n(?=  [^ ])", table)
    assert [row for row in rows if row and not re.search(r"  .+(?:  (?:-|[\d.]+x \(|[\d.]+x to [\d.]+x).*  \S|: \S)", row, re.DOTALL)] == []


def test_single_pipeline_part_has_its_own_line() -> None:
    job = DIAGNOSES["compute-bound"][0]()
    job.records, job.diagnosis = job.records[:1], Diagnosis(loader="torch")
    for record in job.records:
        record.rounds = [replace(timed, traces=[replace(each, loader_stats=None) for each in timed.traces]) for timed in record.rounds]
    assert re.search(r"pipeline throughput.*\n  this run +[\d,]+ +", printed(job, verbose=True))


def test_narrow_page_has_the_same_words_as_wide_page() -> None:
    job = DIAGNOSES["too-few-cores"][0]()
    pages = (printed(job, 60, verbose=True), page_of("too-few-cores", verbose=True))
    narrow, wide = ([word for word in page.split() if word != "\\"] for page in pages)
    assert narrow == wide


def test_part_that_is_no_limit_has_no_share() -> None:
    job = DIAGNOSES["too-few-cores"][0]()
    assert job.diagnosis is not None
    assert job.diagnosis.h2d_bandwidth is not None
    assert re.search(r"\n  copies, pageable +[\d,]+ +[\d,]+%\n", page_of("too-few-cores", verbose=True))
    job.diagnosis.h2d_bandwidth = replace(job.diagnosis.h2d_bandwidth, pageable_bytes_per_s=1e16)
    page = printed(job, verbose=True)
    assert re.search(r"\n  copies, pageable +[\d,]+ +no limit\n", page)
    assert max(map(len, page.splitlines())) <= 80


def test_interrupted_diagnosis_shows_its_measurements() -> None:
    job = DIAGNOSES["too-few-cores"][0]()
    assert job.diagnosis is not None
    job.diagnosis.storage, job.diagnosis.loader_benchmarks, job.diagnosis.single_rank_loader_benchmark, job.diagnosis.h2d_bandwidth = (
        None,
        [],
        None,
        None,
    )
    job.diagnosis.skipped = [SkippedMeasurement("storage", "no_time_left")]
    job.records = job.records[:1]
    page = printed(job, verbose=True)
    assert "not measured  storage: no time left" in page
    assert "loader alone" not in page
    assert "AU  " not in page
    for record in job.records:
        record.rounds, record.verdict = [], None
    assert "step time by phase" not in printed(job)


@pytest.mark.parametrize("whole", [False, True], ids=["in the midst of the run", "behind it"])
def test_interrupted_diagnosis_counts_rounds_of_all_arms(whole: bool) -> None:
    """Same count as on stderr, even if the run itself has all of its rounds."""
    job = DIAGNOSES["compute-bound"][0]()
    for at, record in enumerate(job.records):
        record.status, record.rounds = "running", record.rounds if whole and at == 0 else record.rounds[:3]
    close_records(job.records, "interrupted", Fault(message="interrupted by SIGINT"))
    assert job.records[0].status == ("ok" if whole else "interrupted")
    assert f"\ninterrupted by SIGINT, {format_rounds(job.records)}\n" in printed(job)


def machine_line(job: Job) -> list[str]:
    lines = printed(job, verbose=True).splitlines()
    [begin] = [at for at, line in enumerate(lines) if line.startswith("machine  ")]
    end = next(at for at, line in enumerate(lines[begin:], begin) if not line)
    return [item.strip() for line in lines[begin:end] for item in line.removeprefix("machine").split("   ") if item.strip()]


def test_machine_state_is_one_line() -> None:
    job = DIAGNOSES["quota"][0]()
    assert job.diagnosis is not None
    assert machine_line(job)[:3] == ["64 cores by affinity", "CPU quota 16", "idle before the job"]
    assert "\nmachine  64 cores by affinity   CPU quota 16   idle before the job" in page_of("quota", verbose=True)
    assert "\nmachine  " not in page_of("quota")
    there = [
        RankNumaNodes(rank=0, core_nodes=[0], gpu_nodes=[0]),
        RankNumaNodes(rank=1, core_nodes=[0], gpu_nodes=[1]),
        RankNumaNodes(rank=2, gpu_nodes=[1]),
    ]
    job.diagnosis.node_states = [replace(each, slurm_cores=32, other_busy_cores=3.21, numa=there) for each in job.diagnosis.node_states]
    items = machine_line(job)
    assert items[2:5] == ["32 by SLURM", "3.2 cores busy before the job", "GPU and cores on different NUMA nodes: rank 1"]
    assert "CPU pressure 30%" in items
    assert "GPU of rank 1 on NUMA node 1" in items
    assert len(items) == 5 + 3 + 5


def test_nodes_that_differ_have_one_line_each() -> None:
    place = records.environment(4, nodes=2, usable_cores=32.0)
    job = diagnosis(800.0, cores=32.0, place=place, wall_ms={"read": 30.0})
    assert job.diagnosis is not None
    assert machine_line(job)[0] == "32 cores by affinity"
    first, second = job.diagnosis.node_states
    job.diagnosis.node_states = [first, replace(second, other_busy_cores=None)]
    starts = [line[:27] for line in printed(job, verbose=True).splitlines() if line.startswith("machine")]
    assert starts == ["machine  node-01   32 cores", "machine  node-02   32 cores"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"verified": False}, "files on storage: not verified to come from a device rather than a cache"),
        (
            {"cold_files_per_s": None, "no_cold_rate_reason": "in_memory", "file_system": "tmpfs", "verified": False},
            "files on storage: no rate: tmpfs keeps files in memory",
        ),
        ({}, ""),
    ],
)
def test_doubts_on_the_storage_rate_are_printed(changes: dict[str, Any], text: str) -> None:
    job = DIAGNOSES["compute-bound"][0]()
    assert job.diagnosis is not None
    assert job.diagnosis.storage is not None
    job.diagnosis.storage = replace(job.diagnosis.storage, **changes)
    page = printed(job, verbose=True)
    assert f"  {text}\n" in page if text else "files on storage:" not in page


@pytest.mark.parametrize(("others", "shown"), [(0.2, False), (0.4, True)])
def test_cores_of_others_are_shown_from_a_quarter_core(others: float, shown: bool) -> None:
    page = printed(diagnosis(None, cpu_ms={"decode": 0.9}, others=others), verbose=True)
    assert (", 0.40 by other processes" in page) == shown


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ([0.6], "one round is too few to tell; a longer --time-limit helps"),
        ([0.9], "one round is too few to tell; a longer --time-limit helps"),
        ([0.6, 0.9, 0.5], "none measured: steps are no longer while the loader runs"),
        ([0.6, 0.6], "none measured: steps are no longer while the loader runs"),
        ([0.6, 0.5, 0.6], "no figure: steps were shorter while the loader ran, which it cannot cause; a longer --time-limit on an "),
        ([0.9, 0.9], "steps are 18% (2 pairs) longer while the loader runs"),
    ],
)
def test_shorter_step_with_background_loader_is_not_interference(shares: list[float], text: str) -> None:
    job = DIAGNOSES["loader-contends-gpu"][0]()
    for record in job.records:
        of_whom = shares if record.role == LOADER_IN_BACKGROUND else [1.0] * len(shares)
        record.rounds = [replace(timed, wall_s=share * timed.wall_s) for timed, share in zip(record.rounds, of_whom, strict=False)]
    assert f"interference: {text}" in " ".join(printed(job, verbose=True).split())


def compared() -> Job:
    """Two loaders and synthetic data; both loaders have a loader benchmark."""
    arms = []
    for loader, slower, speed in (("torch", 4.0, 1469.0), ("dali-cpu", 1.6, 4039.0), ("synthetic", 1.0, 0.0)):
        config = replace(RESNET50, loader=loader, data_dir=None if loader == "synthetic" else "/data/imagenet")
        phases = {phase: slower * span for phase, span in BUSY.items()}
        data = DatasetInfo(loader=loader, dataset="imagenet", file_kind="jpegs", num_samples=1_281_167)
        alone = [benchmark_of(rank, speed, 256, {"decode": 6.0, "collate": 0.4}) for rank in range(4)] if speed else []
        arms.append(records.record([phases] * 4, config=config, data=data, loader_benchmarks=alone))
    return job_of_arms(arms, "loader")


def test_compared_loaders_have_one_row_each_with_rate_and_cost() -> None:
    stream = io.StringIO()
    render_run(compared(), make_console(stream), RECORD)
    rows = [line.split() for line in stream.getvalue().splitlines()]
    assert ["torch", "5,876", "5,805", "6.4", "9.0", "1.8", "s"] in rows
    assert ["dali-cpu", "16,160", "14,460", "6.4", "9.0", "1.8", "s"] in rows
    assert max(map(len, stream.getvalue().splitlines())) <= 80


def test_run_page_states_cpu_cost_per_image() -> None:
    images = 256 * 20  # per round, of five
    stats = LoaderStats(samples=images, cpu_s={"read": 0.5, "decode": 30.0}, wall_s={"read": 0.5, "decode": 31.0})
    stream = io.StringIO()
    job = job_of_arms([records.record(traces={0: {"loader_stats": stats}})])
    render_run(job, make_console(stream), RECORD, verbose=True)
    words = " ".join(stream.getvalue().split())
    assert "load 6.0 ms CPU time per image: read 0.098, decode 5.9" in words
