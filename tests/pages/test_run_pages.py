"""Golden pages: the exact output of each example. ``DDPBENCH_GOLDEN=write`` rewrites the files."""

from __future__ import annotations

import io
import os
import re
import shlex
from decimal import Decimal
from pathlib import Path

import pytest
import records
from msgspec.structs import replace
from page_jobs import PAGE_JOBS, single_run

from ddpbench.analysis.fastest import find_best_arm, next_step_after_comparison
from ddpbench.analysis.summary import summarize
from ddpbench.record.record import DatasetInfo, Job
from ddpbench.report.console import make_console
from ddpbench.report.messages.verdict import next_step_text
from ddpbench.report.pages.registry import view_of
from ddpbench.report.pages.run import render_run
from ddpbench.report.pages.verdict import NOTHING_TO_GAIN

GOLDEN = Path(__file__).parent / "golden"
RECORD = Path("results/runs/20261121T012930Z-resnet50-amp-fp16-torch.json")
PHASES = (
    "data wait|wait for peers' data|host to device|batch preparation|forward|backward|exposed sync|optimizer|script|data and script|"
    "unexplained|other"
)
PHASE_ROW = rf"^  (?:{PHASES}) +(-?[0-9.]+) +(-?[0-9.]+)"

PAGES = [
    *((name, 80, "utf-8", "") for name in PAGE_JOBS),
    ("many-ranks", 60, "ascii", ""),
    *((name, 80, "utf-8", "verbose") for name in ("data-bound", "many-ranks", "precisions", "roofline")),
    *(
        (name, 80, "utf-8", "quiet")
        for name in ("data-bound", "killed", "precisions", "loaders-and-batches", "two-rounds", "watched-script")
    ),
]


@pytest.fixture(autouse=True)
def default_terminal_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def page(name: str, width: int, encoding: str = "utf-8", mode: str = "") -> str:
    """The page of the example as printed to a file; 80 columns is the default there."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict", newline="\n")
    console = make_console(stream, None if width == 80 else width)
    job = PAGE_JOBS[name]()
    view_of(job).render(job, console, RECORD, verbose=mode == "verbose", quiet=mode == "quiet")
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def stem(name: str, width: int, encoding: str, mode: str) -> str:
    """The golden file's name without its suffix."""
    return ".".join(filter(None, [name, str(width), encoding if encoding == "ascii" else "", mode]))


@pytest.mark.parametrize(("name", "width", "encoding", "mode"), PAGES, ids=lambda value: str(value))
def test_page_matches_golden_file(name: str, width: int, encoding: str, mode: str) -> None:
    golden = GOLDEN / f"{stem(name, width, encoding, mode)}.txt"
    printed = page(name, width, encoding, mode)
    if os.environ.get("DDPBENCH_GOLDEN") == "write":
        golden.write_text(printed, encoding="utf-8")
    assert printed == golden.read_text(encoding="utf-8")


def test_no_golden_page_is_unused() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == {stem(*page) for page in PAGES}


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", PAGE_JOBS)
def test_only_record_paths_may_be_wider_than_the_page(name: str, width: int) -> None:
    wide = [line for line in page(name, width).splitlines() if len(line) > width]
    assert [line for line in wide if not line.endswith(".json")] == []


@pytest.mark.parametrize("name", PAGE_JOBS)
def test_narrow_page_has_the_same_words_as_wide_page(name: str) -> None:
    narrow, wide = ([word for word in page(name, width).split() if word != "\\"] for width in (60, 80))
    assert narrow == wide


@pytest.mark.parametrize("name", PAGE_JOBS)
def test_page_ends_with_the_path_and_has_no_trailing_blanks(name: str) -> None:
    lines = page(name, 80).splitlines()
    assert lines[-1] == f"more     ddpbench report -v {RECORD}"
    assert [line for line in lines if line != line.rstrip()] == []
    assert "\n\n\n" not in page(name, 80)


@pytest.mark.parametrize("name", ["data-bound", "compute-bound", "lone-cpu", "cpu-pair", "many-ranks", "noisy"])
def test_printed_phases_add_up_to_the_step(name: str) -> None:
    rows = re.findall(PHASE_ROW, page(name, 80), re.MULTILINE)
    decimals = len(rows[0][0].partition(".")[2])
    step_ms = summarize(PAGE_JOBS[name]().records[0]).step_ms
    assert step_ms is not None
    assert sum(Decimal(ms) for ms, _ in rows) == Decimal(f"{step_ms:.{decimals}f}")
    assert sum(Decimal(percent) for _, percent in rows) == 100


def test_single_process_without_ddp_has_no_sync_phase() -> None:
    spans = {"broadcast": 0.1, "forward": 61.0, "backward": 128.0, "sync": 0.2, "optimizer": 4.0}
    stream = io.StringIO()
    render_run(single_run(records.cpu_run(ranks=[spans], environment=records.environment(1, device="Intel"))), make_console(stream), RECORD)
    printed = stream.getvalue()
    assert "exposed sync" not in printed
    assert "buffer broadcast" not in printed
    assert re.findall(rf"^  ({PHASES}) +([0-9.]+)", printed, re.MULTILINE)[:2] == [("forward", "61.1"), ("backward", "128.2")]


