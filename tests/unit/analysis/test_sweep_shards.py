"""Shards of a sweep measured by several jobs, merged on loading."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import sweeps
from msgspec.structs import replace

from ddpbench.analysis.sweep_shards import merge_shards
from ddpbench.cli import main
from ddpbench.cli.files import load_jobs, load_with_shards
from ddpbench.record.io import load, save
from ddpbench.record.record import Job, Record
from ddpbench.record.request import SweepShard

NAME = "sweep-vgg16-cifar10-precision-batch-size"


def on(host: str, record: Record) -> Record:
    places = [replace(place, host=host) for place in record.environment.placements]
    return replace(record, environment=replace(record.environment, placements=places))


def part(number: int, of: int = 2, sweep: str = "5ca1ab1e") -> Job:
    """Shard ``number`` of ``of`` of the example sweep, measured on a separate host."""
    job = sweeps.sweep()
    share = SweepShard(parts=[number], num_parts=of, num_sweep_points=len(job.records), sweep_id=sweep)
    job.records = [on(f"n{number}", job.records[place]) for place in share.indices]
    job.kind, job.sweep_shard, job.started = "sweep", share, f"2026-11-21T01:29:3{number}Z"
    return job


def save_shards(folder: Path, *jobs: Job) -> list[Path]:
    """Save the shards under the names that a sweep gives them."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{NAME}-part-{job.sweep_shard.parts[0]}-of-{job.sweep_shard.num_parts}.json" for job in jobs if job.sweep_shard]
    for path, job in zip(paths, jobs, strict=True):
        save(job, path)
    return paths


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """``printed(*words)`` returns what the command prints."""

    def run(*words: object) -> str:
        assert main([str(word) for word in words]) == 0
        return capsys.readouterr().out

    return run


def cells(job: Job) -> list[tuple[str, int | None]]:
    return [(record.config.precision, record.config.batch_size) for record in job.records]


@pytest.mark.parametrize("of", [2, 4, 9])
def test_merged_shards_are_the_sweep_in_order(of: int) -> None:
    parts = [(Path(f"{NAME}-part-{number}-of-{of}.json"), part(number, of)) for number in range(of, 0, -1)]
    [(path, job)] = merge_shards(parts)
    assert cells(job) == cells(sweeps.sweep())
    assert job.sweep_shard is not None
    assert (job.sweep_shard.parts, job.sweep_shard.missing_parts) == (list(range(1, of + 1)), [])
    assert str(path) == f"{NAME}-part-*-of-{of}.json"


def test_unrelated_shards_are_not_merged() -> None:
    other_software = part(2)
    environment = other_software.records[0].environment
    old = replace(environment, software=replace(environment.software, torch="1.0"))
    other_software.records = [replace(record, environment=old) for record in other_software.records]
    jobs = [sweeps.sweep(), sweeps.sweep(), part(1), part(1, of=4), part(2, sweep="0ddba11"), other_software]
    assert [job for _, job in merge_shards((Path("job.json"), job) for job in jobs)] == jobs


def test_newer_measurement_of_a_shard_wins() -> None:
    again = part(1)
    again.started = "2026-11-22T00:00:00Z"
    again.records = [on("n9", record) for record in again.records]
    for order in ([again, part(1), part(2)], [part(1), part(2), again]):
        [(_, job)] = merge_shards((Path(f"{at}.json"), each) for at, each in enumerate(order))
        assert [record.environment.placements[0].host for record in job.records] == [("n9", "n2")[place % 2] for place in range(9)]


def test_plots_name_superseded_shards_and_read_repeated_files_once(tmp_path: Path) -> None:
    again = part(1)
    again.started = "2026-11-22T00:00:00Z"
    [first], [later] = save_shards(tmp_path / "a", part(1)), save_shards(tmp_path / "b", again)
    [job], [left_out] = load_jobs([tmp_path / "b", tmp_path / "a", first, later])
    assert job.started == again.started
    assert left_out.message == f"'{first}', of {part(1).started}: superseded by a later measurement of the same part"


def test_report_names_superseded_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = part(1)
    again.started = "2026-11-22T00:00:00Z"
    [first], [later, second] = save_shards(tmp_path / "a", part(1)), save_shards(tmp_path / "b", again, part(2))
    assert main(["report", *map(str, (first, second, later, later))]) == 0
    assert capsys.readouterr().err == f"skipped: '{first}', of {part(1).started}: superseded by a later measurement of the same part\n"


def test_report_of_folder_merges_shards_and_report_of_file_does_not(tmp_path: Path, printed: Callable[..., str]) -> None:
    folder = tmp_path / "runs" / "h200"
    first, second = save_shards(folder, part(1), part(2))
    page = printed("report", tmp_path)
    assert "part  1 of 2 on n1   2 of 2 on n2\n" in page
    assert page.endswith(f"more     ddpbench report -v {folder}/{NAME}-part-*-of-2.json\n")
    assert printed("report", first, second) == page
    save_shards(folder, part(1, of=4, sweep="0ddba11"))
    assert printed("report", tmp_path).count("\n2026-11-") == 3, "of several sweeps, the parts are listed"
    save(replace(sweeps.sweep(), kind="sweep"), tmp_path / "whole.json")
    tables = printed("report", tmp_path / "whole.json").split("\n\n")[1:-1]
    assert page.split("\n\n")[1:-1] == tables
    alone = printed("report", second)
    assert re.search(r"^part  2 of 2 on n2\nall   ddpbench report ", alone, re.MULTILINE)
    assert alone.endswith(f"{second}\n")


def test_missing_shards_are_listed(tmp_path: Path, printed: Callable[..., str]) -> None:
    save_shards(tmp_path, part(1, of=4), part(3, of=4))
    assert "part  1 of 4 on n1   3 of 4 on n3   missing: 2, 4\n" in printed("report", tmp_path)


def test_plot_of_merged_shards_is_the_plot_of_the_sweep(tmp_path: Path) -> None:
    save_shards(tmp_path, *(part(number, of=4) for number in (1, 2, 3, 4)))
    [job], left_out = load_jobs([tmp_path])
    assert (cells(job), left_out) == (cells(sweeps.sweep()), [])


def test_shard_file_with_unusual_name_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "mine[1].json"
    save(part(1), path)
    assert load_with_shards(path) == (path, load(path))
    odd = tmp_path / f"[x]{NAME}-part-1-of-2.json"
    path.rename(odd)
    assert load_with_shards(odd) == (odd, load(odd))
