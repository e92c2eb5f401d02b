"""The training that was measured, as the situation from which every other one is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import fsum
from random import Random
from statistics import fmean

from ddpbench.analysis.controls import longer_s, step_s
from ddpbench.analysis.cpu_demand import need, worker_cpu_s
from ddpbench.analysis.inputs import Case
from ddpbench.analysis.node_cpu_usage import busiest
from ddpbench.analysis.pipeline.costs import cost_of
from ddpbench.analysis.pipeline.rates import storage_rate
from ddpbench.analysis.ranks import COMPUTE, known, mean
from ddpbench.analysis.simulation.simulate import run, shortest_by_cores
from ddpbench.analysis.whatif.assumptions import Assumption, Unmeasured
from ddpbench.analysis.whatif.batches import Batches, handing_s, image_cpu_s, of_turns, of_workers
from ddpbench.analysis.whatif.curve import Curve
from ddpbench.analysis.whatif.state import Situation
from ddpbench.record.diagnosis import Alone
from ddpbench.record.loaders import spec_of
from ddpbench.record.record import Record, Round
from ddpbench.record.trace import PHASES

AHEAD = 0.5
"""A host that is ahead by this fraction of a step has issued the next before the device is done."""

LEAST_LOADED = 0.25
"""What a loader takes of a step for which it gives a smaller part of a batch is not multiplied further: the noise would be, too."""

CHECKED = 1000
"""Steps from which the run itself is told."""

NEARLY_ALL = 0.8
"""Cores that are asked for this fraction of their time are what a step that lasts longer than its parts has waited for."""

AS_DRAWN = 0.8
"""A measured rate below this fraction of what the run drew is not the limit of its storage: by then the files lay in memory."""

BY_COMPUTING = Assumption("a step on batches that are there already was not measured: it takes what computing takes in the run", 0.05)
NO_CORES = Assumption("what the run takes of the cores is not known: there are enough")


def measured(case: Case) -> Situation:
    """The situation of ``case``. Raises Unmeasured where its record does not tell how long a step or a batch takes."""
    record, config, node = case.record, case.record.config, need(case.record)
    batches = _batches(case)
    steps, longer, assumed = _steps(case)
    busy = busiest(record)
    others = busy.others if busy and busy.shared else 0.0
    load = node.ranks * (node.workers + node.trainers // node.ranks) / node.usable
    image_cpu, (trainer_cpu, handing) = _image_cpu(case, load), _trainer_cpu(case, load)
    costs_known = image_cpu is not None and trainer_cpu is not None
    pinned = record.environment.device_type == "cuda" and config.pin_memory
    found = Situation(
        loader=config.loader,
        precision=config.precision,
        compile=config.compile,
        batch=config.batch_size,
        ranks=record.world_size,
        ranks_a_node=node.ranks,
        workers=node.workers,
        prefetch=config.prefetch,
        made=batches.rounds,
        steps=steps,
        longer=longer,
        hand_over=_hand_over_s(case),
        beside=pinned,
        ahead=1 if (case.summary.lead_ms or 0.0) >= AHEAD * case.step_ms else 0,
        cores=node.usable if costs_known else None,
        others=others,
        trainer_threads=node.trainers // node.ranks,
        image_cpu=image_cpu,
        trainer_cpu=trainer_cpu,
        handing=handing,
        load=load,
        reading=batches.reading,
        files_per_s=_files_per_s(case),
        assumed=(*batches.assumed, *assumed, *([] if costs_known else [NO_CORES])),
    )
    return with_turns(found, case.step_ms / 1000)


def with_turns(found: Situation, step: float) -> Situation:
    """With fewer cores, where these explain why a step lasted longer than they and every other part would have it."""
    setting = found.setting()
    asked = shortest_by_cores(setting) / step
    if found.cores is None or not NEARLY_ALL <= asked < 1 or run(setting, CHECKED, Random(0)).step >= step:
        return found
    lost = Assumption(f"cores that everybody wants lose {1 - asked:.0%} of their time to turns, as in the run")
    return replace(found, lost=1 - asked, assumed=(*found.assumed, lost))


def step_spans(record: Record) -> list[list[float]]:
    """Seconds of every step, round by round: the mean over ranks, since they meet in it."""
    return [spans_of(timed) for timed in record.rounds]


def spans_of(timed: Round) -> list[float]:
    """The same of one round."""
    return _spans(timed, PHASES)


def copies_s(case: Case) -> float:
    """Seconds of a step that copies from page-locked memory take, and the host, beyond what batches on the device take."""
    if case.record.environment.device_type != "cuda":
        return 0.0
    return max(0.0, longer_s(case.around.replay, case.around.device) or 0.0)


def pageable_s(case: Case) -> float:
    """Seconds of a step for which the run waits for copies, beyond those, where they are from pageable memory."""
    if case.record.environment.device_type != "cuda" or case.record.config.pin_memory:
        return 0.0
    return max(0.0, case.summary.phases_ms["host_to_device"] / 1000 - copies_s(case))


def stolen_s(case: Case) -> float:
    """Seconds by which loading its batch makes a step on a GPU longer: by what it takes from it, and of a loader on the device, where
    what it gave beside was counted, by what the training waits for the rest of the batch.
    """
    device, longer = step_s(case.around.device), longer_s(case.around.beside, case.around.device)
    if device is None or longer is None or case.record.environment.device_type != "cuda":
        return 0.0
    batch = case.record.config.batch_size
    alone = case.around.diagnosis.alone if case.around.diagnosis else []
    told = kept_up(case.around.beside.rounds) if case.around.beside else None
    if spec_of(case.record.config.loader).on_device and told is not None:
        return max(0.0, longer) + behind_s(told, batch, alone)
    loaded = min(1.0, _slowest(alone) * (device + longer) / batch) if alone else 1.0
    return max(0.0, longer) / max(LEAST_LOADED, loaded)


def kept_up(rounds: Sequence[Round]) -> float | None:
    """Of the images that were trained on, what part the loader beside gave meanwhile: at most 1. None where that was not counted."""
    traces = [trace for timed in rounds for trace in timed.traces]
    given = [trace.loading.images for trace in traces if trace.loading is not None]
    trained = sum(trace.images for trace in traces)
    return min(1.0, sum(given) / trained) if given and trained else None


def behind_s(part: float, batch: int, alone: Sequence[Alone]) -> float:
    """Seconds of a step for which the training waits where a loader on its device gives it only that part of a batch while both work.

    The rest it makes with the device for itself, as fast as alone.
    """
    return (1 - part) * batch / _slowest(alone) if alone else 0.0


def _slowest(alone: Sequence[Alone]) -> float:
    return min(each.images_per_s for each in alone)


def _steps(case: Case) -> tuple[list[list[float]], float, list[Assumption]]:
    """On batches that lie on the device, by how much longer they are in the run, and what that takes for granted."""
    if case.around.device is None:
        return [_spans(timed, COMPUTE) for timed in case.record.rounds], 0.0, [BY_COMPUTING]
    on_device = spec_of(case.record.config.loader).on_device
    copied = 0.0 if on_device else copies_s(case) + pageable_s(case)
    return step_spans(case.around.device), stolen_s(case) + copied, []


def _files_per_s(case: Case) -> float | None:
    """What the storage gives a node, files in memory among them: no less than the run drew."""
    storage = case.around.diagnosis.storage if case.around.diagnosis else None
    if storage is None or storage.resident is None:
        return None
    given = storage_rate(1, storage.resident, storage.warm, storage.cold)
    drawn = 1000 * need(case.record).ranks * case.record.config.batch_size / case.step_ms
    return max(given, drawn) if given is not None and given >= AS_DRAWN * drawn else None


def _spans(timed: Round, phases: Sequence[str]) -> list[float]:
    """With all phases they are stretched to the round's wall time, of which no part is lost."""
    each = [[sum(parts) for parts in zip(*(trace.phases_ms[phase] for phase in phases), strict=True)] for trace in timed.traces]
    spans = [fmean(ranks) / 1000 for ranks in zip(*each, strict=False)]
    mean_s = timed.wall_s / max(trace.steps for trace in timed.traces)
    stretch = mean_s / fmean(spans) if len(phases) == len(PHASES) and fsum(spans) > 0 else 1.0
    return [stretch * span for span in spans]


