"""What is predicted of cures goes on record first; then those that promise most are tried beside the setting as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import msgspec

from ddpbench.analysis.evidence import BINDING, LEAST_FOR_AN_INTERVAL
from ddpbench.analysis.judge import judge_all
from ddpbench.analysis.remedies.loader import loader_cures
from ddpbench.analysis.remedies.training import offered
from ddpbench.analysis.whatif.outcome import can_be_tried, fields_of
from ddpbench.analysis.whatif.query import asked_of, predicted
from ddpbench.bench.allowance import Allowance
from ddpbench.bench.arm import Arm
from ddpbench.bench.diagnose.scene import ENTERING_S, Scene
from ddpbench.bench.journal import Journal
from ddpbench.bench.pace import Pace
from ddpbench.bench.preflight import new_record
from ddpbench.bench.round_log import note
from ddpbench.bench.round_plan import Brief
from ddpbench.bench.scheduler import interleave
from ddpbench.bench.terms import Terms
from ddpbench.bench.together import opened_by_all
from ddpbench.data.loader import Loader, Opener
from ddpbench.data.preflight import check
from ddpbench.data.shard import Shard
from ddpbench.record.config import Config
from ddpbench.record.diagnosis import AGAIN, REAL, TRIED
from ddpbench.record.encoded import encoded
from ddpbench.record.errors import BenchError
from ddpbench.record.findings import Verdict
from ddpbench.record.prediction import Prediction
from ddpbench.record.record import Job, Record
from ddpbench.record.resolved import Settled
from ddpbench.report.progress import time_left

MOST = 2
"""Cures that are tried, at most: each takes time from the others."""

ROUNDS = 6

SHARE_OF_A_ROUND = 1 / 3
"""No round takes more of what there is for those of an arm that are needed: it is warmed up, too."""

BOARD = "to try"


def prove(scene: Scene, left_s: float, round_s: float, warm_up_s: float) -> bool:
    """Every rank calls it. Predicts, and tries what there is time for in ``left_s``, as arms that take turns with the present setting.

    False where there was no time for any that should be.
    """
    ground, world, pace = scene.ground, scene.ground.world, Pace()
    ground.begin("predicting", "predicting what the cures gain")
    if ground.journal:
        world.board.pin(BOARD, encoded(promising(foretold(ground.journal))).decode())
    world.barrier()
    cures = msgspec.json.decode(world.board.read(BOARD) or "[]", type=list[Prediction])
    available_s = left_s - world.most(pace.spent_s)
    for complete, number in product((True, False), range(len(cures), 0, -1)):  # one cure in complete rounds proves more than two in short
        contenders = laid_out(scene, cures[:number], available_s, round_s, warm_up_s, complete)
        if takes_s(contenders) <= available_s:
            take_turns(scene, contenders, pace, left_s)
            return True
    return not cures


@dataclass(frozen=True)
class Contender:
    """A setting that takes turns with others: the present one, or a cure."""

    label: str
    config: Settled
    brief: Brief


def laid_out(
    scene: Scene, cures: Sequence[Prediction], available_s: float, round_s: float, warm_up_s: float, complete: bool
) -> list[Contender]:
    """The present setting, then the cures, in ``available_s``; in ``complete`` rounds as long as they need."""
    longest_s = SHARE_OF_A_ROUND * available_s / (LEAST_FOR_AN_INTERVAL * (1 + len(cures)))
    usual = Brief(round_s, warm_up_s, 0.0, longest_s, LEAST_FOR_AN_INTERVAL, first_round_s=ENTERING_S + warm_up_s + round_s)
    usual = replace(usual, complete=complete)
    present = msgspec.structs.replace(scene.config, rounds=ROUNDS)
    contenders = [Contender(AGAIN, present, scene.paced(usual, present))]
    for cure in cures:
        config = msgspec.structs.replace(present, **fields_of(cure.change))
        batches = present.batch_size / config.batch_size  # as many as of the present setting have as many images
        paced = scene.paced(replace(usual, on_trial=True), config, batches * (cure.gain or 1.0))
        contenders.append(Contender(TRIED + cure.change.words, config, paced))
    return contenders


def takes_s(contenders: Sequence[Contender]) -> float:
    """What the rounds that are needed take, about: in ABBA order every second turn goes on with the arm of the one before."""
    present = contenders[0].brief
    return sum(each.brief.needed * each.brief.first_round_s for each in contenders) - (present.needed - 1) * (
        present.first_round_s - present.round_s
    )


def foretold(journal: Journal) -> list[Prediction]:
    """Every prediction, once it is on record."""
    job = journal.job
    try:
        predictions = predictions_of(job)
    except BenchError:  # the run has no round
        return []
    journal.learn_of_diagnosis(predictions=predictions)
    return predictions


def promising(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Those to try, the greatest gain first."""
    possible = [each for each in predictions if each.gain is not None and can_be_tried(each.change)]
    return sorted(possible, key=lambda each: -(each.gain or 0.0))[:MOST]


def predictions_of(job: Job) -> list[Prediction]:
    """One of every cure that is a change of settings. Where the rounds leave the verdict open and the ranks wait for data, of all."""
    judge_all(job)
    case, run = asked_of(job)
    found = case.record.verdict
    if found is None:
        return []
    cures = offered(run, case, found)
    if found.kind == "inconclusive" and case.data_wait_ms >= BINDING * case.step_ms:
        cures = loader_cures(run, case, Verdict(kind="data-bound", says="", why=""))
    return [predicted(case, run, cure.change) for cure in cures if cure.change is not None]


def take_turns(scene: Scene, contenders: Sequence[Contender], pace: Pace, end_s: float) -> None:
    """Rounds in ABBA order, as long as they end within ``end_s`` of the beginning of ``pace``. A cure that fails is told so."""
    ground, briefs = scene.ground, [each.brief for each in contenders]
    world, journal = ground.world, ground.journal
    opener = opened_by_all(checked(scene.openers.of(REAL)), world)
    first = journal.enter(records_of(contenders, scene, journal.job.records[0].asked or scene.config)) if journal else 0
    allowance = Allowance(end_s, pace, world, briefs)
    arms = [
        Arm(each.config, world.on(each.config.device), ground.pulse, Terms(len(contenders), opener=opener, brief=each.brief))
        for each in contenders
    ]
    tried = ", ".join(each.label.removeprefix(TRIED) for each in contenders[1:])
    ground.begin("trying cures", f"trying {tried}, {time_left(end_s - pace.spent_s)}")
    pace.rounds_begin({index: brief.first_round_s for index, brief in enumerate(briefs)})
    for index, measured in interleave(arms, allowance.has_time_for):
        pace.round_ended(index)
        if journal is None or measured is None:
            continue
        text = note(journal, first + index, arms[index], measured, journal.job.records[0].ceilings)
        ground.progress.stage(f"{contenders[index].label}: {text}")
    for arm in arms:
        arm.leave()


def checked(opener: Opener) -> Opener:
    """The same, after all that can be checked before: other workers may want more shared memory than there is."""

    def opened(config: Settled, shard: Shard) -> Loader:
        check(config, shard.dataset, shard.classes, shard.world_size)
        return opener(config, shard)

    return opened


def records_of(contenders: Sequence[Contender], scene: Scene, asked: Config) -> list[Record]:
    """One an arm, before it begins."""
    world = scene.ground.world
    return [new_record(asked, each.config, world.on(each.config.device), each.label) for each in contenders]
