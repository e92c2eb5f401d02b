"""Recommends remedies: which rules apply to which verdict, and in what order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.pipeline.model import pipeline_model
from ddpbench.analysis.remedies.loader_rules import (
    LoaderContext,
    LoaderRule,
    as_many_workers_as_cores,
    data_in_memory,
    dataloader_with_workers,
    decode_on_device,
    decode_on_gpu,
    fewer_workers,
    more_cores,
    more_hw_decoding,
    more_prefetch,
    more_workers,
    no_workers,
    other_loader,
    out_of_order,
    persistent_workers,
    pinned_memory,
    ready_indices,
    resident_data,
    without_loader,
)
from ddpbench.analysis.remedies.training_rules import (
    TrainingRule,
    even_batches,
    faster_compute,
    fewer_launches,
    inspect_straggler,
    less_sync,
    list_processes,
    more_evidence,
)
from ddpbench.analysis.whatif.query import gain_predictor
from ddpbench.record.bottleneck import Bottleneck
from ddpbench.record.prediction import MIN_WORTHWHILE_GAIN
from ddpbench.record.remedy import Remedy, RemedyCode
from ddpbench.record.root_cause import Cause
from ddpbench.record.verdict import Verdict

SCRIPT_LOADER_REMEDIES: tuple[RemedyCode, ...] = (
    "more-workers",
    "all-cores-workers",
    "fewer-workers",
    "no-workers",
    "more-prefetch",
    "out-of-order",
    "persistent-workers",
    "resident-data",
    "ready-indices",
    "pinned-memory",
    "pinned-memory-and-worker",
    "decode-on-device",
    "decode-on-gpu",
)
"""Remedies that change the DataLoader of a user's own script."""

SCRIPT_REMEDIES: tuple[RemedyCode, ...] = (
    *SCRIPT_LOADER_REMEDIES,
    "more-cores",
    "data-in-memory",
    "cuda-graphs",
    "even-batches",
    "inspect-straggler",
    "list-processes",
)
"""Remedies that a user's own script can make, or that concern its machine. The others are settings of ddpbench's workloads."""

GENERAL_RULES: tuple[LoaderRule, ...] = (
    other_loader("tensor"),
    more_hw_decoding,
    resident_data,
    decode_on_gpu,
    dataloader_with_workers,
    more_workers,
    persistent_workers,
    other_loader("dali-gpu"),
    decode_on_device,
    other_loader("torch-uint8"),
    other_loader("dali-cpu"),
    more_cores,
    as_many_workers_as_cores,
)
"""Rules for a data-bound run, whatever the cause."""

RULES_BY_CAUSE: Mapping[Cause, tuple[LoaderRule, ...]] = {
    "too-few-workers": (more_workers,),
    "oversubscribed": (fewer_workers,),
    "storage": (data_in_memory, more_workers, more_prefetch),
    "one-by-one": (resident_data,),
    "slow-sampler": (ready_indices,),
    "handoff": (other_loader("tensor"), other_loader("torch-uint8"), other_loader("dali-cpu")),
    "head-of-line": (out_of_order, more_prefetch, more_workers),
}
"""Rules for a data-bound run, by its cause; they come before ``GENERAL_RULES``."""

RULES_BY_BOTTLENECK: Mapping[Bottleneck, tuple[LoaderRule, ...]] = {
    "epoch-start-bound": (resident_data, decode_on_gpu, persistent_workers, more_workers),
    "loader-contends-cpu": (
        other_loader("tensor"),
        resident_data,
        decode_on_gpu,
        fewer_workers,
        no_workers,
        other_loader("dali-gpu"),
        decode_on_device,
        other_loader("torch-uint8"),
        more_cores,
    ),
    "loader-contends-gpu": (more_hw_decoding, other_loader("dali-cpu")),
    "host-to-device-bound": (resident_data, pinned_memory, other_loader("torch-uint8"), without_loader),
}
"""Rules for the other bottlenecks that concern the loader."""

