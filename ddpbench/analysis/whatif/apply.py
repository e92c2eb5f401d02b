"""One change after the other, applied to a situation: what each makes of the times that were measured, and what it takes for granted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import log2

import msgspec

from ddpbench.analysis.controls import times_as_long
from ddpbench.analysis.whatif.assumptions import Assumption, Unmeasured
from ddpbench.analysis.whatif.batches import scaled
from ddpbench.analysis.whatif.context import Patient
from ddpbench.analysis.whatif.loader_rules import hw_decoder_load, loader, pin_memory
from ddpbench.analysis.whatif.state import Situation
from ddpbench.analysis.whatif.step_rules import batch_size, compile_, precision
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import spec_of
from ddpbench.record.prediction import Change

FELT = 0.1
"""Files for which a worker waits this share of its time come slower to others, if the storage has no more to give."""


def changed(before: Situation, change: Change, patient: Patient) -> Situation:
    """The situation after all of ``change``. Raises Unmeasured for what nobody measured, UsageError for what cannot be."""
    after = before
    for name, apply in CHANGES.items():
        asked = getattr(change, name)
        if asked is not None and asked != _present(name, after, patient):
            after = apply(after, asked, patient)
    return after


def unchanged(before: Situation, change: Change, patient: Patient) -> Change:
    """What of ``change`` is so already."""
    asked = {name: value for name in CHANGES if (value := getattr(change, name)) is not None}
    return Change(**{name: value for name, value in asked.items() if value == _present(name, before, patient)})


def _present(name: str, now: Situation, patient: Patient) -> object:
    config = patient.case.record.config
    there = {
        "loader": now.loader,
        "hw_decoder_load": config.hw_decoder_load,
        "precision": now.precision,
        "compile": now.compile,
        "batch_size": now.batch,
        "data_in_memory": False,
        "pin_memory": config.pin_memory if patient.on_gpu else None,
        "workers": now.workers,
        "prefetch": now.prefetch,
        "gpus": now.ranks,
        "cores_per_gpu": now.cores and now.cores / now.ranks_a_node,
    }
    return there[name]


def data_in_memory(now: Situation, wanted: bool, patient: Patient) -> Situation:
    if now.reading is None:
        raise Unmeasured(f"how long {now.loader} waits for files", patient.run.diagnose(loader=("torch",)) if now.loader != "torch" else "")
    storage = patient.case.around.diagnosis.storage if patient.case.around.diagnosis else None
    return replace(
        now, made=scaled(now.made, 1 - now.reading), reading=0.0, files_per_s=storage.warm if storage and now.files_per_s else None
    ).assuming(Assumption("a file in memory is not waited for"))


def workers(now: Situation, number: int, patient: Patient) -> Situation:
    if spec_of(now.loader).resident:
        raise UsageError(f"the loader {now.loader} has no workers", "leave --workers out")
    if spec_of(now.loader).threaded:
        if not number:
            raise UsageError(f"{now.loader} cannot do without threads", "--workers takes 1 or more")
        after = replace(now, workers=number)
        fewer = (max(1, now.workers) / now.makers) / (number / after.makers)  # in a team
        return replace(after, made=scaled(now.made, fewer)).assuming(Assumption("threads share the work on a batch evenly", 0.05))
    if not number:
        alone = Assumption("the trainer takes as long for a batch as a worker")
        trainer_cpu = now.trainer_cpu.plus(-now.handing) if now.trainer_cpu else None
        return replace(now, workers=0, beside=False, trainer_cpu=trainer_cpu, handing=0.0).assuming(alone)
    if now.workers and number > now.workers and (now.reading or 0.0) >= FELT:
        as_fast = Assumption("the storage answers each of more workers as fast", 0.1 * log2(number / now.workers))
        return replace(now, workers=number).assuming(as_fast)
    return replace(now, workers=number)


def prefetch(now: Situation, batches: int, patient: Patient) -> Situation:
    if not now.workers:
        raise UsageError("without workers nothing is fetched in advance", "--prefetch goes with --workers")
    return replace(now, prefetch=batches)


def gpus(now: Situation, ranks: int, patient: Patient) -> Situation:
    nodes = patient.case.record.environment.nodes
    if ranks % nodes:
        raise UsageError(f"--gpus {ranks} cannot be spread evenly over the {nodes} nodes of the record", f"a multiple of {nodes}")
    after = replace(now, ranks=ranks, ranks_a_node=ranks // nodes)
    if ranks == 1:
        return replace(after, steps=[[_without_sync(patient) * span for span in each] for each in now.steps])
    if now.ranks == 1:
        return after.assuming(Assumption(f"gradient sync among {ranks}, of which one has none, is hidden by the backward", 0.1))
    return after.assuming(Assumption(f"a step among {ranks} takes as long as among {now.ranks}", 0.03 * abs(log2(ranks / now.ranks))))


def _without_sync(patient: Patient) -> float:
    """How long a step without gradient sync is, as a fraction of one with it. Raises Unmeasured."""
    longer = times_as_long(patient.case.around.device, patient.case.around.no_sync)
    if longer is None:
        raise Unmeasured("a step without gradient sync", patient.run.diagnose())
    return 1 / longer.center


def cores_per_gpu(now: Situation, cores: float, patient: Patient) -> Situation:
    if now.cores is None:
        raise Unmeasured("what the run takes of the cores", patient.run.diagnose())
    same = Assumption("cores of the same kind, and nobody else on them")
    return replace(now, cores=cores * now.ranks_a_node, others=0.0).assuming(same)


CHANGES: Mapping[str, Callable[..., Situation]] = {
    "loader": loader,
    "hw_decoder_load": hw_decoder_load,
    "precision": precision,
    "compile": compile_,
    "batch_size": batch_size,
    "data_in_memory": data_in_memory,
    "pin_memory": pin_memory,
    "workers": workers,
    "prefetch": prefetch,
    "gpus": gpus,
    "cores_per_gpu": cores_per_gpu,
}
"""By the fields of a Change, in the order in which they are applied: who loads before how many do, what a step is before a larger one."""

assert CHANGES.keys() == {field.name for field in msgspec.structs.fields(Change)}
