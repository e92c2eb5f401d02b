"""Claims on ResNet-18/50: what half precision gains, and whether the loader hides it."""

from __future__ import annotations

from ddpbench.analysis.metrics import SAMPLES_PER_S, paired_ratio
from ddpbench.analysis.summary import BOTTLENECK_FRACTION
from ddpbench.published.claims.answer import ClaimCheck, measured_sentence, missing_cells, ratio_of_published
from ddpbench.published.effect_size import (
    PublishedRatio,
    all_or_unknown,
    data_wait_fraction,
    describe_bottleneck,
    explain_ratio,
    matches_effect,
)
from ddpbench.published.publications import Publication
from ddpbench.published.sweep_points import find_by_precision, matching_records
from ddpbench.record.record import Job, Record

RESNETS = ("resnet18", "resnet50")


def half_doubles_the_speed(publication: Publication, job: Job) -> ClaimCheck:
    """Holds if both models gain as in one of the two published environments.

    The explanation names the environment.
    """
    measured = {name: paired_ratio(SAMPLES_PER_S, *_fp32_and_o2(job, name)) for name in RESNETS}
    ratios = [
        PublishedRatio(f"FP16's speed over FP32's, {name}, {place}", _published_gain(publication, name, place), measured[name])
        for name in RESNETS
        for place in ("slurm", "container")
    ]
    agreement = {place: all_or_unknown(each.agrees for each in ratios if each.name.endswith(place)) for place in ("slurm", "container")}
    measured_texts = [
        f"{name} {PublishedRatio(name, None, found).text} times as fast in o2{explain_ratio(found, _fp32_and_o2(job, name)[1])}"
        for name, found in measured.items()
        if found
    ]
    environment = next((f", as in the published {place} environment" for place, holds in agreement.items() if holds), "")
    holds = True if True in agreement.values() else None if None in agreement.values() else False
    return ClaimCheck(measured_sentence(measured_texts, _missing_cells(job)) + environment, holds, ratios)


def environments_differ(publication: Publication, job: Job) -> ClaimCheck:
    """Always unknown: a record covers one environment."""
    command = f"ddpbench reproduce {publication.id} -o DIR"
    return ClaimCheck(
        f"a record covers one environment: run '{command}' in both, then 'ddpbench report FILE FILE' prints both tables", None
    )


def only_big_networks_gain(publication: Publication, job: Job) -> ClaimCheck:
    pairs = {name: _fp32_and_o2(job, name) for name in RESNETS}
    gains = {name: paired_ratio(SAMPLES_PER_S, *pair) for name, pair in pairs.items()}
    if any(gain is None for gain in gains.values()):
        return ClaimCheck(_missing_cells(job), None)
    waits = {name: data_wait_fraction(pair[1]) for name, pair in pairs.items()}
    if any((wait or 0) >= BOTTLENECK_FRACTION for wait in waits.values()):
        bottlenecks = ", ".join(f"{name} in o2: {describe_bottleneck(pair[1])}" for name, pair in pairs.items() if pair[1])
        return ClaimCheck(f"the loader is the reason, not the network size: {bottlenecks}", False)
    faster = {name: matches_effect(gain, "more") for name, gain in gains.items() if gain}
    resnet18_gains = faster["resnet18"]
    gain_texts = ", ".join(f"{name} gains {PublishedRatio(name, None, gain).text}" for name, gain in gains.items())
    return ClaimCheck(
        f"no run waits for its loader here: {gain_texts}",
        all_or_unknown([faster["resnet50"], None if resnet18_gains is None else not resnet18_gains]),
    )


def _fp32_and_o2(job: Job, workload: str) -> tuple[Record | None, Record | None]:
    records = matching_records(job, workload)
    return find_by_precision(records, "fp32"), find_by_precision(records, "o2")


def _missing_cells(job: Job) -> str:
    return missing_cells(
        {f"{name} in {label}": record for name in RESNETS for label, record in zip(("fp32", "o2"), _fp32_and_o2(job, name), strict=True)}
    )


def _published_gain(publication: Publication, workload: str, environment: str) -> float | None:
    rows = [row for each in publication.experiments if each.workload == workload for row in each.rows if row.environment == environment]
    figures = {row.precision: row.images_per_s for row in rows}
    return ratio_of_published(figures["o2"], figures["fp32"])