@pytest.mark.parametrize(("verbose", "rows"), [(False, 3), (True, 128)])
def test_many_ranks_are_folded_unless_verbose(verbose: bool, rows: int) -> None:
    slow = {**records.BUSY, "forward": 2 * records.BUSY["forward"]}
    big = records.record([*[records.BUSY] * 127, slow], environment=records.environment(128, nodes=16))
    stream = io.StringIO()
    render_run(single_run(big), make_console(stream), RECORD, verbose=verbose)
    assert ("128 ranks, sorted by own ms (step minus sync); -v shows all" in stream.getvalue()) == (not verbose)
    assert len(re.findall(r"^ *(?:slowest|median|fastest)? *\d+  node-\d\d ", stream.getvalue(), re.MULTILINE)) == rows


def test_units_of_wide_rank_table_are_aligned_with_their_columns() -> None:
    place = records.environment(16, nodes=2)
    place = replace(place, placements=[replace(each, host=f"gpu-cluster-{each.host}") for each in place.placements])
    config = replace(records.RESNET50, loader="torch", data_dir="/data/imagenet")
    stream = io.StringIO()
    render_run(
        single_run(records.record([{**records.BUSY, "data": 100.0}] * 16, config=config, environment=place)),
        make_console(stream),
        None,
        verbose=True,
    )
    lines = stream.getvalue().splitlines()
    units = next(at for at, line in enumerate(lines) if line.startswith("rank  host"))
    assert lines[units - 1].split() == ["step", "data", "own", "sync", "peak", "SM", "deg"]
    assert lines[units].split() == ["rank", "host", "ms", "ms", "ms", "ms", "GiB", "MHz", "watts", "C"]
    assert len(lines[units + 1].split()) == 10
    assert max(map(len, lines[units - 1 :])) <= 80


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("two-rounds", "throughput   19,800 images/s   (2 rounds: 16,500 to 23,100)"),
        ("one-round", "throughput   23,060 images/s   (one round: no interval)"),
        ("compute-bound", "throughput   23,060 images/s   (22,930 to 23,190, 95%, 5 rounds)"),
    ],
)
def test_fewer_than_three_rounds_have_no_interval(name: str, line: str) -> None:
    printed = page(name, 80)
    assert line in printed
    assert "across launches" not in printed, "there are no earlier runs on this machine"


@pytest.mark.parametrize("name", PAGE_JOBS)
def test_next_command_can_be_copied_from_the_page(name: str) -> None:
    job = PAGE_JOBS[name]()
    verdict, found = job.records[0].verdict, find_best_arm(job.records)
    step = next_step_after_comparison(found, job) if found else verdict and verdict.next
    shown = re.search(r"^  next  ((?:.*\\\n)*.*)$", page(name, 80), re.MULTILINE)
    said = shown[1].replace("\\\n", " ") if shown else ""
    assert shlex.split("" if said == NOTHING_TO_GAIN else said) == shlex.split(next_step_text(step) if step else "")


def printed(job: Job, quiet: bool = False) -> str:
    stream = io.StringIO()
    render_run(job, make_console(stream), RECORD, quiet=quiet)
    return stream.getvalue()


@pytest.mark.parametrize("strict", [False, True])
def test_quiet_strict_run_prints_its_warnings(strict: bool) -> None:
    few = single_run(records.record(longer=(1.0, 1.4), config=replace(records.RESNET50, rounds=2, strict=strict), traces=hot()))
    lines = printed(few, quiet=True).splitlines()
    reasons = [re.split(r"\s{2,}", line)[1] for line in lines if line.startswith("warning")]
    assert reasons == (["noisy, too-short"] if strict else [])


def hot() -> dict[int, dict[str, object]]:
    """A check with severity info only."""
    return {0: {"health": replace(records.GPU_HEALTH, throttle_reasons=["sw-power-cap"])}}


@pytest.mark.parametrize(("loader", "reported"), [("synthetic", True), ("torch", False)])
def test_loss_of_synthetic_data_is_reported_as_such(loader: str, reported: bool) -> None:
    run = records.record(config=replace(records.RESNET50, loader=loader))
    assert ("(synthetic)" in printed(single_run(run))) == reported


@pytest.mark.parametrize(("rounds", "data_ms", "named"), [(5, 200.0, True), (2, 200.0, False), (5, 20.0, False)])
def test_slow_rank_is_reported_once_and_not_from_two_rounds(rounds: int, data_ms: float, named: bool) -> None:
    starving = [{**records.BUSY, "data": data_ms}] * 3 + [{**records.BUSY, "data": data_ms + 60.0}]
    stream = io.StringIO()
    render_run(single_run(records.record(starving, longer=[1.0] * rounds)), make_console(stream), RECORD)
    assert ("slow rank 3 (node-01, GPU 3): " in stream.getvalue()) == named
    assert ("STRAGGLER   rank 3" in stream.getvalue()) == (data_ms == 20.0)


@pytest.mark.parametrize(("dataset", "suggested"), [("imagenet", True), ("", True), ("gemm", False)])
def test_synthetic_run_suggests_data_only_if_its_dataset_has_files(dataset: str, suggested: bool) -> None:
    stream = io.StringIO()
    run = records.cpu_run(data=DatasetInfo(loader="synthetic", dataset=dataset, num_batches=1))
    render_run(single_run(run), make_console(stream), RECORD)
    assert ("--data-dir DIR" in stream.getvalue()) == suggested