TRAINING_RULES: Mapping[str, TrainingRule] = {
    "straggler": inspect_straggler,
    "noisy-neighbour": list_processes,
    "load-imbalance": even_batches,
    "launch-bound": fewer_launches,
    "sync-bound": less_sync,
    "compute-bound": faster_compute,
    "inconclusive": more_evidence,
}
"""Rules by the kind of a verdict that does not concern the loader."""

ALWAYS_OFFERED: tuple[LoaderRule, ...] = (fewer_workers,)
"""Rules that apply whatever gain is predicted: what contention for cores costs is not known before there are fewer workers."""

SAME_GAIN = 0.98
"""A predicted gain that reaches this fraction of another counts as the same."""


def recommend(builder: CommandBuilder, inputs: AnalysisInput, verdict: Verdict) -> list[Remedy]:
    """What may help against ``verdict``, the most likely first; empty if nothing is known to."""
    if verdict.kind == "data-bound" or verdict.kind in RULES_BY_BOTTLENECK:
        found = recommend_for_loader(builder, inputs, verdict.kind, verdict.cause)
    else:
        remedy = TRAINING_RULES[verdict.kind](builder, inputs)
        found = [remedy] if remedy else []
    if builder.record.script is None:
        return found
    settings = SCRIPT_LOADER_REMEDIES if builder.record.decodes_on_gpu else ()
    return [remedy for remedy in found if remedy.code in SCRIPT_REMEDIES and remedy.code not in settings]


def is_rejected(remedy: Remedy, inputs: AnalysisInput) -> bool:
    """Whether the trial of ``remedy``, or of less of it, failed or was slower."""
    return inputs.controls.rejects(remedy.scenario, inputs.record.workers)


def recommend_for_loader(builder: CommandBuilder, inputs: AnalysisInput, kind: Bottleneck, cause: Cause | None = None) -> list[Remedy]:
    """The remedies that apply to a bottleneck: first those for its cause, then the others by predicted gain, greatest first.

    A remedy with a predicted gain below ``MIN_WORTHWHILE_GAIN`` is skipped, unless its rule is in ``ALWAYS_OFFERED``.
    """
    context, predict = LoaderContext(builder, inputs, pipeline_model(inputs)), gain_predictor(inputs, builder)

    def worthwhile(rules: Iterable[LoaderRule]) -> list[Remedy]:
        applicable = ((rule, remedy) for rule in rules if (remedy := rule(context)))
        predicted = ((rule, replace(remedy, gain=predict(remedy.scenario)) if remedy.scenario else remedy) for rule, remedy in applicable)
        return [remedy for rule, remedy in predicted if remedy.gain is None or remedy.gain >= MIN_WORTHWHILE_GAIN or rule in ALWAYS_OFFERED]

    if kind != "data-bound":
        return _undominated(worthwhile(RULES_BY_BOTTLENECK[kind]))
    by_cause = RULES_BY_CAUSE.get(cause, ()) if cause else ()
    others = worthwhile(rule for rule in GENERAL_RULES if rule not in by_cause)
    found = [*worthwhile(by_cause), *sorted(others, key=lambda remedy: -(remedy.gain or 0.0))]
    return _undominated([remedy for remedy in found if remedy.code != "all-cores-workers" or _is_guess(remedy, found)])


def _is_guess(remedy: Remedy, found: Sequence[Remedy]) -> bool:
    """Whether ``remedy`` has no predicted gain, nor has any other number of workers of ``found``, and none is the same."""
    others = [other for other in found if other is not remedy and other.scenario and other.scenario.only_workers]
    return remedy.gain is None and all(other.gain is None and other.scenario != remedy.scenario for other in others)


def _undominated(remedies: Sequence[Remedy]) -> list[Remedy]:
    """``remedies`` without those that need more cores than another of the same gain."""
    return [remedy for remedy in remedies if not any(_dominates(other, remedy) for other in remedies)]


def _dominates(other: Remedy, remedy: Remedy) -> bool:
    if not (other.scenario and remedy.scenario and other.gain and remedy.gain and remedy.scenario.cores_per_gpu):
        return False
    return other.gain >= SAME_GAIN * remedy.gain and (other.scenario.cores_per_gpu or 0.0) < remedy.scenario.cores_per_gpu
