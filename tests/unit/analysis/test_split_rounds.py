"""A long training split into parts: their sums, and the verdict from a single training."""

from __future__ import annotations

from math import fsum

import msgspec
import pytest
from records import BUSY, record

from ddpbench.analysis.bottleneck.verdict import find_bottleneck
from ddpbench.analysis.rounds import PARTS_PER_ROUND
from ddpbench.analysis.run_length import with_split_rounds
from ddpbench.analysis.summary import summarize
from ddpbench.record.bottleneck import TooShort
from ddpbench.record.loader_stats import subsample
from ddpbench.record.record import Record
from ddpbench.record.trace import PHASES


def single_round_record(steps: int, data_ms: float = 80.0, changes_by: float = 1.0, fresh: bool = True) -> Record:
    """One round of one rank; its second half takes ``changes_by`` times as long in all phases."""
    made = record([BUSY], longer=[1.0], steps=steps)
    trace = made.rounds[0].traces[0]
    base = {phase: {"data": data_ms, "forward": 10.0, "backward": 20.0}.get(phase, 0.1) for phase in PHASES}
    pace = [changes_by if step >= steps // 2 else 1.0 for step in range(steps)]
    phases_ms = {phase: [own * each for each in pace] for phase, own in base.items()}
    wall_s = fsum(fsum(each) for each in phases_ms.values()) / 1000
    trace = msgspec.structs.replace(
        trace,
        steps=steps,
        samples=8 * steps,
        wall_s=wall_s,
        phases_ms=phases_ms,
        host_data_ms=phases_ms["data"],
        host_lead_ms=[],
        health=None,
    )
    made.config = msgspec.structs.replace(made.config, fresh=fresh)
    made.rounds = [msgspec.structs.replace(made.rounds[0], traces=[trace], samples=8 * steps, wall_s=wall_s)]
    return made


def test_parts_sum_to_their_round() -> None:
    whole = single_round_record(103, changes_by=2.0)
    cut = with_split_rounds(whole).rounds
    assert len(cut) == PARTS_PER_ROUND
    assert sum(part.traces[0].steps for part in cut) == 103
    assert sum(part.samples for part in cut) == whole.rounds[0].samples
    assert fsum(part.wall_s for part in cut) == pytest.approx(whole.rounds[0].wall_s)
    assert [step for part in cut for step in part.traces[0].phases_ms["data"]] == whole.rounds[0].traces[0].phases_ms["data"]
    assert [step for part in cut for step in part.traces[0].host_issue_ms] == whole.rounds[0].traces[0].host_issue_ms != []


def test_subsampled_steps_represent_dropped_steps() -> None:
    whole = single_round_record(100)
    issuing_ms = whole.rounds[0].traces[0].host_issue_ms
    whole.rounds = [msgspec.structs.replace(timed, traces=[trace.subsample_steps(4) for trace in timed.traces]) for timed in whole.rounds]
    assert whole.rounds[0].traces[0].host_issue_ms == subsample(4, issuing_ms) != []
    cut = with_split_rounds(whole).rounds
    assert [part.traces[0].steps for part in cut] == [20] * PARTS_PER_ROUND
    assert fsum(part.wall_s for part in cut) == pytest.approx(whole.rounds[0].wall_s)


def test_round_with_fewer_kept_steps_than_parts_is_not_split() -> None:
    whole = single_round_record(52)
    whole.rounds = [msgspec.structs.replace(timed, traces=[trace.subsample_steps(13) for trace in timed.traces]) for timed in whole.rounds]
    assert with_split_rounds(whole) is whole, "832 ranks keep every 13th step"


@pytest.mark.parametrize(("steps", "fresh"), [(49, True), (100, False)])
def test_short_or_continued_trainings_are_not_split(steps: int, fresh: bool) -> None:
    whole = single_round_record(steps, fresh=fresh)
    assert with_split_rounds(whole) is whole
    found = find_bottleneck(whole, summarize(whole))
    assert found is not None
    assert isinstance(found.evidence, TooShort)
    assert found.evidence.rounds == 1


def test_single_long_training_has_a_verdict_if_its_parts_agree() -> None:
    steady, computing = single_round_record(100), single_round_record(100, data_ms=0.1)
    for whole, kind in ((steady, "data-bound"), (computing, "compute-bound")):
        found = find_bottleneck(whole, summarize(whole))
        assert found is not None
        assert found.kind == kind


def test_varying_parts_that_agree_give_a_certain_verdict() -> None:
    for data_ms, kind in ((None, "data-bound"), (0.1, "compute-bound")):
        made = single_round_record(100, changes_by=1.5) if data_ms is None else single_round_record(100, data_ms=data_ms, changes_by=1.5)
        found = find_bottleneck(made, summarize(made))
        assert found is not None
        assert (found.kind, found.is_probable) == (kind, False)
