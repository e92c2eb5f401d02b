"""The claims of CPU against GPU: where the GPU begins to win, and that every depth learns its points."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.analysis.metrics import ACCURACY
from ddpbench.published.claims.answer import Answer, sentence
from ddpbench.published.crossing import Crossing, conclusion, crossing_of, layers_of, missing
from ddpbench.published.publications import Publication
from ddpbench.record.record import Job

ABOUT = 2.0
"""A crossing within this factor of the published one is about there: one layer of disc-mlp is a factor of four."""


def gpu_wins_from_ten_layers(publication: Publication, job: Job) -> Answer:
    found, published = crossing_of(job), publication.experiments[0].rows[0].crossover_parameters
    if found is None or published is None:
        return Answer("it needs the models on a CPU and on a GPU", None)
    lacking = missing(job, [point.layers for point in found.points])
    return Answer(sentence([conclusion(found)], lacking), _is_there(found, published))


def _is_there(found: Crossing, published: int) -> bool | None:
    """Whether the GPU wins from about the published size on; None without a GPU, and where the models do not reach as far."""
    if "GPU" not in (found.winner, found.loser):
        return None
    if found.parameters is None:
        reached = found.points[0].parameters <= published / ABOUT and published * ABOUT <= found.points[-1].parameters
        return False if reached else None
    if found.winner != "GPU":
        return False
    if 1 / ABOUT <= found.parameters / published <= ABOUT:
        return True
    reaches = found.has_interval and (found.low or 0) <= published * ABOUT and published / ABOUT <= (found.high or published)
    return None if reaches else False


def trains_without_error(publication: Publication, job: Job) -> Answer:
    """Of every round on both devices."""
    errors: dict[int, list[float]] = {}
    for record in job.records:
        if reached := ACCURACY.values(record):
            errors.setdefault(layers_of(record.config.workload), []).extend(1 - accuracy for accuracy in reached)
    each = ", ".join(f"{layers}: {_range(found)}" for layers, found in errors.items())
    lacking = missing(job, [layers_of(record.config.workload) for record in job.records if ACCURACY.values(record)])
    small = all(f"{error:.0%}" == "0%" for found in errors.values() for error in found)
    told = sentence([f"the errors by layers, of every round on each device, are {each}" if each else ""], lacking)
    return Answer(told, None if small and (lacking or not errors) else small)


def _range(errors: Sequence[float]) -> str:
    least, most = f"{min(errors):.1%}", f"{max(errors):.1%}"
    return least if least == most else f"{least} to {most}"
