"""What to do next: of the recommended remedies, the first that can be acted on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from ddpbench.analysis.command import TOP_COMMAND, CommandBuilder
from ddpbench.analysis.cpu_demand import cpu_demand
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.remedies.recommend import is_rejected, recommend
from ddpbench.analysis.remedies.script import dataloader_change, is_script_change, other_samples, pinned_memory_change, shared_in_workers
from ddpbench.analysis.remedies.training_rules import diagnose
from ddpbench.record.bottleneck import TooShort
from ddpbench.record.diagnosis import Diagnosis
from ddpbench.record.prediction import Scenario
from ddpbench.record.record import Record
from ddpbench.record.remedy import AnyRemedy, FewerRanks
from ddpbench.record.verdict import ChangeDataLoader, NextStep, RaiseTimeLimit, ReduceRanks, RunCommand, TrySettings, Verdict


def recommended_and_next(builder: CommandBuilder, inputs: AnalysisInput, verdict: Verdict) -> tuple[list[AnyRemedy], NextStep | None]:
    """The remedies for ``verdict``, and what to do next; without remedies where that does not depend on them."""
    is_diagnosed = inputs.controls.diagnosis is not None
    if not is_diagnosed and inputs.record.script is not None:
        return [], _script_step(inputs, verdict, [])
    if not is_diagnosed and verdict.kind == "data-bound" and not verdict.cause:  # a diagnosis finds the cause
        return [], RunCommand(diagnose(builder).command)
    recommended = recommend(builder, inputs, verdict)
    if inputs.record.script is not None:
        return recommended, _script_step(inputs, verdict, recommended)
    remedy = first_step(each for each in recommended if not is_rejected(each, inputs))
    if isinstance(remedy, FewerRanks):
        return recommended, ReduceRanks(remedy.max_ranks_per_node)
    return recommended, RunCommand(remedy.command) if remedy else None


def first_step(remedies: Iterable[AnyRemedy]) -> AnyRemedy | None:
    """The first of ``remedies`` with a command, or with another number of ranks to launch."""
    return next((remedy for remedy in remedies if remedy.command or isinstance(remedy, FewerRanks)), None)


def _script_step(inputs: AnalysisInput, verdict: Verdict, recommended: Sequence[AnyRemedy]) -> NextStep | None:
    """The next step after ``verdict`` on a script; None if no single change suggests itself."""
    if inputs.controls.diagnosis is not None:
        script = inputs.record.script
        if isinstance(verdict.evidence, TooShort):
            return RaiseTimeLimit() if script and script.ended_early else None
        return _recommended_change(inputs, recommended) or _more_time_for_cures(inputs.controls.diagnosis, verdict)
    match verdict.kind:
        case "data-bound" if not inputs.record.decodes_on_gpu:
            return _more_workers(inputs)
        case "epoch-start-bound" if not inputs.record.rebuilds_loader and inputs.record.data and inputs.record.data.respawns_workers:
            return ChangeDataLoader(persistent_workers=True)
        case "host-to-device-bound" if not inputs.record.config.pin_memory:
            return pinned_memory_change(inputs.record)
        case "noisy-neighbour":
            return RunCommand(TOP_COMMAND)
        case "compute-bound" | "launch-bound" if inputs.record.script and inputs.record.script.settings_to_try:
            return TrySettings(cures=inputs.record.script.settings_to_try)
    return None


def _more_time_for_cures(diagnosis: Diagnosis, verdict: Verdict) -> NextStep | None:
    """If computing is the limit, and there was no time to screen what may make it faster."""
    cures = diagnosis.screening.cures if diagnosis.screening else []
    left_out = verdict.kind in ("compute-bound", "launch-bound") and any(each.obstacle == "no-time" for each in cures)
    return RaiseTimeLimit() if left_out else None


def _recommended_change(inputs: AnalysisInput, recommended: Sequence[AnyRemedy]) -> NextStep | None:
    """The first remedy of a diagnosis that the script can make, or a command that shows more; none whose trial failed or was slower."""
    for remedy in recommended:
        if is_rejected(remedy, inputs) or (remedy.scenario is not None and _has_other_samples(remedy.scenario, inputs.record)):
            continue
        if remedy.scenario is not None and is_script_change(remedy.scenario) and remedy.code != "all-cores-workers":
            return dataloader_change(remedy.scenario, inputs.record)
        if remedy.code == "pinned-memory-and-worker":
            return pinned_memory_change(inputs.record)
        if remedy.code in ("list-processes", "inspect-straggler"):
            return RunCommand(remedy.command)
    return None


def _has_other_samples(scenario: Scenario, record: Record) -> bool:
    """Whether its workers read other samples. Those of a stream can be divided among them."""
    compared = other_samples(scenario, record)
    return compared is not None and not compared.repeats_samples


def _more_workers(inputs: AnalysisInput) -> ChangeDataLoader | None:
    """As many workers as deliver a batch per step without waits; None if these run already.

    At most as many as there are cores for, but one in any case: it prepares a batch while the process trains.

    It assumes that all workers are busy while the run waits, and that twice the workers deliver twice the batches. Without workers, the
    wait is the time in which one worker would prepare a batch.
    """
    workers, training_ms = inputs.record.workers, inputs.step_ms - inputs.data_wait_ms
    batch_ms = workers * inputs.step_ms if workers else inputs.data_wait_ms  # that one worker takes
    suggested = min(ceil(batch_ms / training_ms), max(1, cpu_demand(inputs.record).max_workers))
    shared = shared_in_workers(Scenario(workers=suggested), inputs.record)
    return ChangeDataLoader(num_workers=suggested, shared_handles=shared) if suggested > workers else None
