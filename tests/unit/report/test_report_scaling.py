"""The page of a scaling job: verdict first, sums, widths, ASCII, and implausible efficiencies."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
import scaling_jobs

from ddpbench.record.record import Job
from ddpbench.report.console import make_console
from ddpbench.report.markdown import to_markdown
from ddpbench.report.pages.registry import view_of

RECORD = Path("results/runs/20261121T012930Z-scale-resnet50-amp-fp16.json")


@pytest.fixture(autouse=True)
def default_terminal_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def printed(job: Job, encoding: str = "utf-8", quiet: bool = False, verbose: bool = False) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict", newline="\n")
    view_of(job).render(job, make_console(stream), RECORD, verbose=verbose, quiet=quiet)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


@pytest.mark.parametrize("made", scaling_jobs.JOBS)
def test_scaling_page_fits_80_columns(made: Callable[[], Job]) -> None:
    lines = printed(made(), "ascii").splitlines()
    assert max(map(len, lines[:-1])) <= 80
    assert lines[-1] == f"more     ddpbench report -v {RECORD}"


@pytest.mark.parametrize("made", scaling_jobs.JOBS)
def test_printed_losses_add_up(made: Callable[[], Job]) -> None:
    text = " ".join(printed(made()).split()).replace(",", "")
    way = re.search(r"([\d.]+) ideal (.*?) = ([\d.]+)", text)
    assert way
    losses = re.findall(r"(?:batch|contention|data|communication|straggler|DDP|residual) ([+-]?[\d.]+)", way[2])
    assert len(losses) >= 5
    assert Decimal(way[1]) + sum(map(Decimal, losses)) == Decimal(way[3])


def test_gain_among_losses_has_a_plus_sign() -> None:
    way = " ".join(printed(scaling_jobs.job(contention=-0.5, all_reduce=2.0)).split())
    assert re.search(r"contention \+\d", way)
    assert re.search(r"exposed communication -\d", way)


def test_interrupted_job_shows_its_measured_scaling_points() -> None:
    made = scaling_jobs.whole()
    for record in made.records[2:]:
        record.rounds.clear()
    scaling_jobs.judge_all(made)
    text = printed(made)
    assert len(re.findall(r"^ +[12] .*$", text, re.MULTILINE)) == 2
    assert "ideal" not in text


def test_verdict_comes_before_its_evidence() -> None:
    text = printed(scaling_jobs.network(), verbose=True)
    parts = ["ddpbench scale", "NETWORK-BOUND", "  why", "  next  torchrun", "GPUs", " ideal  ", "sent  ", "busbw  ", "not measured"]
    assert [text.index(part) for part in parts] == sorted(text.index(part) for part in parts)


def test_implausible_efficiency_is_marked_in_doubt() -> None:
    text = printed(scaling_jobs.too_good())
    rows = re.findall(r"^ +[24]  .*$", text, re.MULTILINE)
    assert len(rows) == 2
    assert all(row.endswith("unreliable") for row in rows)
    assert "unreliable  efficiency exceeds 102%; 1-rank baseline: its" in text


def test_quiet_page_is_the_verdict() -> None:
    assert printed(scaling_jobs.whole(), quiet=True).startswith("SCALES   4 ranks reach 98.6% of ideal throughput\n")


def test_unmeasured_loss_is_a_dash() -> None:
    assert "data -   " in printed(scaling_jobs.whole())
    assert "data -   " not in printed(scaling_jobs.data_bound())
    assert "loss to data" not in printed(scaling_jobs.data_bound())


def test_markdown_table_names_its_arms() -> None:
    lines = to_markdown(scaling_jobs.whole()).splitlines()
    assert [line.split(" | ")[2] for line in lines if line.startswith("| resnet50")][:3] == ["1 rank", "2 ranks", "4 ranks"]


def test_busbw_above_the_measured_peak_is_not_a_share_of_it() -> None:
    text = " ".join(printed(scaling_jobs.job(nodes=2, all_reduce=180.0, allreduce_only_ms=100.0, max_busbw=0.78e9), verbose=True).split())
    assert "MB/s, above the 780 MB/s measured before" in text
    assert "GB/s above the 780 MB/s measured before" in text


def test_waterfall_with_data_is_labelled() -> None:
    ends = [re.findall(r"= [\d.,]+( with data)?\n", printed(made())) for made in (scaling_jobs.data_bound, scaling_jobs.whole)]
    assert ends == [[" with data"], [""]]
