"""The claims of ResNet-18 and ResNet-50 in two environments: what half precision gains, and whether the loader hides it."""

from __future__ import annotations

from ddpbench.analysis.evidence import BINDING
from ddpbench.analysis.metrics import IMAGES_PER_S, times
from ddpbench.published.claims.answer import Answer, missing, over, sentence
from ddpbench.published.effect_size import PublishedRatio, explained, limit, shows, together, wait_for_data
from ddpbench.published.publications import Publication
from ddpbench.published.sweep_points import by_precision, cells
from ddpbench.record.record import Job, Record

RESNETS = ("resnet18", "resnet50")


def half_doubles_the_speed(publication: Publication, job: Job) -> Answer:
    """Holds where both models gain as they did in one of the two environments; the sentence says in which."""
    here = {name: times(IMAGES_PER_S, *_pair(job, name)) for name in RESNETS}
    ratios = [
        PublishedRatio(f"FP16's speed over FP32's, {name}, {place}", _gain(publication, name, place), here[name])
        for name in RESNETS
        for place in ("slurm", "container")
    ]
    alike = {place: together(each.agrees for each in ratios if each.name.endswith(place)) for place in ("slurm", "container")}
    words = [
        f"{name} {PublishedRatio(name, None, found).words} times as fast in o2{explained(found, _pair(job, name)[1])}"
        for name, found in here.items()
        if found
    ]
    like = next((f", as under {place}" for place, holds in alike.items() if holds), "")
    holds = True if True in alike.values() else None if None in alike.values() else False
    return Answer(sentence(words, _missing(job)) + like, holds, ratios)


def environments_differ(publication: Publication, job: Job) -> Answer:
    """One record is of one environment."""
    run = f"ddpbench reproduce {publication.id} -o DIR"
    return Answer(f"a record is of one environment: run '{run}' in each of two, and 'ddpbench report FILE FILE' prints both tables", None)


def only_big_networks_gain(publication: Publication, job: Job) -> Answer:
    pairs = {name: _pair(job, name) for name in RESNETS}
    gains = {name: times(IMAGES_PER_S, *pair) for name, pair in pairs.items()}
    if any(gain is None for gain in gains.values()):
        return Answer(_missing(job), None)
    waits = {name: wait_for_data(pair[1]) for name, pair in pairs.items()}
    if any((wait or 0) >= BINDING for wait in waits.values()):
        told = ", ".join(f"{name} in o2: {limit(pair[1])}" for name, pair in pairs.items() if pair[1])
        return Answer(f"the loader explains it, not the size of the network: {told}", False)
    faster = {name: shows(gain, "more") for name, gain in gains.items() if gain}
    small = faster["resnet18"]
    words = ", ".join(f"{name} gains {PublishedRatio(name, None, gain).words}" for name, gain in gains.items())
    return Answer(f"no cell waits for its loader here: {words}", together([faster["resnet50"], None if small is None else not small]))


def _pair(job: Job, workload: str) -> tuple[Record | None, Record | None]:
    there = cells(job, workload)
    return by_precision(there, "fp32"), by_precision(there, "o2")


def _missing(job: Job) -> str:
    return missing(
        {f"{name} in {label}": record for name in RESNETS for label, record in zip(("fp32", "o2"), _pair(job, name), strict=True)}
    )


def _gain(publication: Publication, workload: str, environment: str) -> float | None:
    rows = [row for each in publication.experiments if each.workload == workload for row in each.rows if row.environment == environment]
    figures = {row.precision: row.images_per_s for row in rows}
    return over(figures["o2"], figures["fp32"])
