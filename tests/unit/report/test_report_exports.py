"""JSON, CSV and markdown exports, parsed again."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import msgspec
import pytest
import scaling_jobs
import sweeps
from page_jobs import PAGE_JOBS

from ddpbench.analysis.judge import judge_all
from ddpbench.bench.journal import load_job
from ddpbench.published.claims import check_claims
from ddpbench.record.config import Config
from ddpbench.record.record import Fault, Job
from ddpbench.report.export import jobs_to_csv, jobs_to_json
from ddpbench.report.markdown import to_markdown


def rows_of(job: Job) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(jobs_to_csv(job))))


@pytest.mark.parametrize("name", PAGE_JOBS)
def test_json_export_round_trips(name: str) -> None:
    job = PAGE_JOBS[name]()
    text = jobs_to_json(job)
    assert msgspec.json.decode(text, type=Job) == job


def test_json_export_of_scaling_job_round_trips() -> None:
    job = scaling_jobs.network()
    assert job.scaling is not None
    assert job.scaling.allreduce_busbw, "its keys are numbers, and JSON keys are strings"
    assert json.loads(jobs_to_json(job)) == json.loads(msgspec.json.encode(job))


def test_json_is_indented_with_number_lists_on_one_line() -> None:
    job = PAGE_JOBS["killed"]()
    job.records[0].fault = Fault(message="[1,  2] is « odd »")
    lines = jobs_to_json(job).splitlines()
    assert lines[:2] == ["{", '  "schema": 4,']
    assert '        "message": "[1,  2] is « odd »",' in lines
    assert any(line.strip().startswith('"forward": [13.9, 13.9, ') and line.count("13.9") == 20 for line in lines)
    assert lines[-1] == "}"


@pytest.mark.parametrize("name", PAGE_JOBS)
def test_csv_has_one_row_per_arm_and_constant_columns(name: str) -> None:
    job = PAGE_JOBS[name]()
    rows = rows_of(job)
    assert len(rows) == len(job.records)
    assert list(rows[0]) == list(rows_of(PAGE_JOBS["data-bound"]())[0])
    assert {*Config.__struct_fields__} < {*rows[0]}


def test_csv_has_full_precision_and_empty_cells_for_missing_values() -> None:
    job = PAGE_JOBS["precisions"]()
    rows = rows_of(job)
    headlines = [record.throughput for record in job.records]
    assert [row["precision"] for row in rows] == ["torch-default", "fp32", "amp-fp16", "o2"]
    assert [float(row["samples_per_s"]) for row in rows[:3]] == [headline.samples_per_s for headline in headlines if headline]
    assert (rows[3]["status"], rows[3]["samples_per_s"], rows[3]["low"], rows[3]["checks"]) == ("invalid", "", "", "nonfinite-loss")
    assert (rows[0]["device"], rows[0]["device_name"]) == (job.records[0].config.device, "NVIDIA H200")


@pytest.mark.parametrize("name", ["two-rounds", "one-round"])
def test_csv_has_range_without_confidence_for_few_rounds(name: str) -> None:
    job = PAGE_JOBS[name]()
    [row] = rows_of(job)
    figures = [timed.samples_per_s for timed in job.records[0].rounds]
    assert (float(row["low"]), float(row["high"])) == (min(figures), max(figures))
    assert (row["confidence"], row["launch_low"], row["launch_high"]) == ("", "", "")


def test_csv_phases_sum_to_the_step() -> None:
    [row] = rows_of(PAGE_JOBS["data-bound"]())
    assert f"{float(row['sync_ms']):.1f}" == "33.0"
    assert (row["confidence"], f"{float(row['broadcast_ms']):.1f}") == ("0.95", "4.0")
    phases = ("data", "host_to_device", "forward", "backward", "sync", "optimizer", "unexplained")
    assert sum(float(row[f"{phase}_ms"]) for phase in phases) == pytest.approx(float(row["step_ms"]))


def test_csv_of_run_without_rounds_has_no_figure() -> None:
    [row] = rows_of(PAGE_JOBS["hung-before-the-first-round"]())
    assert (row["status"], row["rounds_done"]) == ("hung", "0")
    assert {
        row[name] for name in ("samples_per_s", "step_ms", "data_ms", "unexplained_ms", "first_step_s", "peak_allocated_bytes", "verdict")
    } == {""}


def test_markdown_has_one_row_per_arm_of_equal_width() -> None:
    lines = to_markdown(PAGE_JOBS["loaders-and-batches"]()).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert table[0] == "| loader | batch-size | images/s | 95% interval | speed-up | peak GiB |"
    assert table[2] == "| torch | 256 | 23,060 | 22,740 to 23,400 | 1 | 12.0 |"
    assert table[4].startswith("| torch | 512 | failed | - | - |")
    assert {line.count("|") for line in table} == {7}
    assert "- torch batch-size 256: interrupted by SIGINT, 3 of 5 rounds" in lines


def test_markdown_and_csv_name_crossover_sides_and_compare_within_a_model() -> None:
    job = sweeps.crossing_threads(rounds=5)
    judge_all(job)
    rows = [line.split(" | ") for line in to_markdown(job).splitlines() if line.startswith("| disc")]
    assert [row[2] for row in rows[:2]] == ["CPU, 1 thread", "CPU, 2 threads"]
    assert [row[5] for row in rows[::2]] == ["1"] * 11, "the first side of every model is the baseline"
    labels = [row["label"] for row in csv.DictReader(io.StringIO(jobs_to_csv(job)))]
    assert labels == ["CPU, 1 thread", "CPU, 2 threads"] * 11


def test_markdown_labels_the_range_of_two_rounds() -> None:
    assert "| ddp | 5,890 | 5,881 to 5,899 (range of 2) | 1 | 12.0 |" in to_markdown(PAGE_JOBS["engines"]()).splitlines()


def test_markdown_of_sweep_crossover_and_reproduction_has_its_results() -> None:
    swept, raced, published = sweeps.sweep(), sweeps.crossing_disc(), sweeps.t4()
    swept.kind, raced.kind, published.kind = "sweep", "crossover", "reproduce t4-tensor-cores"
    for job in (swept, raced, published):
        judge_all(job)
    text = to_markdown(swept)
    for title in (
        "accuracy on held-out data (%), median",
        "time of a training (s), median",
        "GPU memory of the process, by NVML (MiB), mean",
    ):
        assert text.count(f"**{title} (") == 1
    assert re.search(r"^\| 128 \| [\d.]+ \([\d.]+ to [\d.]+\) \|", text, re.MULTILINE)
    assert not re.search(r"^- .*(bound|inconclusive): ", text, re.MULTILINE), "arms of a sweep have no verdicts"
    text = to_markdown(raced)
    assert re.search(r"^\| 10 \| 703,142 \| ", text, re.MULTILINE)
    assert re.search(r"^- GPU is faster than CPU", text, re.MULTILINE)
    assert "- published: GPU is faster than CPU from 700,000 parameters on, 10 layers" in text
    text = to_markdown(published)
    assert "| published | 1,350,681,600 |" in text
    assert len(re.findall(r"^- claimed: .*; (holds|not here|open|same way): ", text, re.MULTILINE)) == len(
        check_claims("t4-tensor-cores", published)
    )


def test_markdown_of_scaling_job_has_efficiency_waterfall_and_one_verdict() -> None:
    made = scaling_jobs.network()
    assert made.scaling is not None
    assert made.scaling.verdict is not None
    text = to_markdown(made)
    assert "| images/s | 95% interval | efficiency % | lost to |" in text
    [top] = (line for line in text.splitlines() if "| 4 ranks |" in line)
    assert re.search(r"\| \d\d\.\d+ \([\d.]+ to [\d.]+\) \| exposed communication \|", top)
    bullets = [line for line in text.splitlines() if line.startswith("- ")]
    assert bullets[0].startswith(f"- {made.scaling.verdict.kind}: ")
    assert re.match(r"- [\d,]+ ideal, contention .*, = [\d,]+$", bullets[1])
    assert not any("bound: " in line for line in bullets[1:]), "arms of a scaling job have no verdicts"
    rows = {row["label"]: row for row in rows_of(made)}
    assert 0 < float(rows["4 ranks"]["efficiency"]) < float(rows["1 rank"]["efficiency"]) == 1
    assert [label for label, row in rows.items() if row["verdict"]] == ["4 ranks"]
    assert rows["4 ranks"]["verdict"] == made.scaling.verdict.kind
    assert rows["independent ranks"]["efficiency"] == rows["independent ranks"]["lost_to"] == ""


def test_markdown_escapes_untrusted_text() -> None:
    job = PAGE_JOBS["killed"]()
    job.records[0].fault = Fault(message="[rank0] *lost* a|b\n<b>")
    assert r"- failed: \[rank0\] \*lost\* a\|b \<b>, 2 of 5 rounds" in to_markdown(job)


def test_markdown_of_diagnosis_holds_what_its_page_holds() -> None:
    path = Path(__file__).parents[3] / "results" / "watch" / "train-images-2-h100.json"
    text = to_markdown(load_job(path))
    assert (
        r"| DataLoader(..., num\_workers=14, persistent\_workers=True) | 3.4x (2.7 to 4.0) | 2.6x (2.2 to 3.2), less than predicted |"
        in text
    )
    assert "| wait for peers' data | 78.8 | 27.8 |" in text
    assert r"- use: DataLoader(..., num\_workers=14, persistent\_workers=True)" in text
    assert "- worth: 3,000 (2,200 to 4,000) samples/s more; saves 30 of 48 GPU-hours/day" in text
    assert "- samples: not compared" in text
    assert "speed-up" not in text, "the gains of the remedies are those of paired rounds"
    assert r"trial: DataLoader(..., num\_workers=14" in text
    assert "--workers 14" not in text
