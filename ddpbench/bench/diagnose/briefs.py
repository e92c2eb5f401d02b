"""How long the turns of a diagnosis' trainings are, and how much is replayed, by the pace of the loader, in the time that there is."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf, sqrt

from ddpbench.analysis.evidence import LEAST_STEPS
from ddpbench.analysis.remedies.training import DIAGNOSIS_S
from ddpbench.bench.diagnose.scene import ENTERING_S, Scene
from ddpbench.bench.round_plan import Brief
from ddpbench.data.loaders.replay import LEAST_BATCHES, MOST_BATCHES
from ddpbench.record.diagnosis import BESIDE, DEVICE, REAL, REPLAY

ROUND_S, WARM_UP_S = 1.5, 3.0
"""How long a round of a training lasts, and a warm-up, about, in the time that a diagnosis usually has."""

NEEDED = {REAL: 3, DEVICE: 1}
"""Rounds without which there is no verdict: time is kept for them."""

LONGEST = 1 / 4
"""The share of the time for rounds that one may take where steps are slow."""

MOST_TO_FILL = 3
"""So many windows of looking at a loader may go into reading the batches to replay."""


def share_of(limit_s: float) -> float:
    """How long windows and rounds are, of what they usually are: of more time half goes into longer rounds, and half into more."""
    share = limit_s / DIAGNOSIS_S
    return min(share, sqrt(share))


def brief_of(label: str, scene: Scene, limit_s: float, available_s: float) -> Brief:
    """How the training of that label takes its turns, where all share ``available_s`` seconds of a diagnosis of ``limit_s``.

    The run itself has its rounds at once where its loader starts too slowly.
    """
    round_s, warm_up_s = ROUND_S * share_of(limit_s), WARM_UP_S * share_of(limit_s)
    usual = Brief(
        round_s,
        warm_up_s,
        longest_s=LONGEST * available_s,
        needed=NEEDED.get(label, 0),
        first_round_s=inf if label == REPLAY and not batches_to_replay(scene) else ENTERING_S + warm_up_s + round_s,
        leaving_s=scene.turn_s if label == BESIDE else 0.0,  # the batch that it waits for is waited for to the end
    )
    if label != REAL:
        return usual
    paced = scene.paced(replace(usual, least_steps=ceil(LEAST_STEPS / usual.needed)), scene.config)
    return replace(paced, at_once=paced.needed if paced.needed * paced.first_round_s > available_s / 2 else 1)


def batches_to_replay(scene: Scene) -> int:
    """As many as there is time to read, and no more than are of use; 0 where that is not worth it, or the loader's pace not known."""
    if not scene.batch_s:
        return 0
    reading_s = MOST_TO_FILL * scene.window_s
    batches = min(MOST_BATCHES, int(reading_s / scene.batch_s))
    return batches if batches >= LEAST_BATCHES and scene.turn_s <= reading_s else 0
