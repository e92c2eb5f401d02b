"""One change after the other, applied to a situation: what each makes of the times that were measured, and what it takes for granted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from statistics import fmean

import msgspec

from ddpbench.analysis.case import Case
from ddpbench.analysis.command import Rerun
from ddpbench.analysis.pipeline.experiments import step_s
from ddpbench.analysis.ranks import known
from ddpbench.analysis.whatif.assumed import Assumption, Unmeasured
from ddpbench.analysis.whatif.batches import image_cpu_s, of_threads, of_workers, scaled, taking_s
from ddpbench.analysis.whatif.curve import Curve
from ddpbench.analysis.whatif.lent import Lent
from ddpbench.analysis.whatif.measured import ON_DEVICE, THREADED, copies_s, pageable_s, shifted, stolen_s
from ddpbench.analysis.whatif.situation import Situation
from ddpbench.record.diagnosis import Alone
from ddpbench.record.errors import UsageError
from ddpbench.record.loading import Loading
from ddpbench.record.prediction import Change

WIRE = {"torch": 4, "torch-uint8": 1}
"""Bytes in which a value of a pixel crosses to the device."""

FELT = 0.1
"""Files for which a worker waits this share of its time come slower to others, if the storage has no more to give."""


@dataclass(frozen=True)
class Patient:
    """What is changed: a run, what was measured of it, and what other records lend."""

    run: Rerun
    case: Case
    lent: Lent

    @property
    def on_gpu(self) -> bool:
        return self.case.record.environment.device_type == "cuda"


def changed(before: Situation, change: Change, patient: Patient) -> Situation:
    """The situation after all of ``change``. Raises Unmeasured for what nobody measured, UsageError for what cannot be."""
    after = before
    for name, apply in CHANGES.items():
        asked = getattr(change, name)
        if asked is not None and asked != _present(name, after, patient):
            after = apply(after, asked, patient)
    return after


def _present(name: str, now: Situation, patient: Patient) -> object:
    there = {
        "workers": now.workers,
        "gpus": now.ranks,
        "cores_per_gpu": now.cores and now.cores / now.ranks_a_node,
        "data_in_memory": False,
    }
    return there[name] if name in there else getattr(patient.case.record.config, name)


def loader(now: Situation, name: str, patient: Patient) -> Situation:
    """By what it was seen to give with nobody training; more than that only of loaders that leave the device alone."""
    if name == "synthetic":
        raise UsageError("synthetic batches are no loader to change to", "the page of a diagnosis tells what the device alone can do")
    candidate, config = patient.lent.candidates.get(name), patient.case.record.config
    if candidate is None or not candidate.alone:
        raise Unmeasured(f"what {name} gives and costs", patient.run.diagnose(loader=(name,)))
    if name == "dali-gpu" and not candidate.step_ms:
        raise Unmeasured(f"what {name} takes from the training beside it", patient.run.diagnose(loader=(name,)))
    told = [each.loading for each in candidate.alone if each.loading is not None]
    batches = None if name in THREADED or len(told) < len(candidate.alone) else of_workers([told], now.batch)
    made = batches or of_threads(candidate.alone)
    steps = _steps_beside(now, name, candidate.step_ms, patient)
    image_cpu, trainer_cpu = _costs_of(now, candidate.alone, patient)
    return replace(
        now,
        loader=name,
        workers=0 if name == "tensor" else candidate.workers if name in THREADED else config.workers or candidate.workers,
        together=name in THREADED,
        made=made.rounds,
        reading=made.reading,
        steps=steps,
        hand_over=_hand_over(told) if told else 0.0,
        image_cpu=image_cpu,
        trainer_cpu=trainer_cpu,
    ).assuming(Assumption(f"{name} gives beside the training what it gave alone, less what the cores take from it", 0.05), *made.assumed)


def batch_size(now: Situation, images: int, patient: Patient) -> Situation:
    times = images / now.batch
    step = patient.lent.steps.get((patient.case.record.config.precision, images, patient.case.record.config.compile))
    if step is not None:
        steps, assumed = step, Assumption("a worker takes as long for an image")
    else:
        steps = [[_longer(span, times, patient) for span in each] for each in now.steps]
        assumed = Assumption("an image takes the device and the workers as long, and gradient sync a step", 0.04 * abs(log2(times)))
    trainer_cpu = now.trainer_cpu if patient.on_gpu or now.trainer_cpu is None else now.trainer_cpu.times(times)
    return replace(now, batch=images, steps=steps, made=scaled(now.made, times), trainer_cpu=trainer_cpu).assuming(assumed)


def precision(now: Situation, name: str, patient: Patient) -> Situation:
    config = patient.case.record.config
    step = patient.lent.steps.get((name, now.batch, config.compile))
    own = patient.lent.steps.get((config.precision, now.batch, config.compile))
    if step is None or own is None:
        how = patient.run.command(loader=("synthetic",), precision=(config.precision, name))
        raise Unmeasured(f"a step in {name}", how)
    extra = fmean(span for each in now.steps for span in each) - fmean(span for each in own for span in each)
    return replace(now, steps=shifted(step, max(0.0, extra))).assuming(
        Assumption("copies and interference take as long beside another precision", 0.02)
    )


def compile_(now: Situation, mode: str, patient: Patient) -> Situation:
    """Of a step that waits for the host to launch its kernels; what fusing them gives is known of no model beforehand."""
    config = patient.case.record.config
    if (step := patient.lent.steps.get((config.precision, now.batch, mode))) is not None:
        return replace(now, steps=step)
    around = patient.case.around.device
    gap = around.launch_gap if around else None
    if mode != "reduce-overhead" or config.compile != "off" or gap is None:
        raise Unmeasured(f"a step compiled by {mode}", patient.run.command(loader=("synthetic",), compile=(config.compile, mode)))
    kernels = gap.kernel_ms / gap.step_ms
    return replace(now, steps=[[kernels * span for span in each] for each in now.steps]).assuming(
        Assumption("CUDA graphs leave no pause between kernels, and the kernels as they are", 0.1)
    )


def data_in_memory(now: Situation, wanted: bool, patient: Patient) -> Situation:
    if now.reading is None:
        raise Unmeasured(f"how long {now.loader} waits for files", patient.run.diagnose(loader=("torch",)))
    return replace(now, made=scaled(now.made, 1 - now.reading), reading=0.0).assuming(Assumption("a file in memory is not waited for"))


def pin_memory(now: Situation, wanted: bool, patient: Patient) -> Situation:
    if not patient.on_gpu:
        raise UsageError("ranks on processors copy no batches", "leave --pin-memory out")
    if wanted:
        return replace(now, beside=True, steps=shifted(now.steps, -pageable_s(patient.case)))
    diagnosis = patient.case.around.diagnosis
    copies = diagnosis.copies if diagnosis else None
    if copies is None:
        raise Unmeasured("how fast batches are copied", patient.run.diagnose())
    pageable = now.batch * copies.bytes_per_image / copies.pageable
    return replace(now, beside=False, steps=shifted(now.steps, pageable)).assuming(
        Assumption("from pageable memory nothing is copied beside the training", 0.03)
    )


def workers(now: Situation, number: int, patient: Patient) -> Situation:
    if now.loader == "tensor":
        raise UsageError("the loader tensor has no workers", "leave --workers out")
    if now.together:
        if not number:
            raise UsageError(f"{now.loader} cannot do without threads", "--workers takes 1 or more")
        threads = Assumption("threads share the work on a batch evenly", 0.05)
        return replace(now, workers=number, made=scaled(now.made, max(1, now.workers) / number)).assuming(threads)
    if not number:
        alone = Assumption("the trainer takes as long for a batch as a worker")
        return replace(now, workers=0, beside=False).assuming(alone)
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
    among = Assumption(f"a step among {ranks} takes as long as among {now.ranks}", 0.03 * abs(log2(ranks / now.ranks)))
    return replace(now, ranks=ranks, ranks_a_node=ranks // nodes).assuming(among)


def cores_per_gpu(now: Situation, cores: float, patient: Patient) -> Situation:
    if now.cores is None:
        raise Unmeasured("what the run takes of the cores", patient.run.diagnose())
    same = Assumption("cores of the same kind")
    return replace(now, cores=cores * now.ranks_a_node, others=0.0).assuming(same)


CHANGES: Mapping[str, Callable[..., Situation]] = {
    "loader": loader,
    "batch_size": batch_size,
    "precision": precision,
    "compile": compile_,
    "data_in_memory": data_in_memory,
    "pin_memory": pin_memory,
    "workers": workers,
    "prefetch": prefetch,
    "gpus": gpus,
    "cores_per_gpu": cores_per_gpu,
}
"""By the fields of a Change, in the order in which they are applied: who loads before how many do."""

assert CHANGES.keys() == {field.name for field in msgspec.structs.fields(Change)}


def _longer(span: float, times: float, patient: Patient) -> float:
    """A step of ``times`` as many images: its sync stays, and so does the time to launch it, which kernels may come to fill."""
    around = patient.case.around
    device, no_sync = step_s(around.device), step_s(around.no_sync)
    sync = min(max(0.0, 1 - no_sync / device), 0.9) * span if device and no_sync and patient.on_gpu else 0.0
    gap = around.device.launch_gap if around.device else None
    if gap is not None and times > 1:
        return max(span, sync + times * (span - sync) * gap.kernel_ms / gap.step_ms)
    return sync + times * (span - sync)


def _hand_over(told: Sequence[Loading]) -> float:
    spans = known(each.hand_over_ms for each in told)
    return fmean(spans) / 1000 if spans else 0.0


def _steps_beside(now: Situation, name: str, step_ms: Sequence[float], patient: Patient) -> list[list[float]]:
    """On the device alone, then with what the new loader takes of it: seen beside it, else as the present one does."""
    device = step_s(patient.case.around.device)
    if device is None:
        raise Unmeasured("a step on batches that are there already", patient.run.diagnose())
    if name in ON_DEVICE and step_ms:
        return [[span / 1000 for span in step_ms]]
    present = fmean(span for each in now.steps for span in each)
    copies = copies_s(patient.case) if now.loader not in ON_DEVICE else 0.0
    wire = WIRE.get(name, 4) / WIRE.get(now.loader, 4) if name not in ON_DEVICE else 0.0
    taken = stolen_s(patient.case) if name not in ON_DEVICE and now.loader not in ON_DEVICE else 0.0
    return shifted(now.steps, device + wire * copies + taken - present)


def _costs_of(now: Situation, alone: Sequence[Alone], patient: Patient) -> tuple[Curve | None, Curve | None]:
    """An image's costs as those of the present loader, times what they differ by with nobody training."""
    diagnosis = patient.case.around.diagnosis
    present = diagnosis.alone if diagnosis else []
    if now.image_cpu is None or now.trainer_cpu is None or not present:
        return None, None
    times = image_cpu_s(alone) / image_cpu_s(present)
    more = now.batch * (taking_s(alone) - taking_s(present))
    return now.image_cpu.times(times), now.trainer_cpu.plus(max(more, -min(value for _, value in now.trainer_cpu.points)))