def _batches(case: Case) -> Batches:
    config, diagnosis = case.record.config, case.around.diagnosis
    alone = diagnosis.alone if diagnosis else []
    loader = spec_of(config.loader)
    if loader.threaded or loader.resident:
        if alone:
            return of_turns(alone, loader.makers(config.workers))
        raise Unmeasured(f"how long {config.loader} takes for a batch")
    told = [known(trace.loading for trace in timed.traces) for timed in case.record.rounds]
    told = [each for each in told if len(each) == case.record.world_size]
    found = of_workers(told, config.batch_size) if told else None
    there = known(each.loading for each in alone)
    by_itself = of_workers([there], config.batch_size) if len(there) == case.record.world_size else None
    if found is None:
        found = by_itself
    elif by_itself is not None and not found.assumed and not by_itself.assumed:
        found = replace(found, rounds=[*found.rounds, *by_itself.rounds])  # a slow batch in many is in few rounds of a training
    if found is None:
        raise Unmeasured(f"how long the workers of {config.loader} take for a batch")
    return found


def _hand_over_s(case: Case) -> float:
    told = [trace.loading.hand_over_ms for trace in case.record.traces if trace.loading]
    if known(told):
        return fmean(known(told)) / 1000
    alone = case.around.diagnosis.alone if case.around.diagnosis else []
    return (mean(each.loading.hand_over_ms for each in alone if each.loading) or 0.0) / 1000


