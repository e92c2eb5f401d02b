"""Merging launches into one record: checks, figures and full disks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import records
from full_disk import limited_file_size

from ddpbench.analysis.judge import judge
from ddpbench.bench.merge_launches import merge_launches, save_and_print
from ddpbench.cli.files import latest_record, latest_record_below
from ddpbench.record.config import Config
from ddpbench.record.io import load, save
from ddpbench.record.record import Job
from ddpbench.record.request import OutputOptions, Request


def launch(**changes: Any) -> Job:
    record = records.record(**changes)
    judge(record)
    return records.job(record)


def asked(launches: int, **output: Any) -> Request:
    command = ["ddpbench", "resnet50", "--amp", "--launches", str(launches)]
    return Request(arms=[Config(workload="resnet50", launches=launches)], output=OutputOptions(**output), command=command)


def test_merged_figure_is_the_median_of_the_launches() -> None:
    jobs = [launch(longer=[pace * each for each in records.STEADY]) for pace in (1.0, 1.02, 1.01)]
    figures = [job.records[0].throughput.samples_per_s for job in jobs if job.records[0].throughput]
    (record,) = merge_launches(asked(3), jobs).records
    assert record.throughput is not None
    assert record.throughput.samples_per_s == sorted(figures)[1]
    assert record.throughput.launch_samples_per_s == figures


def test_check_of_some_launches_lists_their_numbers() -> None:
    hot = {0: {"health": msgspec.structs.replace(records.GPU_HEALTH, throttle_reasons=["hw-thermal"])}}
    shared = {0: {"health": msgspec.structs.replace(records.GPU_HEALTH, other_processes=2)}}
    (record,) = merge_launches(asked(3), [launch(traces=hot), launch(traces=shared), launch(traces=shared)]).records
    assert {check.code: check.launches for check in record.checks} == {"throttled": [1], "shared-gpu": [2, 3]}


def test_check_of_all_launches_is_reported_once() -> None:
    few = {"longer": records.STEADY[:2]}
    (record,) = merge_launches(asked(2), [launch(**few), launch(**few)]).records
    (alone,) = launch(**few).records
    assert "too-short" in {check.code for check in record.checks}
    assert record.checks == alone.checks


def test_arm_that_failed_in_one_launch_has_no_merged_figure() -> None:
    bad = {0: {"numerics": records.numerics(nonfinite_step=3)}}
    (record,) = merge_launches(asked(2), [launch(traces=bad), launch()]).records
    assert (record.status, record.throughput) == ("invalid", None)
    assert "nonfinite-loss" in {check.code for check in record.checks}


def test_next_command_keeps_the_number_of_launches() -> None:
    launched = [records.record() for _ in range(2)]
    for record in launched:
        record.requested = Config(workload="resnet50")
        judge(record)
    merged = merge_launches(asked(2), [records.job(record) for record in launched])
    (record,) = merged.records
    assert merged.command == asked(2).command
    assert record.config.launches == 2
    assert record.verdict is not None
    assert "--launches 2" in records.next_command(record.verdict)


def test_full_disk_loses_the_files_but_not_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "run.json"
    target.write_text("mine")
    request = asked(2, output_dir=str(tmp_path / "runs"), json=str(target), force=True)
    with limited_file_size():
        assert not save_and_print(request, merge_launches(request, [launch(), launch()]))
    printed = capsys.readouterr()
    assert "images/s" in printed.out
    assert re.fullmatch(r"ddpbench: error: cannot save .*; cannot save .*run.json: File too large\nhint: .*\n", printed.err)
    assert target.read_text() == "mine"
    assert list((tmp_path / "runs").iterdir()) == []


def test_merged_record_is_the_latest(tmp_path: Path) -> None:
    jobs = [launch(), launch()]
    for second, job in enumerate(jobs):
        job.started = f"2020-01-01T00:00:{second:02}+00:00"
        save(job, tmp_path / f"20200101T0000{second:02}Z-resnet50-amp-fp16-synthetic.json")
    request = asked(2, output_dir=str(tmp_path))
    merged = merge_launches(request, jobs)
    assert save_and_print(request, merged)
    assert load(latest_record(tmp_path)) == merged
    assert latest_record_below(tmp_path) == latest_record(tmp_path)


def test_latest_record_of_one_second_is_the_last_written(tmp_path: Path) -> None:
    for when, name in enumerate(("torch-default-synthetic", "torch-default-synthetic-2", "2-launches")):
        save(launch(), path := tmp_path / f"20200101T000000Z-resnet50-{name}.json")
        os.utime(path, (when, when))
    assert latest_record(tmp_path) == latest_record_below(tmp_path) == path
