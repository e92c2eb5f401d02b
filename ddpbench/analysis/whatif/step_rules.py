"""Another step on batches that are there already: of another precision, compiled, of more images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log2
from statistics import fmean

from ddpbench.analysis.controls import step_s
from ddpbench.analysis.whatif.assumptions import Assumption, Unmeasured
from ddpbench.analysis.whatif.batches import scaled
from ddpbench.analysis.whatif.context import Patient
from ddpbench.analysis.whatif.state import Situation
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import LaunchGap


def precision(now: Situation, name: str, patient: Patient) -> Situation:
    steps = _steps_lent(patient, name, now.batch, now.compile)
    if steps is None:
        how = patient.run.command(loader=(SYNTHETIC,), precision=(now.precision, name))
        raise Unmeasured(f"a step in {name}", how)
    return replace(now, precision=name, steps=steps).assuming(
        Assumption("copies and interference take as long beside another precision", 0.02)
    )


def compile_(now: Situation, mode: str, patient: Patient) -> Situation:
    """Of a step that waits for the host to launch its kernels; what fusing them gives is known of no model beforehand."""
    if (steps := _steps_lent(patient, now.precision, now.batch, mode)) is not None:
        return replace(now, compile=mode, steps=steps)
    gap = _launch_gap(now, patient)
    if mode != "reduce-overhead" or now.compile != "off" or gap is None:
        how = patient.run.command(loader=(SYNTHETIC,), compile=(now.compile, mode))
        raise Unmeasured(f"a step compiled by {mode}" if mode != "off" else "a step that is not compiled", how)
    kernels = gap.kernel_ms / gap.step_ms
    return replace(now, compile=mode, steps=[[kernels * span for span in each] for each in now.steps]).assuming(
        Assumption("CUDA graphs leave no pause between kernels, and the kernels as they are", 0.1)
    )


def batch_size(now: Situation, images: int, patient: Patient) -> Situation:
    times = images / now.batch
    steps = _steps_lent(patient, now.precision, images, now.compile)
    if steps is not None:
        assumed = Assumption("a worker, and its copy, take as long for an image")
    else:
        steps = [[_of_more(span, times, now, patient) for span in each] for each in now.steps]
        assumed = Assumption("an image takes the device and the workers as long, and gradient sync a step", 0.04 * abs(log2(times)))
    trainer_cpu = now.trainer_cpu
    if trainer_cpu is not None:  # a GPU's trainer issues as many kernels, and hands more over; on processors it computes for the step
        longer = fmean(span for each in steps for span in each) / fmean(span for each in now.steps for span in each)
        trainer_cpu = trainer_cpu.plus((times - 1) * now.handing) if patient.on_gpu else trainer_cpu.times(longer)
    return replace(
        now,
        batch=images,
        steps=steps,
        longer=times * now.longer,
        made=scaled(now.made, times),
        hand_over=times * now.hand_over,
        trainer_cpu=trainer_cpu,
        handing=times * now.handing,
    ).assuming(assumed)


def _steps_lent(patient: Patient, precision: str, batch: int, compile: str) -> Sequence[Sequence[float]] | None:
    """Steps that were measured; None too where the run has none beside which they could stand."""
    return patient.lent.steps.get((precision, batch, compile)) if patient.case.around.device else None


def _launch_gap(now: Situation, patient: Patient) -> LaunchGap | None:
    """What was seen of the kernels of a step like those of ``now``."""
    device, config = patient.case.around.device, patient.case.record.config
    as_it_was = (now.precision, now.compile) == (config.precision, config.compile)
    return device.launch_gap if device and as_it_was else None


def _of_more(span: float, times: float, now: Situation, patient: Patient) -> float:
    """A step of ``times`` as many images: its sync stays, and so does the time to launch it, which kernels may come to fill."""
    around = patient.case.around
    device, no_sync = step_s(around.device), step_s(around.no_sync)
    sync = min(max(0.0, 1 - no_sync / device), 0.9) * span if device and no_sync else 0.0
    gap = _launch_gap(now, patient)
    if gap is not None and times > 1:
        return max(span, sync + times * (span - sync) * gap.kernel_ms / gap.step_ms)
    return sync + times * (span - sync)