def _image_cpu(case: Case, load: float) -> Curve | None:
    diagnosis, node = case.around.diagnosis, need(case.record)
    points: list[tuple[float, float]] = []
    if diagnosis and diagnosis.alone_single:
        points.append((node.workers / node.usable, image_cpu_s([diagnosis.alone_single])))
    if diagnosis and diagnosis.alone:
        points.append((node.ranks * node.workers / node.usable, image_cpu_s(diagnosis.alone)))
    if cost := cost_of(trace.loading for trace in case.record.traces):
        points.append((load, cost.cpu_s))
    return Curve.through(points) if points and min(value for _, value in points) > 0 else None


def _trainer_cpu(case: Case, load: float) -> tuple[Curve | None, float]:
    """Of the run less its workers' stages, and of the training on batches that are there already: with what handing them over takes.

    That is the second that is returned: as with nobody training, but no more than the run itself took for it.
    """
    node, diagnosis, batch = need(case.record), case.around.diagnosis, case.record.config.batch_size
    told = all(trace.loading is not None and trace.loading.cpu_s for trace in case.record.traces)
    alone = _cpu_s(case.around.device, with_workers=True) if case.around.device else None
    beside = _cpu_s(case.record, with_workers=False) if told else None
    handing = batch * handing_s(diagnosis.alone) if diagnosis and diagnosis.alone and node.workers else 0.0
    if alone is None:
        return (Curve.through([(load, beside)]), 0.0) if beside is not None else (None, 0.0)
    if beside is None:
        return Curve.through([(node.trainers / node.usable, alone + handing)]), handing
    handing = min(handing, max(0.0, beside - alone))
    return Curve.through([(node.trainers / node.usable, alone + handing), (load, beside)]), handing


def _cpu_s(record: Record, *, with_workers: bool) -> float | None:
    """Seconds of a core a step, of a rank."""
    traces = record.traces
    if any(trace.cpu_s is None for trace in traces):
        return None
    used = fsum((trace.cpu_s or 0.0) - (0.0 if with_workers else worker_cpu_s(trace)) for trace in traces)
    return max(0.0, used) / sum(trace.steps for trace in traces)
