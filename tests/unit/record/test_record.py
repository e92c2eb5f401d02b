"""Record files: atomic writes, validation on load, and older schemas."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from records import job as job_of
from records import record as example_record

from ddpbench.record import io
from ddpbench.record.bottleneck import Bottleneck
from ddpbench.record.config import Config
from ddpbench.record.errors import UsageError
from ddpbench.record.flags import flag_fields, to_argv
from ddpbench.record.io import load, reserve_path, save, slug
from ddpbench.record.names import lookup
from ddpbench.record.record import SCHEMA, DatasetInfo, FileKind
from ddpbench.record.request import OutputOptions
from ddpbench.record.scaling_loss import ScalingVerdictKind
from ddpbench.record.verdict import ScalingVerdict, Verdict

SCHEMA_1, SCHEMA_2 = (Path(__file__).parent / f"schema-{schema}.json" for schema in (1, 2))


def test_saved_job_is_loaded_unchanged(tmp_path: Path) -> None:
    job = job_of(example_record())
    save(job, tmp_path / "run.json")
    assert load(tmp_path / "run.json") == job
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"], "no temporary file is left"


def test_record_of_schema_2_loads() -> None:
    """Written on two CPU ranks; the file never changes."""
    (record,) = load(SCHEMA_2).records
    assert (record.status, record.world_size, len(record.rounds)) == ("ok", 2, 2)
    assert record.throughput is not None
    assert record.requested is not None
    assert (record.requested.compile, record.requested.broadcast_buffers) == (None, None), "flags at their defaults were not set"
    assert (record.config.compile, record.config.broadcast_buffers) == ("off", True)


def test_record_of_schema_1_is_rejected_with_the_version_of_its_writer() -> None:
    with pytest.raises(UsageError) as refused:
        load(SCHEMA_1)
    assert "was written by ddpbench 0.1.0 with schema 1; this release reads 2 and later" in refused.value.message
    assert refused.value.hint == "measure again, or read it with ddpbench 0.1.0"


def test_older_schemas_are_upgraded_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_kind(job: dict[str, Any]) -> None:
        job["kind"] = job.pop("command_name")

    path, job = tmp_path / "run.json", job_of(example_record())
    save(job, path)
    older = json.loads(path.read_bytes())
    older["command_name"] = older.pop("kind")
    older["schema"] = SCHEMA
    path.write_text(json.dumps(older))
    monkeypatch.setattr(io, "UPGRADES", {SCHEMA: without_kind})
    monkeypatch.setattr(io, "SCHEMA", SCHEMA + 1)
    assert load(path) == msgspec.structs.replace(job, schema=SCHEMA + 1)


@pytest.mark.parametrize(("files", "jpegs", "folders"), [("jpegs", True, True), ("images", False, True), ("", False, False)])
def test_file_kind_determines_the_dataset_type_whatever_the_loader_name(files: FileKind, jpegs: bool, folders: bool) -> None:
    data = DatasetInfo(loader="my.ImageNet:train", file_kind=files)
    assert (data.is_jpeg, data.is_image_folder) == (jpegs, folders)


def test_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    job = job_of(example_record())
    save(job, path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save(job, path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": 2, "started": "2026", "comm', "truncated or invalid JSON, near line 1"),
        ("not json", "truncated or invalid JSON"),
        ("", "truncated or invalid JSON"),
        (json.dumps({"schema": SCHEMA + 1}), f"has schema {SCHEMA + 1}; this release reads up to {SCHEMA}"),
        (
            json.dumps({"schema": 2, "started": "", "command": [], "records": [{"config": {"workload": "x", "batch_size": 0}}]}),
            "batch_size",
        ),
        ("[1, 2]", "is not a ddpbench record"),
    ],
    ids=["truncated", "no JSON", "empty", "newer", "out of range", "other JSON"],
)
def test_invalid_file_is_reported_with_its_name_and_the_problem(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        load(path)
    assert "bad.json" in refused.value.message
    assert message in refused.value.message


def test_only_known_verdicts_are_decoded() -> None:
    wait = {"code": "data-wait", "wait_fraction": 0.78, "loader_samples_per_s": 1130.0, "device_samples_per_s": 6010.0}
    loss = {"code": "input-loss", "loss_fraction": 0.21, "lost_ms": 12.3}
    kinds, losses = {*get_args(Bottleneck)}, {*get_args(ScalingVerdictKind)}
    assert {msgspec.convert({"kind": kind, "evidence": wait}, Verdict).kind for kind in kinds} == kinds
    assert {msgspec.convert({"kind": kind, "evidence": loss}, ScalingVerdict).kind for kind in losses} == losses
    with pytest.raises(msgspec.ValidationError, match="data-bond"):
        msgspec.convert({"kind": "data-bond", "evidence": wait}, Verdict)
    with pytest.raises(msgspec.ValidationError, match="input-loss"):
        msgspec.convert({"kind": "data-bound", "evidence": loss}, Verdict)


def test_file_names_are_reserved_exclusively(tmp_path: Path) -> None:
    assert [reserve_path(tmp_path / "runs", "a").name for _ in range(3)] == ["a.json", "a-2.json", "a-3.json"]


def test_output_folder_that_is_a_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write results"):
        reserve_path(tmp_path / "file", "a")


def test_config_is_converted_to_its_arguments() -> None:
    config = Config(workload="resnet50", precision="amp-fp16", batch_size=64, channels_last=False, lr=0.1, strict=True)
    words = config.to_argv()
    assert words[0] == "resnet50"
    assert words[1:] == ["--precision", "amp-fp16", "--batch-size", "64", "--lr", "0.1", "--no-channels-last", "--strict"]
    assert to_argv(OutputOptions(), flag_fields(OutputOptions)) == []


def test_every_field_except_the_workload_is_a_flag() -> None:
    assert [field.name for field in flag_fields(Config)] == [name for name in Config.__struct_fields__ if name != "workload"]
    assert [field.name for field in flag_fields(OutputOptions)] == list(OutputOptions.__struct_fields__)


def test_unknown_name_suggests_a_close_one() -> None:
    with pytest.raises(UsageError) as refused:
        lookup("workload", "resnet5O", {"resnet50": 1, "resnet18": 2})
    assert "did you mean 'resnet50'" in refused.value.hint


def test_slug_is_a_file_name() -> None:
    assert slug("module:Name amp-fp16  x") == "module-name-amp-fp16-x"


def test_encoded_record_contains_no_nan() -> None:
    assert b"NaN" not in msgspec.json.encode(job_of(example_record()))


def test_pipe_and_device_are_refused_unread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UsageError, match="is not a ddpbench record: it is a pipe or a device"):
            load(path)


def test_file_larger_than_any_record_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(200_000_000)
    with pytest.raises(UsageError, match="it has 200 MB, more than the 100 MB of any record"):
        load(tmp_path / "large.json")


def test_folder_that_was_removed_during_a_run_is_created_again(tmp_path: Path) -> None:
    path = reserve_path(tmp_path / "runs", "run")
    path.unlink()
    path.parent.rmdir()
    save(job_of(example_record()), path)
    assert load(path).records


def test_git_ignores_the_default_folder_of_records(tmp_path: Path) -> None:
    path = reserve_path(tmp_path / "results" / "runs" / "h200", "run")
    assert (tmp_path / "results" / "runs" / ".gitignore").read_text().splitlines()[-1] == "*"
    assert list(path.parent.iterdir()) == [path]
    other = reserve_path(tmp_path / "mine", "run")
    assert list(other.parent.iterdir()) == [other]


def test_existing_folder_of_records_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "runs"
    folder.mkdir(parents=True)
    path = reserve_path(folder, "run")
    assert list(folder.iterdir()) == [path]
