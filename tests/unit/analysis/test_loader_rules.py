"""Rules that recommend another loader."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import records
from diagnoses import CIFAR, DIAGNOSES, IMAGENET, TORCH, diagnosis
from msgspec.structs import replace
from records import next_command

from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.controls import baseline_of, controls_of
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.pipeline.model import pipeline_model
from ddpbench.analysis.remedies.loader_rules import LoaderContext, decode_on_device, other_loader, pinned_memory
from ddpbench.analysis.remedies.recommend import recommend
from ddpbench.analysis.summary import summarize
from ddpbench.analysis.whatif.query import answer_whatif
from ddpbench.record.diagnosis import DeviceDecoding
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import LOADERS
from ddpbench.record.prediction import Scenario
from ddpbench.record.record import DatasetInfo, Job
from ddpbench.record.remedy import DecodeOnDevice, Remedy

PICTURES = replace(IMAGENET, dataset="", file_kind="images")
GPUS, CPUS = records.environment(4), records.environment(4, device="Some CPU")


def context_of(job: Job) -> LoaderContext:
    baseline = baseline_of(job)
    assert baseline is not None
    inputs = AnalysisInput(baseline, summarize(baseline), controls_of(job))
    return LoaderContext(CommandBuilder.of(baseline, job), inputs, pipeline_model(inputs))


def other_loaders(job: Job) -> dict[str, Remedy]:
    """The remedy of each registered loader that its rule recommends."""
    context = context_of(job)
    return {name: remedy for name in LOADERS if (remedy := other_loader(name)(context))}


def run_with(loader: str, files: DatasetInfo = IMAGENET, place: Any = GPUS) -> Job:
    return diagnosis(430.0, config=replace(TORCH, loader=loader, workers=2), files=replace(files, loader=loader), place=place)


@pytest.mark.parametrize(
    ("present", "files", "place", "recommended"),
    [
        ("torch", IMAGENET, GPUS, ["torch-uint8", "dali-cpu", "dali-gpu"]),
        ("torch-uint8", IMAGENET, GPUS, ["dali-cpu", "dali-gpu"]),
        ("dali-cpu", IMAGENET, GPUS, ["torch-uint8", "dali-gpu"]),
        ("dali-gpu", IMAGENET, GPUS, ["dali-cpu"]),
        ("torch", IMAGENET, CPUS, ["torch-uint8", "dali-cpu"]),
        ("torch", PICTURES, GPUS, []),
        ("torch", CIFAR, GPUS, ["tensor"]),
        ("torch-uint8", CIFAR, CPUS, ["tensor"]),
        ("my_data:train", IMAGENET, GPUS, []),
    ],
)
def test_other_loader_is_recommended_for_data_and_devices_that_it_supports(
    present: str, files: DatasetInfo, place: Any, recommended: list[str]
) -> None:
    remedies = other_loaders(run_with(present, files, place))
    assert [*remedies] == recommended
    for name, remedy in remedies.items():
        assert remedy.scenario is not None
        assert (remedy.code, remedy.scenario.loader) == ("other-loader", name)
        assert remedy.command.endswith(f" --loader {present},{name}")


@pytest.mark.parametrize(
    ("cuda", "package"), [("13.0", "nvidia-dali-cuda130"), ("12.8", "nvidia-dali-cuda120"), (None, "nvidia-dali-cuda130")]
)
def test_other_loader_installs_its_package_if_the_run_did_not_have_it(cuda: str | None, package: str) -> None:
    software = replace(GPUS.software, cuda=cuda, dali=None)
    remedies = other_loaders(run_with("torch", place=replace(GPUS, software=software)))
    assert shlex.split(remedies["dali-gpu"].command)[:4] == ["pip", "install", package, "&&"]
    assert "pip" not in remedies["torch-uint8"].command
    installed = other_loaders(run_with("torch", place=replace(GPUS, software=replace(software, dali="2.0.0"))))
    assert not any("pip" in remedy.command for remedy in installed.values())


def test_device_resident_loader_is_the_next_step_for_small_images() -> None:
    job = DIAGNOSES["cifar-per-sample"][0]()
    context = context_of(job)
    verdict = context.record.verdict
    assert verdict is not None
    assert next_command(verdict).endswith(" --loader torch,tensor")
    found = [remedy.scenario.loader for remedy in recommend(context.builder, context.inputs, verdict) if remedy.scenario]
    assert found.count("tensor") == 1, "the rule is in the tables for any cause and for this one"


@pytest.mark.parametrize(("decoded_per_s", "expected"), [(1000, (852.2, 1000.0)), (10**9, (1818.2, 1818.2)), (100, (98.3, 100.0))])
def test_decoding_on_the_gpu_is_priced(decoded_per_s: int, expected: tuple[float, float]) -> None:
    """Before each step, or beside it: this GPU trains 5,766 images/s. Its two workers could still collate 1,818."""
    job = run_with("torch")
    assert job.diagnosis is not None
    assert decode_on_device(context_of(job)) is None, "not measured"
    job.diagnosis.device_decoding = DeviceDecoding(images=decoded_per_s, elapsed_s=1.0)
    remedy = decode_on_device(context_of(job))
    assert isinstance(remedy, DecodeOnDevice)
    assert (remedy.low, remedy.high) == pytest.approx(expected, abs=0.1)
    assert remedy.gain == pytest.approx(remedy.low / 430.0, abs=0.01)


def test_no_batch_is_pinned_without_workers() -> None:
    """The trainer process would pin each itself, and wait for it: no gain is predicted."""
    job = diagnosis(430.0, config=replace(TORCH, workers=0, pin_memory=False))
    for record in job.records:
        record.script = records.watched_script().script
    remedy = pinned_memory(context_of(job))
    assert remedy is not None
    assert (remedy.code, remedy.scenario, remedy.gain) == ("pinned-memory-and-worker", None, None)
    with pytest.raises(UsageError, match="the trainer process would pin each batch itself"):
        answer_whatif(job, Scenario(pin_memory=True))
