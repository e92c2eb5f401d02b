"""What is kept of the diagnoses of trainings, how it is scored and proved, and its part of the page."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import records
from msgspec.structs import replace
from script_diagnoses import benchmark, rates, script_diagnosis
from scripts.tries import Gain
from situations.trial import Said, Score
from torch.utils.data import DataLoader
from trainings import proofs, time_steps
from trainings.diagnosed_page import counts, diagnosed_parts, holds
from trainings.diagnoses import diagnosed, sources
from trainings.kept import AS_IS, Diagnosed, Proof, Timing, Truth
from trainings.listing import TRAININGS, Change, Training, workers
from trainings.page import page
from trainings.pinned import Ended, run_pinned

from ddpbench.analysis.judge import judge_remedies
from ddpbench.record.prediction import Prediction, Scenario
from ddpbench.record.record import Job
from ddpbench.record.script import SharedHandle
from ddpbench.record.verdict import ChangeDataLoader, RunCommand

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "watch"
SCRATCH_NOTE = "ddpbench: note: what train.py writes goes to /tmp/ddpbench-scratch-a"
ENDED = Ended(["epoch 1", SCRATCH_NOTE, "ddpbench: note: its process ends now", "bye"], 0, 80.5)


def training(**fields: Any) -> Training:
    common = {"name": "unet", "subjects": (), "words": "train.py", "kind": "data-bound", "causes": ("too-few-workers",), "truth": ""}
    return Training(**{**common, **fields})


def tried(measured: Sequence[float] | str) -> Job:
    """Two workers are too few; eight were predicted to gain, and tried."""
    prediction = Prediction(scenario=Scenario(workers=8), gain=1.7, low=1.6, high=1.8)
    loader = benchmark(1250.0)
    return script_diagnosis(
        *(rates(1230.0), rates(2300.0)), wait=0.45, loader=loader, trials={Scenario(workers=8): measured}, predictions=[prediction]
    )


def with_verdict(job: Job, **changes: Any) -> Job:
    job.records[0].verdict = replace(job.records[0].verdict, **changes)  # type: ignore[type-var]
    return job


def found(job: Job | None, expected: Training | None = None, **fields: Any) -> Diagnosed:
    return diagnosed(expected or training(), job, ENDED, time_limit_s=75, **fields)


@pytest.mark.parametrize(
    ("expected", "verdict", "score"),
    [
        ({}, {"repeatability": 1.0}, "right"),
        ({}, {"repeatability": 0.8}, "probably right"),
        ({}, {"cause": None, "repeatability": 1.0}, "inconclusive"),
        ({}, {"kind": "inconclusive", "cause": None}, "inconclusive"),
        ({"causes": ("storage",)}, {"repeatability": 1.0}, "WRONG"),
        ({"kind": "compute-bound", "causes": ()}, {"repeatability": 0.8}, "probably wrong"),
        ({"kind": "compute-bound", "causes": (), "also": ("data-bound",)}, {"repeatability": 1.0}, "right"),
    ],
)
def test_diagnosis_is_scored_against_all_right_answers(expected: dict[str, Any], verdict: dict[str, Any], score: Score) -> None:
    common = {"kind": "data-bound", "cause": "too-few-workers", "cause_repeatability": None}
    assert found(with_verdict(tried(rates(2100.0)), **{**common, **verdict}), training(**expected)).said.score == score


def test_how_sure_a_diagnosis_is_and_with_which_share() -> None:
    likely = found(with_verdict(tried(rates(2100.0)), cause="too-few-workers", repeatability=1.0, cause_repeatability=0.75))
    assert (likely.sure, likely.share) == ("probably", 0.75)
    plain = found(with_verdict(tried(rates(2100.0)), cause="too-few-workers", repeatability=1.0, cause_repeatability=0.99))
    assert (plain.sure, plain.share) == ("plainly", 0.99)
    unknown = found(with_verdict(tried(rates(2100.0)), kind="inconclusive", cause=None, repeatability=None, cause_repeatability=None))
    assert (unknown.sure, unknown.share) == ("inconclusive", None)


def test_diagnosis_without_a_record_keeps_what_went_wrong() -> None:
    none = diagnosed(training(), None, Ended(["Traceback", "OSError: no space"], 1, 9.0), time_limit_s=75)
    assert (none.said.score, none.said.problem, none.sure, none.step) == ("no verdict", "Traceback OSError: no space", "", None)
    assert (none.exit_code, none.elapsed_s, none.problems) == (1, 9.0, ["Traceback", "OSError: no space"])


def test_change_that_was_faster_is_advised_with_both_gains() -> None:
    kept = found(tried(rates(2100.0)))
    assert kept.step == ChangeDataLoader(num_workers=8, persistent_workers=True)
    assert kept.use == "DataLoader(..., num_workers=8, persistent_workers=True)"
    assert kept.next == ""
    assert kept.advised is not None
    assert kept.advised.predicted == (1.7, 1.6, 1.8)
    assert kept.advised.measured is not None
    assert kept.advised.measured[0] == pytest.approx(2100 / 1230, rel=0.02)
    assert kept.gains == [kept.advised]
    assert kept.problems == ["ddpbench: note: its process ends now"]
    assert kept.sources == sources()


def test_change_that_was_not_faster_is_not_advised() -> None:
    kept = found(tried(rates(1230.0)))
    assert kept.use.startswith("the current settings: ")
    assert kept.step != ChangeDataLoader(num_workers=8, persistent_workers=True)
    assert [gain.change for gain in kept.gains] == ["--workers 8"]


def test_next_step_of_a_verdict_is_kept_with_its_prediction() -> None:
    job = tried("out of memory")
    job.records = job.records[:-2]  # nothing was tried
    job = with_verdict(job, next=ChangeDataLoader(num_workers=8, persistent_workers=True))
    assert job.diagnosis is not None
    judge_remedies(job, job.diagnosis)
    kept = found(job)
    assert (kept.use, kept.next) == ("", "DataLoader(..., num_workers=8, persistent_workers=True)")
    assert kept.step == ChangeDataLoader(num_workers=8, persistent_workers=True)
    assert kept.advised is not None
    assert (kept.advised.predicted, kept.advised.measured) == ((1.7, 1.6, 1.8), None)


def test_watched_training_is_kept_without_a_diagnosis() -> None:
    record = records.watched_script()
    kept = found(records.job(record))
    assert kept.gains == []
    assert kept.use == ""
    assert kept.ms_per_step


def test_step_is_that_of_the_optimizer() -> None:
    job, accumulating = tried(rates(2100.0)), tried(rates(2100.0))
    script = accumulating.records[0].script
    assert script is not None
    accumulating.records[0].script = replace(script, batches_per_update=4)
    batch_ms, update_ms = found(job).ms_per_step, found(accumulating).ms_per_step
    assert batch_ms == pytest.approx(1000 * 64 / 1230, rel=0.02)
    assert update_ms == pytest.approx(4 * (batch_ms or 0), rel=1e-3)


# proofs


@pytest.mark.parametrize(
    ("words", "changes", "step", "change"),
    [
        (
            "train.py --workers 16 --epochs 3",
            workers("train.py", 2),
            ChangeDataLoader(num_workers=4, persistent_workers=True),
            Change(
                title="--workers 4, persistent_workers=True",
                words="train.py --epochs 3 --workers 4",
                loader=("persistent_workers=True",),
            ),
        ),
        (
            "train.py",
            workers("train.py", 2, flag="--validation-workers"),
            ChangeDataLoader(num_workers=4),
            Change(title="num_workers=4", loader=("num_workers=4",)),
        ),
        ("train.py", (), ChangeDataLoader(pin_memory=True), Change(title="pin_memory=True", loader=("pin_memory=True",))),
        ("train.py", (), ChangeDataLoader(num_workers=2, shared_handles=[SharedHandle(name="Rows.file", kind="file")]), None),
        ("train.py", (), ChangeDataLoader(num_workers=2, divide_samples=True), None),
        ("train.py", (), RunCommand("top"), None),
        ("train.py", (), None, None),
    ],
)
def test_advised_change_as_the_script_takes_it(words: str, changes: tuple[Change, ...], step: Any, change: Change | None) -> None:
    assert proofs.change_of(training(words=words, changes=changes), step) == change


@pytest.mark.parametrize("each", TRAININGS, ids=lambda each: each.name)
def test_changed_workers_leave_the_other_words(each: Training) -> None:
    change = proofs.change_of(each, ChangeDataLoader(num_workers=3))
    assert (change is None) == (not each.has_loader)
    if change and change.words:
        flag, number = change.title.split()
        assert change.words.endswith(f" {change.title}")
        assert change.words.split().count(flag) == 1
        assert {*change.words.split()} - {flag, number} <= {*each.words.split()}


def timing(ms: float) -> Timing:
    return Timing(steps=10, seconds=ms / 100, ms_per_step=ms)


def test_runs_of_a_proof_alternate_and_give_the_gain_of_each_pair() -> None:
    proof, times = Proof(), iter([100.0, 50.0, 120.0, 80.0])
    kinds = []
    for kind in proofs.missing(proof, 2):
        proofs.add(proof, kind, timing(next(times)))
        kinds.append(kind)
    assert kinds == [AS_IS, "changed", AS_IS, "changed"]
    assert proof.gains == [2.0, 1.5]
    assert proof.gain == (1.75, 1.5, 2.0)
    assert list(proofs.missing(proof, 2)) == []


def test_proof_ends_with_a_run_that_failed() -> None:
    proof = Proof(as_is=[timing(10.0)])
    for kind in proofs.missing(proof, 2):
        proofs.add(proof, kind, "ValueError")
    assert proof.failure == "changed: ValueError"
    assert proof.gain is None


def test_loader_without_workers_gets_no_argument_that_needs_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataLoader, "__init__", DataLoader.__init__)
    time_steps.set_arguments(["persistent_workers=True", "prefetch_factor=4"])
    assert DataLoader([1]).persistent_workers is False
    assert DataLoader([1], num_workers=1).persistent_workers is True
    time_steps.set_arguments(["num_workers=0"])
    assert DataLoader([1], num_workers=2, persistent_workers=True).num_workers == 0


def test_program_is_ended_at_its_limit_with_what_it_started(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    cores = sorted(os.sched_getaffinity(0))[:1]
    stubborn = "import signal, time; print('up', flush=True); signal.signal(15, lambda *_: exit(3)); time.sleep(300)"
    ended = run_pinned(training(report="r"), [sys.executable, "-c", stubborn], tmp_path, tmp_path, cores, 1.0)
    assert ended.exit_code is None
    code = "import os; print(len(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'], os.environ['CUDA_VISIBLE_DEVICES'] == '')"
    assert run_pinned(training(report="r"), [sys.executable, "-c", code], tmp_path, tmp_path, cores, 60.0).lines == ["1 1 True"]


# the record


def said(score: Score, problem: str = "") -> Said:
    return Said(command="ddpbench diagnose", score=score, kind="data-bound", cause="storage", repeatability=0.9, problem=problem)


def kept(score: Score, advised: Gain | None = None, step: Any = None, **fields: Any) -> Diagnosed:
    gains = [advised] if advised else []
    return Diagnosed(sources="0.1.0 a", time_limit_s=75, said=said(score), advised=advised, gains=gains, step=step, **fields)


def test_record_keeps_a_diagnosis_and_its_proof() -> None:
    truth = Truth(name="unet", diagnosed=[found(tried(rates(2100.0)))], proofs={"num_workers=8": Proof(as_is=[timing(9.0)])})
    assert msgspec.json.decode(msgspec.json.encode(truth), type=Truth) == truth


def test_merging_adds_what_is_new_and_nothing_twice() -> None:
    here = Truth(name="unet", machine="a", runs={AS_IS: [timing(10.0)]}, failures={"--workers 2": "killed"}, diagnosed=[kept("right")])
    there = Truth(
        name="unet",
        machine="a",
        runs={AS_IS: [timing(10.0), timing(11.0)], "--workers 2": [timing(5.0)]},
        diagnosed=[kept("right"), kept("WRONG")],
        proofs={"num_workers=4": Proof(as_is=[timing(10.0)], changed=[timing(5.0)])},
    )
    for _ in range(2):
        here.add(there)
        assert here.runs == there.runs
        assert here.failures == {}
        assert [each.said.score for each in here.diagnosed] == ["right", "WRONG"]
        assert here.proofs == there.proofs
    here.add(Truth(name="unet", machine="b", runs={AS_IS: [timing(99.0)]}, proofs={"num_workers=4": Proof()}))
    assert here.runs == there.runs, "medians of one machine"
    assert here.proofs == there.proofs


def test_other_folder_gets_the_record_and_a_merge_brings_it_back(tmp_path: Path) -> None:
    out, merged = tmp_path / "out", tmp_path / "merged"
    out.mkdir()
    (out / "trainings.json").write_bytes(msgspec.json.encode({"nanogpt": Truth(name="nanogpt", diagnosed=[kept("right")])}))
    before = (RESULTS / "trainings.json").read_bytes()
    script = [sys.executable, str(RESULTS / "trainings.py")]
    subprocess.run([*script, "merge", str(out / "trainings.json"), "--out", str(merged)], check=True)
    truths = msgspec.json.decode((merged / "trainings.json").read_bytes(), type=dict[str, Truth])
    assert kept("right") in truths["nanogpt"].diagnosed
    assert {*msgspec.json.decode(before)} <= {*truths}
    assert (merged / "trainings.md").read_text() == page(truths)
    assert (RESULTS / "trainings.json").read_bytes() == before


def test_stored_page_is_that_of_the_stored_record() -> None:
    truths = msgspec.json.decode((RESULTS / "trainings.json").read_bytes(), type=dict[str, Truth])
    assert (RESULTS / "trainings.md").read_text() == page(truths)


# the page

NARROW = Gain(change="--workers 8", predicted=(1.7, 1.6, 1.8), measured=(1.65, 1.6, 1.7), is_inside=True)
WIDE = Gain(change="--workers 8", predicted=(1.7, 1.2, 2.1), measured=(1.65, 1.6, 1.7), is_inside=True)


def test_counts_against_the_targets() -> None:
    last: dict[str, Diagnosed] = {
        "unet": kept("right", NARROW),
        "nanogpt": kept("probably right", WIDE),
        "dcgan": kept("WRONG"),
        "trl_sft": kept("no verdict"),
    }
    truths = {name: Truth(name=name, diagnosed=[each]) for name, each in last.items()}
    truths["unet"].diagnosed.insert(0, kept("WRONG"))  # of an earlier version
    line = counts(truths)
    assert "4 of 28 trainings diagnosed: 1 right (25%; target: at least 80%); 1 probably right; 0 inconclusive" in line
    assert "1 plainly wrong (target: 0); 1 without a page or a verdict (target: 0)" in line
    assert "predicted gains: 1 of 2 as measured in the script, 0 of 0 as in plain runs" in line


@pytest.mark.parametrize(
    ("predicted", "measured", "expected"),
    [
        ((1.7, 1.6, 1.8), (1.65, 1.6, 1.7), True),
        ((1.7, 1.6, 1.8), (1.4, 1.35, 1.45), False),
        ((1.7, 1.2, 2.1), (1.7, 1.69, 1.71), False),
        ((1.7, 1.6, 1.8), (1.7, 1.1, 2.4), None),
        (None, (1.7, 1.69, 1.71), None),
    ],
)
def test_wide_prediction_is_a_miss_and_a_wide_measurement_tells_nothing(predicted: Any, measured: Any, expected: bool | None) -> None:
    assert holds(predicted, measured) is expected


def test_row_shows_advice_with_predicted_measured_and_proved_gain() -> None:
    step = ChangeDataLoader(num_workers=8)
    truth = Truth(
        name="unet",
        runs={AS_IS: [timing(100.0)]},
        diagnosed=[kept("WRONG"), kept("right", NARROW, step, use="DataLoader(..., num_workers=8)", ms_per_step=95.0)],
        proofs={"num_workers=8": Proof(as_is=[timing(100.0), timing(90.0)], changed=[timing(60.0), timing(50.0)])},
    )
    rows = diagnosed_parts({"unet": truth, "nanogpt": Truth(name="nanogpt", diagnosed=[kept("no verdict", ms_per_step=None)])})
    assert (
        "| `unet` | compute-bound | right: data-bound: storage; earlier: WRONG | `DataLoader(..., num_workers=8)` | 1.70x (1.60 to 1.80) | "
        "1.65x (1.60 to 1.70) | 1.73x (1.67 to 1.80) | 0.95x |"
    ) in rows
    truth.machine = "another"
    assert any(row.endswith(" | 0.95x, on another machine |") for row in diagnosed_parts({"unet": truth}))
    assert any(row.startswith("| `nanogpt` | compute-bound | no verdict: ") and row.endswith(" | - | - | - | - | - |") for row in rows)
    assert "| `dcgan` | compute-bound | - | - | - | - | - | - |" in rows


def test_problem_of_several_lines_stays_in_its_cell() -> None:
    failed = Diagnosed(sources="a", time_limit_s=75, said=said("no verdict", "Traceback\n  a | b"))
    rows = diagnosed_parts({"unet": Truth(name="unet", diagnosed=[failed])})
    assert r"| `unet` | compute-bound | no verdict: Traceback a \| b | - | - | - | - | - |" in rows
