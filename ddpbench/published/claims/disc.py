"""Claims of CPU against GPU: where the GPU becomes faster, and that all depths train."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.analysis.metrics import ACCURACY
from ddpbench.published.claims.answer import ClaimCheck, measured_sentence
from ddpbench.published.crossing import Crossing, crossing_of, describe_crossing, missing_depths, num_layers
from ddpbench.published.publications import Publication
from ddpbench.record.record import Job

CROSSING_TOLERANCE = 2.0
"""A crossing within this factor of the published one confirms it: one disc-mlp layer is a factor of four."""


def gpu_wins_from_ten_layers(publication: Publication, job: Job) -> ClaimCheck:
    found, published = crossing_of(job), publication.experiments[0].rows[0].crossover_parameters
    if found is None or published is None:
        return ClaimCheck("needs the models on a CPU and a GPU", None)
    missing = missing_depths(job, [point.layers for point in found.points])
    return ClaimCheck(measured_sentence([describe_crossing(found)], missing), _is_crossing_confirmed(found, published))


def _is_crossing_confirmed(crossing: Crossing, published: int) -> bool | None:
    """Whether the GPU is faster from about ``published`` parameters on.

    None if neither device is a GPU, the models do not reach that far or the interval covers all of them or is too wide.
    """
    if not crossing.is_cpu_vs_gpu or not crossing.is_clear:
        return None
    if crossing.parameters is None:
        covers_published = (
            crossing.points[0].parameters <= published / CROSSING_TOLERANCE
            and published * CROSSING_TOLERANCE <= crossing.points[-1].parameters
        )
        return False if covers_published else None
    if crossing.winner != "GPU":
        return False
    if 1 / CROSSING_TOLERANCE <= crossing.parameters / published <= CROSSING_TOLERANCE:
        return True
    is_compatible = (
        crossing.has_interval
        and (crossing.low or 0) <= published * CROSSING_TOLERANCE
        and published / CROSSING_TOLERANCE <= (crossing.high or published)
    )
    return None if is_compatible else False


def trains_without_error(publication: Publication, job: Job) -> ClaimCheck:
    """Check the errors of all rounds on both devices."""
    errors: dict[int, list[float]] = {}
    for record in job.records:
        if accuracies := ACCURACY.values(record):
            errors.setdefault(num_layers(record.config.workload), []).extend(1 - accuracy for accuracy in accuracies)
    errors_text = ", ".join(f"{layers}: {_format_range(found)}" for layers, found in errors.items())
    missing = missing_depths(job, [num_layers(record.config.workload) for record in job.records if ACCURACY.values(record)])
    all_small = all(f"{error:.0%}" == "0%" for found in errors.values() for error in found)
    explanation = measured_sentence(
        [f"the error by number of layers, over all rounds and devices, is {errors_text}" if errors_text else ""], missing
    )
    return ClaimCheck(explanation, None if all_small and (missing or not errors) else all_small)


def _format_range(errors: Sequence[float]) -> str:
    least, most = f"{min(errors):.1%}", f"{max(errors):.1%}"
    return least if least == most else f"{least} to {most}"
