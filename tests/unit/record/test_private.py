"""Redacted records: no private value is left, and everything else is."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
import records
from msgspec.structs import replace

from ddpbench.record.bottleneck import PhaseShares
from ddpbench.record.errors import UsageError
from ddpbench.record.io import encode_json, load, save
from ddpbench.record.loader_stats import LoaderStats
from ddpbench.record.private import Private, placeholders, redact, redact_names, restore_names
from ddpbench.record.record import DatasetInfo, Fault, Job
from ddpbench.record.request import OutputOptions
from ddpbench.record.verdict import RunCommand, Verdict

RESULTS = Path(__file__).parents[3] / "results"

PUBLIC = """
Job.started Job.command Job.kind Job.swept SweepShard.sweep_id Record.sample_unit Role.side
Software.ddpbench Software.python Software.torch Software.torchvision Software.accelerate Software.dali Software.cuda Software.cudnn
Software.nccl Software.driver RankPlacement.device_name Transport.via Transport.link_type
Environment.launcher Environment.backend Environment.os Environment.cpu Environment.variables Environment.infiniband_devices
ResolvedConfig.precision ResolvedConfig.engine Config.precision Config.engine Scenario.precision
Fault.phase MissingMeasurement.precision MissingMeasurement.compile_mode
DatasetInfo.dataset DatasetInfo.skipped_extensions Storage.file_system
ObservedPrecision.parameter_dtypes ObservedPrecision.gradient_dtypes ObservedPrecision.batch_norm_dtypes
ObservedPrecision.first_layer_dtype ObservedPrecision.last_layer_dtype ObservedPrecision.optimizer ObservedPrecision.master_weight_dtype
PrecisionMismatch.layer_dtypes PrecisionMismatch.batch_norm_dtypes PrecisionMismatch.parameter_dtypes PrecisionMismatch.gradient_dtypes
PeakThroughput.matmul_tflops Health.throttle_reasons Throttled.reasons NoInfiniband.disabled_by
Trace.phases_ms Trace.totals_ms LoaderStats.cpu_s LoaderStats.wall_s LoaderStats.parts_s Diagnosis.stage_cpu_s
WatchedScript.dataset WatchedScript.sampler WatchedScript.model WatchedScript.observed_settings WatchedScript.optimizers
ChangeTraining.optimizers ChangeTraining.device_type
SharedHandle.name LayerWork.name LayerWork.kind
"""
"""Fields whose text, or the keys of whose dict, come from ddpbench, a library or the hardware. ``redact`` removes ``Job.command``."""


def text_fields(struct: type[msgspec.Struct], seen: set[type]) -> Iterator[str]:
    """Every field below ``struct`` that may hold a text without a kind of Private."""
    if struct in seen:
        return
    seen.add(struct)
    for name, annotation in get_type_hints(struct, include_extras=True).items():
        for leaf in leaves(annotation):
            if leaf is str:
                yield f"{struct.__name__}.{name}"
            elif isinstance(leaf, type) and issubclass(leaf, msgspec.Struct):
                yield from text_fields(leaf, seen)


def leaves(annotation: Any) -> Iterator[Any]:
    metadata = getattr(annotation, "__metadata__", ())
    if any(isinstance(extra, Private) for extra in metadata):
        return
    parts = [annotation.__origin__] if metadata else get_args(annotation)
    if not parts:
        yield annotation
    for part in parts:
        yield from leaves(part)


def test_every_text_of_a_record_is_private_or_known_to_be_public() -> None:
    assert set(text_fields(Job, set())) == set(PUBLIC.split())


def private_names(job: Job) -> list[str]:
    """The private names in ``job`` that are no ordinary words."""
    names = [text for kind, text in placeholders(job) if kind is not Private.FOLDER or "/" in text]
    return [*names, *(name.partition(":")[0] for name in names if ":" in name)]


def kept_records() -> list[Path]:
    found = []
    for path in sorted(RESULTS.rglob("*.json")):
        try:
            load(path)
        except UsageError:  # results in another format
            continue
        found.append(path)
    return found


@pytest.mark.parametrize("path", kept_records(), ids=lambda path: path.stem)
def test_no_private_name_of_a_kept_record_survives(path: Path) -> None:
    job = load(path)
    redacted = redact(job)
    text = encode_json(redacted).decode()
    assert len(private_names(job)) >= 1
    for name in private_names(job):
        assert not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text), name
    assert not re.findall(
        r'"(?:~|\.{0,2}/)[^"]*"|\d+\.\d+\.\d+\.\d+(?!\d|-)|GPU-[0-9a-f]{8}',
        text.replace(f'"{redacted.records[0].environment.software.driver}"', ""),
    )
    assert redacted.redacted
    assert set(redacted.command) <= {"--quick"}
    assert redact(redacted) == redacted
    assert load(path) == job, "the job in memory and its file are unchanged"
    assert restore_names(redacted, placeholders(job)).records[0].environment == job.records[0].environment


def two_hosts() -> Job:
    environment = records.environment(4, nodes=2)
    hosts = ["left.example.org", "left.example.org", "right#2", "right#2"]
    placements = [
        replace(each, host=host, device_id=f"GPU-{rank:08}-aaaa")
        for rank, (each, host) in enumerate(zip(environment.placements, hosts, strict=True))
    ]
    config = replace(records.RESNET50, data_dir="/data/my images", loader="acme.loading:train", workload="acme.models.big:net")
    record = records.record([records.BUSY] * 4, environment=replace(environment, placements=placements), config=config)
    return records.job(record)


def redacted_fault(message: str) -> str:
    job = two_hosts()
    job.records[0].fault = Fault(message=message)
    redacted = redact(job)
    assert redact(redacted) == redacted
    fault = redacted.records[0].fault
    assert fault is not None
    return fault.message


@pytest.mark.parametrize(
    ("message", "redacted"),
    [
        ("rank 3 (right#2) hung at step 5 (data): no progress for 3 s", "rank 3 (node-1) hung at step 5 (data): no progress for 3 s"),
        ("left.example.org is unreachable, right too", "node-0 is unreachable, node-1 too"),
        ("left is down; left.other.org.", "node-0 is down; node-0."),
        ("raised in /home/me/my models/net.py:12", "raised in PATH:12"),
        ("check dmesg; finished rounds are in my runs/2026.json", "check dmesg; finished rounds are in PATH"),
        ("cannot read '/data/my images/n01/a b.jpg': truncated", "cannot read 'PATH': truncated"),
        ("12 of /data/my images/n01/x: cut", "12 of PATH: cut"),
        ("folder '/data/my images' is empty", "folder 'DIR' is empty"),
        ("in forward (net.py:12) <- step (loop.py:3)", "in forward (FILE:12) <- step (FILE:3)"),
        ("No module named 'acme_internal'", "No module named 'MODULE'"),
        ("cannot load 'acme.loading:train': acme.models.big", "cannot load 'MODULE:NAME-2': MODULE"),
        ("cannot load 'other.thing:fn'", "cannot load 'MODULE:NAME'"),
        ("connect to [left.example.org]:29500, (10.0.0.7, 29500), 10.1.2.3:80", "connect to node-0:29500, (ADDRESS, 29500), ADDRESS"),
        ("GPU-00000002-aaaa is lost, GPU-deadbeef-01 too", "GPU-2 is lost, GPU too"),
        ("mail me@example.org, see https://example.org/x", "mail ADDRESS, see PATH"),
        ("1,234 images/s at step 3/4: 'NoneType' object has no len()", "1,234 images/s at step 3/4: 'NoneType' object has no len()"),
        ("peak 138.9 of 139.8 GiB, torch 2.11.0+cu130", "peak 138.9 of 139.8 GiB, torch 2.11.0+cu130"),
    ],
)
def test_private_parts_of_a_fault_are_replaced(message: str, redacted: str) -> None:
    assert redacted_fault(message) == redacted


def test_this_machine_and_user_are_left_out_of_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "alice")
    assert getpass.getuser() == "alice"
    assert redacted_fault(f"alice on {socket.gethostname()}") == "USER on HOST"


def test_hosts_that_are_named_like_placeholders_are_replaced_once() -> None:
    environment = records.environment(2, nodes=2)
    hosts = ["node-1", "node-02"]
    placements = [replace(each, host=host) for each, host in zip(environment.placements, hosts, strict=True)]
    job = records.job(records.record([records.BUSY] * 2, environment=replace(environment, placements=placements)))
    job.records[0].fault = Fault(message="node-02.example.org hung, node-1 and node-3 did not")
    fault = redact(job).records[0].fault
    assert fault == Fault(message="node-1 hung, node-0 and node-3 did not")


def test_hosts_gpus_and_folders_remain_distinct() -> None:
    job = two_hosts()
    other = replace(
        job.records[0], config=replace(job.records[0].config, data_dir="other"), requested=replace(records.RESNET50, data_dir="other/")
    )
    job.records.append(other)
    first, second = redact(job).records
    assert [place.host for place in first.environment.placements] == ["node-0", "node-0", "node-1", "node-1"]
    assert [place.device_id for place in first.environment.placements] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert (first.config.data_dir, second.config.data_dir) == ("DIR", "DIR-2")
    assert second.requested is not None
    assert second.requested.data_dir == "DIR-2", "with or without a slash, it is one folder"
    assert (first.config.workload, first.config.loader) == ("MODULE:NAME", "MODULE:NAME-2")
    assert job.records[0].environment.placements[0].host == "left.example.org"


@pytest.mark.parametrize(
    ("command", "redacted"),
    [
        ("ddpbench resnet50 --data-dir '/data/my images' -b 1,2", "ddpbench resnet50 --data-dir DIR -b 1,2"),
        (
            "cp -r '/data/my images' /dev/shm/ddpbench-data && ddpbench resnet50 --data-dir /dev/shm/ddpbench-data",
            "cp -r DIR /dev/shm/ddpbench-data && ddpbench resnet50 --data-dir /dev/shm/ddpbench-data",
        ),
        ("ddpbench resnet50 --data-dir '/data/my images,/x'", "ddpbench resnet50 --data-dir DIR,DIR"),
        ("ddpbench resnet50 --data-dir it's", "ddpbench resnet50 --data-dir DIR"),
        ("ssh right nvidia-smi -q -i GPU-00000002-aaaa", "ssh node-1 nvidia-smi -q -i GPU-2"),
        (
            "torchrun --nnodes=2 --rdzv_endpoint=left.example.org:29500 -m ddpbench acme.models.big:net --loader acme.loading:train,torch",
            "torchrun --nnodes=2 --rdzv_endpoint=node-0:29500 -m ddpbench MODULE:NAME --loader MODULE:NAME-2,torch",
        ),
        ("sbatch --nodes=2 launch/slurm_multi_node.sbatch resnet50", "sbatch --nodes=2 launch/slurm_multi_node.sbatch resnet50"),
        ("pip install nvidia-dali-cuda130 && ddpbench resnet50", "pip install nvidia-dali-cuda130 && ddpbench resnet50"),
    ],
)
def test_commands_that_a_page_offers_have_placeholders(command: str, redacted: str) -> None:
    job = two_hosts()
    evidence = PhaseShares(forward_ms=1.0, backward_ms=2.0, optimizer_ms=0.5, step_ms=3.5)
    job.records[0].verdict = Verdict(kind="compute-bound", evidence=evidence, next=RunCommand(command))
    changed = redact(job).records[0].verdict
    assert isinstance(changed, Verdict)
    assert changed.next == RunCommand(redacted)


def test_variables_and_skipped_files_are_redacted() -> None:
    job = two_hosts()
    (record,) = job.records
    variables = {
        "CUDA_VISIBLE_DEVICES": "GPU-00000000-aaaa",
        "NCCL_TOPO_FILE": "/etc/t.xml",
        "NCCL_IB_HCA": "mlx5_0:1",
        "OMP_NUM_THREADS": "2",
    }
    record.environment = replace(record.environment, variables=variables)
    record.data = DatasetInfo(loader="acme.loading:train", replayed_loader="torch")
    trace = record.rounds[0].traces[0]
    stats = LoaderStats(samples=1, skipped_files=["cannot read a.jpg", "cannot read b", "cannot read a.jpg"])
    record.rounds[0].traces[0] = replace(trace, loader_stats=stats)
    (redacted,) = redact(job).records
    assert redacted.environment.variables == {
        "CUDA_VISIBLE_DEVICES": "GPU-0",
        "NCCL_TOPO_FILE": "PATH",
        "NCCL_IB_HCA": "mlx5_0:1",
        "OMP_NUM_THREADS": "2",
    }
    assert redacted.data == DatasetInfo(loader="MODULE:NAME-2", replayed_loader="torch")
    assert redacted.rounds[0].traces[0].loader_stats == replace(stats, skipped_files=["FILE", "FILE-2", "FILE"])


def test_redacted_job_is_saved_redacted_and_stays_complete_in_memory(tmp_path: Path) -> None:
    job, path = replace(two_hosts(), redacted=True), tmp_path / "job.json"
    save(job, path)
    assert b"example.org" not in path.read_bytes()
    assert load(path) == redact(job)
    assert job.records[0].environment.placements[0].host == "left.example.org"


def test_config_in_a_file_name_has_no_private_name() -> None:
    assert redact_names(two_hosts().records[0].config).workload == "MODULE:NAME"
    assert redact_names(records.RESNET50) == records.RESNET50


def test_redaction_is_off_by_default() -> None:
    assert not OutputOptions().redact
    assert not two_hosts().redacted
