"""Scripts that wait for their workers at the start of every epoch, and ranks that wait for larger batches of others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import records
from script_diagnoses import benchmark, rates, script_diagnosis

from ddpbench.analysis.judge import judge, judge_all
from ddpbench.analysis.remedies.predict import predict_remedies
from ddpbench.analysis.summary import summarize
from ddpbench.analysis.whatif.query import diagnosed_input, predict_gain
from ddpbench.record.bottleneck import EpochStarts, UnequalBatches
from ddpbench.record.errors import UsageError
from ddpbench.record.loader_stats import LoaderStats
from ddpbench.record.prediction import Prediction, Scenario
from ddpbench.record.record import Job, Record
from ddpbench.record.roles import BASELINE
from ddpbench.record.verdict import ChangeDataLoader, Verdict

EPOCH_BATCHES = 20
KEEP_WORKERS = Scenario(persistent_workers=True)


def judged(record: Record) -> Verdict:
    judge(record)
    assert record.verdict is not None
    return record.verdict


def watched(start_ms: float, data_ms: float = 1.0, is_rebuilt: bool = False) -> Record:
    """A script with four workers that takes 44 ms per step besides."""
    phases = {"epoch_start": start_ms, "data": data_ms, "forward": 14.0, "backward": 27.0, "optimizer": 1.0, "script": 1.0}
    found = records.watched_script(ranks=[phases] * 4)
    assert found.script is not None
    assert found.data is not None
    found.script = msgspec.structs.replace(found.script, epoch_batches=EPOCH_BATCHES)
    found.data = msgspec.structs.replace(found.data, respawns_workers=True, is_rebuilt=is_rebuilt)
    return found


def test_start_of_epochs_is_a_phase_of_the_step() -> None:
    summary = summarize(watched(30.0))
    assert summary.epoch_start_ms == pytest.approx(30.0, rel=0.01)
    assert sum(summary.phases_ms.values()) == pytest.approx(summary.step_ms)
    assert summary.phases_ms["unexplained"] == pytest.approx(0.0, abs=0.01)
    assert summarize(records.watched_script()).epoch_start_ms == 0.0


def test_long_starts_of_epochs_are_the_bottleneck() -> None:
    found = judged(watched(36.0))
    assert found.kind == "epoch-start-bound"
    expected = EpochStarts(
        fraction=pytest.approx(0.45, rel=0.01), start_s=pytest.approx(0.72, rel=0.01), epoch_s=pytest.approx(1.6, rel=0.01), workers=4
    )
    assert found.evidence == expected
    assert found.next == ChangeDataLoader(persistent_workers=True)


@pytest.mark.parametrize(("start_ms", "data_ms", "kind"), [(3.0, 1.0, "compute-bound"), (20.0, 40.0, "data-bound")])
def test_shorter_starts_of_epochs_are_not(start_ms: float, data_ms: float, kind: str) -> None:
    assert judged(watched(start_ms, data_ms)).kind == kind


def test_loader_that_is_created_for_every_epoch_cannot_keep_its_workers() -> None:
    found = judged(watched(36.0, is_rebuilt=True))
    assert (found.kind, found.next) == ("epoch-start-bound", None)


def test_workers_that_stay_are_not_advised_to_stay() -> None:
    record = watched(36.0)
    assert record.data is not None
    record.data = msgspec.structs.replace(record.data, respawns_workers=False)
    found = judged(record)
    assert (found.kind, found.next) == ("epoch-start-bound", None)
    assert isinstance(found.evidence, EpochStarts)
    assert found.evidence.keeps_workers


def diagnosed(start_fraction: float = 0.7, is_rebuilt: bool = False) -> Job:
    """A script whose two workers load a batch in 60 ms each, and start again every 20 batches."""
    stats = LoaderStats(samples=64 * 20, cpu_s={"sample": 1.2}, wall_s={"sample": 1.2}, runqueue_wait_s=0.0, batch_ms=[60.0] * 20)
    job = script_diagnosis(rates(600.0), rates(2100.0), stats=stats, loader=benchmark(2100.0, cpu_ms=0.9), wait=0.01)
    baseline = job.records[0]
    assert baseline.data is not None
    assert baseline.script is not None
    baseline.rounds = [with_starts(timed, start_fraction) for timed in baseline.rounds]
    baseline.data = msgspec.structs.replace(baseline.data, respawns_workers=True, is_rebuilt=is_rebuilt)
    baseline.script = msgspec.structs.replace(baseline.script, epoch_batches=EPOCH_BATCHES)
    judge_all(job)
    return job


def with_starts(timed: Any, fraction: float) -> Any:
    """``timed`` with a part of its computing turned into starts of epochs."""

    def changed(trace: Any) -> Any:
        phases = {name: [(1 - fraction) * ms for ms in spans] for name, spans in trace.phases_ms.items()}
        step_ms = 1000 * trace.wall_s / trace.steps
        return msgspec.structs.replace(trace, phases_ms={"epoch_start": [fraction * step_ms] * trace.steps, **phases})

    return msgspec.structs.replace(timed, traces=[changed(trace) for trace in timed.traces])


def test_gain_of_kept_workers_is_predicted_without_the_starts_but_for_a_batch() -> None:
    inputs, builder = diagnosed_input(diagnosed())
    found = predict_gain(inputs, builder, KEEP_WORKERS)
    step_s = 64 / 600
    assert found.gain == pytest.approx(step_s / (0.3 * step_s + 0.060 / EPOCH_BATCHES), rel=0.08)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.gain < found.high <= 1.5 * found.low


def predictions(job: Job) -> list[Prediction]:
    return [each for each in predict_remedies(job) if each.scenario == KEEP_WORKERS]


def test_kept_workers_are_a_remedy_to_try() -> None:
    job = diagnosed()
    assert job.records[0].verdict is not None
    assert job.records[0].verdict.kind == "epoch-start-bound"
    assert job.records[0].verdict.next == ChangeDataLoader(persistent_workers=True)
    assert len(predictions(job)) == 1
    assert predictions(diagnosed(is_rebuilt=True)) == []
    assert predictions(diagnosed(start_fraction=0.03)) == []


def test_workers_of_another_loader_cannot_be_kept() -> None:
    inputs, builder = diagnosed_input(diagnosed(is_rebuilt=True))
    with pytest.raises(UsageError, match="cannot keep its workers"):
        predict_gain(inputs, builder, KEEP_WORKERS)


def uneven(imbalance: float | None, wait_ms: float = 12.0) -> Record:
    """Two of four ranks wait for the others in each step; which ones changes."""
    steps = 20
    turns = [[wait_ms if (step + rank) % 2 else 0.0 for step in range(steps)] for rank in range(4)]
    phases = {"data": 1.0, "forward": 14.0, "backward": 27.0, "sync": wait_ms / 2, "optimizer": 1.0, "script": 1.0}
    found = records.watched_script(ranks=[phases] * 4, steps=steps)
    found.role = BASELINE
    for timed in found.rounds:
        for trace, waits in zip(timed.traces, turns, strict=True):
            trace.phases_ms["sync"][:] = waits
    found.rounds = [msgspec.structs.replace(timed, batch_imbalance=imbalance) for timed in found.rounds]
    return found


def test_waits_for_larger_batches_of_other_ranks_are_no_gradient_sync() -> None:
    found = judged(uneven(1.4))
    assert found.kind == "load-imbalance"
    assert isinstance(found.evidence, UnequalBatches)
    assert (found.evidence.wait_ms, found.evidence.largest_over_mean) == (pytest.approx(6.0, rel=0.05), 1.4)


@pytest.mark.parametrize("imbalance", [None, 1.02])
def test_waits_of_ranks_with_equal_batches_are_gradient_sync(imbalance: float | None) -> None:
    assert judged(uneven(imbalance)).kind == "sync-bound"
