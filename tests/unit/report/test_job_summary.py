"""The summary of a job: its documents, its size, and what it says of kept records and of those that ended badly."""

from __future__ import annotations

import json
import runpy
from functools import cache
from pathlib import Path

import jsonschema
import msgspec
import pytest
import records
from commands import refused
from diagnoses import DIAGNOSES
from page_jobs import PAGE_JOBS, job_of_arms

from ddpbench.bench.journal import load_job
from ddpbench.cli.start import main
from ddpbench.record.errors import UsageError
from ddpbench.record.job_summary import JobSummary
from ddpbench.record.record import Fault, Job
from ddpbench.report.summarize_job import summarize_job, summary_json

ROOT = Path(__file__).parents[3]
SCRIPT = runpy.run_path(str(ROOT / "docs" / "summary.py"))
SCHEMA = json.loads((ROOT / "docs" / "summary.schema.json").read_text())
MAX_BYTES, MAX_ARM_BYTES = 6000, 300


@cache
def kept() -> dict[str, Job]:
    """Every kept record by its path below results/."""
    found = {}
    for path in sorted((ROOT / "results").rglob("*.json")):
        try:
            found[str(path.relative_to(ROOT))] = load_job(path)
        except UsageError:  # no record
            continue
    return found


def test_documents_are_those_of_the_types() -> None:
    assert (ROOT / "docs" / "summary.md").read_text() == SCRIPT["page"](), f"run '{SCRIPT['COMMAND']}'"
    assert json.dumps(SCHEMA, indent=2) + "\n" == SCRIPT["schema"](), f"run '{SCRIPT['COMMAND']}'"


def test_every_field_is_documented() -> None:
    fields = [(kind, name, hint) for kind in SCRIPT["ORDER"] for name, hint in SCRIPT["hints"](kind).items()]
    undocumented = [f"{kind.__name__}.{name}" for kind, name, hint in fields if not SCRIPT["description"](hint)]
    assert undocumented == []


@pytest.mark.slow
def test_summary_of_every_kept_record_is_small_and_valid() -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    assert len(kept()) > 80
    for name, job in kept().items():
        text = summary_json([summarize_job(job, Path(name), price=2.5)])
        problems = [f"{name}: {problem.message}" for problem in validator.iter_errors(json.loads(text))]
        assert problems == []
        assert len(text.encode()) <= MAX_BYTES + MAX_ARM_BYTES * (len(job.records) - 1), name
        assert msgspec.json.decode(text, type=JobSummary).record == name


def test_step_shares_add_up_and_waits_for_data_are_the_headline() -> None:
    summary = summarize_job(kept()["results/watch/train-images-2-h100.json"])
    assert sum(summary.step_shares.values()) == pytest.approx(1, abs=1e-4)
    assert summary.verdict is not None
    waits = summary.step_shares["data"] + summary.step_shares["peer_data"]
    assert waits == pytest.approx(summary.verdict.figures["wait_fraction"], abs=1e-3)


def test_diagnosis_has_its_advice_with_what_proves_it() -> None:
    summary = summarize_job(kept()["results/watch/public/imagenet-h100.json"], price=2.5)
    assert summary.advice is not None
    assert summary.advice.change == {"code": "change-data-loader", "num_workers": 14, "persistent_workers": True}
    assert summary.advice.saved_device_hours_per_day is not None
    assert summary.advice.saved_money_per_day == pytest.approx(2.5 * summary.advice.saved_device_hours_per_day, rel=1e-4)
    assert summary.next == {}, "it was tried"
    first, *others = summary.remedies
    assert (first.code, first.status, first.change) == ("more-workers", "as-predicted", summary.advice.change)
    assert first.predicted is not None
    assert first.measured is not None
    assert first.predicted.low <= first.measured.center <= first.predicted.high
    assert {each.status for each in others} == {"cannot-be-tried"}


def test_workload_has_its_changes_as_flags() -> None:
    summary = summarize_job(kept()["results/h200/diagnose-resnet50-2gpu.json"])
    assert summary.advice is not None
    assert (summary.advice.code, summary.advice.change) == ("change", {"--loader": "dali-gpu"})
    assert summary.advice.command.endswith("--loader dali-gpu")
    assert [(each.status, each.change) for each in summary.remedies[:2]] == [
        ("not-as-predicted", {"--loader": "dali-gpu"}),
        ("as-predicted", {"--loader": "torch-uint8"}),
    ]


def test_settings_that_nothing_gained_are_kept() -> None:
    summary = summarize_job(kept()["results/h200/diagnose-wrn28x10-16-cores.json"])
    assert summary.advice is not None
    assert (summary.advice.code, summary.advice.change) == ("keep-nothing-faster", {})


def test_arms_have_their_speedups_and_the_fastest_its_name() -> None:
    summary = summarize_job(kept()["results/h200/resnet50-1gpu-loaders.json"])
    assert (summary.figure, summary.verdict, summary.fastest) == (None, None, "dali-cpu")
    kinds = {arm.name: arm.kind for arm in summary.arms}
    assert kinds == {"torch": "data-bound", "dali-cpu": "data-bound", "synthetic": "compute-bound"}
    assert summary.arms[1].speedup is not None
    assert summary.arms[1].speedup.low > 1


def test_scaling_job_has_efficiencies() -> None:
    summary = summarize_job(kept()["results/h200/scale-resnet50-4gpu.json"])
    assert summary.verdict is not None
    assert (summary.verdict.kind, summary.verdict.certainty) == ("ddp-bound", "probable")
    efficiencies = [arm.efficiency.center for arm in summary.arms if arm.efficiency]
    assert efficiencies[0] == 1
    assert 0.95 < min(efficiencies) < 0.96


@pytest.mark.parametrize("status", ["running", "failed", "interrupted", "hung"])
def test_job_that_did_not_end_well_says_so(status: str) -> None:
    record = records.record(longer=[1.0], status=status, fault=Fault(message="killed") if status != "running" else None)
    summary = summarize_job(job_of_arms([record]))
    assert (summary.status, summary.message) == (status, "" if status == "running" else "killed")


def test_invalid_run_has_no_figure_and_names_the_check() -> None:
    summary = summarize_job(PAGE_JOBS["invalid"]())
    assert summary.arms or summary.figure is None
    assert summary.distrust[0].severity == "error"


@pytest.mark.parametrize("name", DIAGNOSES)
def test_every_diagnosis_has_a_summary(name: str) -> None:
    summary = summarize_job(DIAGNOSES[name][0]())
    assert summary.verdict is not None
    assert jsonschema.Draft202012Validator(SCHEMA).is_valid(msgspec.to_builtins(summary))


def test_several_records_are_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names = ["results/watch/train-script.json", "results/h200/resnet50-4gpu-run.json"]
    assert main(["report", "--format", "summary", *names]) == 0
    assert [each["record"] for each in json.loads(capsys.readouterr().out)["summaries"]] == names


def test_redacted_summary_has_no_command_and_no_path(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["report", "--redact", "--format", "summary", "results/watch/train-script.json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert not {"command", "record"} & summary.keys()
    assert summary["machine"]["hosts"] == ["node-0"]


@pytest.mark.parametrize("price", ["-1", "much", "nan"])
def test_impossible_price_is_refused(price: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(f"report --format summary --price {price}", capsys).startswith(f"ddpbench: error: --price cannot be '{price}'")
