"""Golden pages: each scene as it is printed, character by character. ``DDPBENCH_GOLDEN=write`` draws them anew."""

from __future__ import annotations

import io
import os
import re
import shlex
from decimal import Decimal
from pathlib import Path

import pytest
import records
from scenes import SCENES, lone

from ddpbench.analysis.summary import summarise
from ddpbench.report.console import make_console
from ddpbench.report.terminal import render

GOLDEN = Path(__file__).parent / "golden"
RECORD = Path("results/runs/20261121T012930Z-resnet50-amp-fp16-torch.json")
PHASE_ROW = r"^  (?:data wait|host to device|forward|backward|sync not hidden|optimizer|unexplained) +(-?[0-9.]+) +(-?[0-9.]+)"

PAGES = [
    *((name, 80, "utf-8", "") for name in SCENES),
    *((name, 60, "utf-8", "") for name in SCENES),
    *((name, 80, "ascii", "") for name in ("data-bound", "many-ranks", "precisions")),
    *((name, 80, "utf-8", "verbose") for name in ("data-bound", "many-ranks", "precisions")),
    *((name, 80, "utf-8", "quiet") for name in ("data-bound", "killed", "precisions", "loaders-and-batches", "two-rounds")),
]


@pytest.fixture(autouse=True)
def plain_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def page(name: str, width: int, encoding: str = "utf-8", mode: str = "") -> str:
    """The scene as printed to a file; 80 columns is what a file gets by itself."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict", newline="\n")
    console = make_console(stream, None if width == 80 else width)
    render(SCENES[name](), console, RECORD, verbose=mode == "verbose", quiet=mode == "quiet")
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def stem(name: str, width: int, encoding: str, mode: str) -> str:
    """The golden file's name without its ending."""
    return ".".join(filter(None, [name, str(width), encoding if encoding == "ascii" else "", mode]))


@pytest.mark.parametrize(("name", "width", "encoding", "mode"), PAGES, ids=lambda value: str(value))
def test_page_is_as_drawn(name: str, width: int, encoding: str, mode: str) -> None:
    golden = GOLDEN / f"{stem(name, width, encoding, mode)}.txt"
    printed = page(name, width, encoding, mode)
    if os.environ.get("DDPBENCH_GOLDEN") == "write":
        golden.write_text(printed, encoding="utf-8")
    assert printed == golden.read_text(encoding="utf-8")


def test_no_golden_page_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == {stem(*page) for page in PAGES}


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("name", SCENES)
def test_only_what_is_copied_whole_may_be_wider_than_the_page(name: str, width: int) -> None:
    wide = [line for line in page(name, width).splitlines() if len(line) > width]
    assert [line for line in wide if not line.endswith(".json")] == []


@pytest.mark.parametrize("name", SCENES)
def test_path_is_the_last_line_and_no_line_ends_in_blanks(name: str) -> None:
    lines = page(name, 80).splitlines()
    assert lines[-1] == str(RECORD)
    assert [line for line in lines if line != line.rstrip()] == []
    assert "\n\n\n" not in page(name, 80)


@pytest.mark.parametrize("name", ["data-bound", "compute-bound", "lone-cpu", "cpu-pair", "many-ranks", "noisy"])
def test_printed_phases_add_up_to_the_step(name: str) -> None:
    rows = re.findall(PHASE_ROW, page(name, 80), re.MULTILINE)
    decimals = len(rows[0][0].partition(".")[2])
    step_ms = summarise(SCENES[name]().records[0]).step_ms
    assert step_ms is not None
    assert sum(Decimal(ms) for ms, _ in rows) == Decimal(f"{step_ms:.{decimals}f}")
    assert sum(Decimal(percent) for _, percent in rows) == 100


@pytest.mark.parametrize(("verbose", "rows"), [(False, 3), (True, 128)])
def test_many_ranks_are_folded_unless_asked_for(verbose: bool, rows: int) -> None:
    big = records.record([records.BUSY] * 128, environment=records.environment(128, nodes=16))
    stream = io.StringIO()
    render(lone(big), make_console(stream), RECORD, verbose=verbose)
    assert ("128 ranks, by their own time; a row each with -v" in stream.getvalue()) == (not verbose)
    assert len(re.findall(r"^ *(?:slowest|median|fastest)? *\d+  node-\d\d ", stream.getvalue(), re.MULTILINE)) == rows


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("two-rounds", "throughput   19,800 images/s   (2 rounds: 16,500 to 23,100)"),
        ("one-round", "throughput   23,060 images/s   (one round: no interval)"),
        ("compute-bound", "throughput   23,060 images/s   (22,930 to 23,190, 95%, 5 rounds)"),
    ],
)
def test_fewer_than_three_rounds_have_no_interval(name: str, told: str) -> None:
    printed = page(name, 80)
    assert told in printed
    assert ("across launches" in printed) == (name == "compute-bound")


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("name", SCENES)
def test_a_next_command_can_be_copied_from_the_page(name: str, width: int) -> None:
    for record in SCENES[name]().records[:1]:
        shown = re.search(r"^  next  ((?:.*\\\n)*.*)$", page(name, width), re.MULTILINE)
        if shown and record.verdict:
            assert shlex.split(shown[1].replace("\\\n", " ")) == shlex.split(record.verdict.next)


def test_a_hint_with_a_command_can_be_copied_from_a_narrow_page() -> None:
    assert "nvidia-smi -q \\\n                      -d PERFORMANCE,TEMPERATURE,POWER\n" in page("many-ranks", 60)


@pytest.mark.parametrize(("rounds", "data_ms", "named"), [(5, 200.0, True), (2, 200.0, False), (5, 20.0, False)])
def test_a_slow_rank_is_named_once_and_never_from_two_rounds(rounds: int, data_ms: float, named: bool) -> None:
    starving = [{**records.BUSY, "data": data_ms}] * 3 + [{**records.BUSY, "data": data_ms + 60.0}]
    stream = io.StringIO()
    render(lone(records.record(starving, longer=[1.0] * rounds)), make_console(stream), RECORD)
    assert ("slow rank 3 (node-01, GPU 3): +" in stream.getvalue()) == named
    assert ("STRAGGLER   rank 3" in stream.getvalue()) == (data_ms == 20.0)
