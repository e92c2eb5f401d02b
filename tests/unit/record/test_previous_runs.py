"""Earlier runs are used only if config, machine and software are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import invalid_records
import msgspec
import pytest
import records

from ddpbench.analysis.judge import judge, previous_figures
from ddpbench.record.io import MAX_PREVIOUS_FILES, previous_runs, save
from ddpbench.record.record import Record


def launch(number: int, pace: float = 1.0, **changes: Any) -> Record:
    """A run in separate processes."""
    record = records.record(longer=[pace * each for each in records.STEADY], **changes)
    places = [msgspec.structs.replace(place, pid=place.pid + 100 * number) for place in record.environment.placements]
    record.environment = msgspec.structs.replace(record.environment, placements=places)
    judge(record)
    return record


def earlier_figures(folder: Path, record: Record) -> list[float]:
    return previous_figures(record, previous_runs(folder))


def keep(folder: Path, name: str, *of_job: Record) -> None:
    save(records.job(*of_job), folder / f"{name}.json")


def test_throughputs_of_the_same_run_are_ordered_oldest_first(tmp_path: Path) -> None:
    for number, pace in enumerate([1.0, 1.01, 0.99]):
        keep(tmp_path, f"2026110{number}", launch(number, pace))
    assert earlier_figures(tmp_path, launch(9)) == pytest.approx([1024 / 0.0444 / pace for pace in (1.0, 1.01, 0.99)])


def test_profiler_traces_are_ignored(tmp_path: Path) -> None:
    keep(tmp_path, "20261101", launch(1))
    for rank in range(MAX_PREVIOUS_FILES):
        (tmp_path / f"20261101-rank{rank}.trace.json").write_text("{}")
    assert len(earlier_figures(tmp_path, launch(9))) == 1


def test_runs_with_other_config_machine_software_or_status_are_ignored(tmp_path: Path) -> None:
    keep(tmp_path, "batch", launch(1, config=msgspec.structs.replace(records.RESNET50, batch_size=128)))
    keep(tmp_path, "device", launch(2, environment=records.environment(4, device="NVIDIA A100")))
    keep(tmp_path, "host", launch(3, environment=records.environment(4, nodes=2)))
    newer = msgspec.structs.replace(records.SOFTWARE, torch="2.15.0")
    keep(tmp_path, "software", launch(4, environment=records.environment(4, software=newer)))
    keep(tmp_path, "failed", launch(5, status="failed"))
    keep(tmp_path, "invalid", launch(6, traces={0: {"numerics": records.numerics(nonfinite_step=0)}}))
    assert earlier_figures(tmp_path, launch(9)) == []


def test_record_is_not_its_own_previous_run(tmp_path: Path) -> None:
    record = launch(1)
    keep(tmp_path, "itself", record)
    assert earlier_figures(tmp_path, record) == []


def test_arms_of_earlier_jobs_are_used(tmp_path: Path) -> None:
    keep(tmp_path, "arms", launch(1), launch(1, config=msgspec.structs.replace(records.RESNET50, precision="fp32")))
    assert len(earlier_figures(tmp_path, launch(9))) == 1


@pytest.mark.parametrize("wrong", invalid_records.DEFECTS)
def test_unreadable_file_is_skipped(tmp_path: Path, wrong: str) -> None:
    keep(tmp_path, "good", launch(1))
    invalid_records.write(tmp_path / "2.json", wrong)
    assert len(earlier_figures(tmp_path, launch(9))) == 1


def test_missing_folder_has_no_previous_runs(tmp_path: Path) -> None:
    assert earlier_figures(tmp_path / "none", launch(1)) == []
