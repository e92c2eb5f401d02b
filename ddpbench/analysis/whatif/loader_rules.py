"""Another loader in the place of the one that was measured, or the same with another share of the decoding; and its copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from ddpbench.analysis.ranks import known
from ddpbench.analysis.whatif.assumptions import Assumption, Unmeasured
from ddpbench.analysis.whatif.batches import handing_s, image_cpu_s, of_turns, of_workers
from ddpbench.analysis.whatif.context import Patient
from ddpbench.analysis.whatif.curve import Curve
from ddpbench.analysis.whatif.measured import behind_s, copies_s, pageable_s, stolen_s
from ddpbench.analysis.whatif.state import Situation
from ddpbench.record.diagnosis import Alone, Candidate
from ddpbench.record.errors import UsageError
from ddpbench.record.loader_stats import Loading
from ddpbench.record.loaders import SYNTHETIC, LoaderSpec, spec_of


def loader(now: Situation, name: str, patient: Patient) -> Situation:
    """By what it was seen to give with nobody training; more than that only of loaders that leave the device alone."""
    if name == SYNTHETIC:
        raise UsageError("synthetic batches are no loader to change to", "the page of a diagnosis tells what the device alone can do")
    _refuse_impossible(spec_of(name), patient)
    how = patient.run.diagnose(loader=(name,))
    return _loaded_by(now, name, patient.lent.candidates.get((name, None)), how, patient)


def _refuse_impossible(wanted: LoaderSpec, patient: Patient) -> None:
    """Raises UsageError for one that no measurement would help: it does not read these files, or not on these devices."""
    record = patient.case.record
    if wanted.gpu and not patient.on_gpu:
        raise UsageError(f"{wanted.name} decodes on a GPU, and the ranks of the record are on processors", "--loader dali-cpu")
    if record.data is None or spec_of(record.config.loader).own:
        return
    if record.data.of_folders and "imagenet" not in wanted.datasets:
        raise UsageError(
            f"{wanted.name} keeps a whole set on the device, and this is {record.data.description}", "--loader dali-gpu, or torch-uint8"
        )
    if not record.data.of_folders and wanted.datasets == ("imagenet",):
        raise UsageError(f"{wanted.name} reads folders of images, and this is {record.data.description}", "--loader tensor")


def hw_decoder_load(now: Situation, share: float, patient: Patient) -> Situation:
    if not spec_of(now.loader).gpu:
        raise UsageError(f"{now.loader} decodes nothing on a GPU", "--hw-decoder-load goes with --loader dali-gpu")
    how = patient.run.diagnose(loader=(now.loader,), hw_decoder_load=(share,))
    candidate = patient.lent.candidates.get((now.loader, share))
    return _loaded_by(now, f"{now.loader} --hw-decoder-load {share:g}", candidate, how, patient)


def pin_memory(now: Situation, wanted: bool, patient: Patient) -> Situation:
    if not patient.on_gpu:
        raise UsageError("ranks on processors copy no batches", "leave --pin-memory out")
    if wanted:
        config = patient.case.record.config
        saved = pageable_s(patient.case) * now.batch / config.batch_size * _wire(config.loader, now.loader)
        return replace(now, beside=True, longer=now.longer - saved)
    diagnosis = patient.case.around.diagnosis
    copies = diagnosis.copies if diagnosis else None
    if copies is None:
        raise Unmeasured("how fast batches are copied", patient.run.diagnose())
    pageable = now.batch * copies.bytes_per_image / copies.pageable
    return replace(now, beside=False, longer=now.longer + pageable).assuming(
        Assumption("from pageable memory nothing is copied beside the training", 0.03)
    )


def _loaded_by(now: Situation, named: str, candidate: Candidate | None, how: str, patient: Patient) -> Situation:
    if candidate is None or not candidate.alone:
        raise Unmeasured(f"what {named} gives and costs", how)
    if spec_of(candidate.loader).gpu and not candidate.step_ms:
        raise Unmeasured(f"what {named} takes from the training beside it", how)
    name, config = candidate.loader, patient.case.record.config
    loader = spec_of(name)
    told = [each.loading for each in candidate.alone if each.loading is not None]
    batches = None if loader.threaded or len(told) < len(candidate.alone) else of_workers([told], now.batch)
    made = batches or of_turns(candidate.alone, loader.makers(candidate.workers))
    image_cpu, trainer_cpu = _costs_of(now, candidate, patient)
    return replace(
        now,
        loader=name,
        workers=0 if loader.resident else candidate.workers if loader.threaded else config.workers or candidate.workers,
        made=made.rounds,
        reading=made.reading,
        load=now.ranks_a_node * candidate.workers / now.cores if now.cores else now.load,
        longer=_longer_beside(now, candidate, patient),
        hand_over=_hand_over(told),
        image_cpu=image_cpu,
        trainer_cpu=trainer_cpu,
        files_per_s=None if loader.resident else now.files_per_s,
    ).assuming(Assumption(f"{named} gives beside the training what it gave alone, less what the cores take from it", 0.05), *made.assumed)


def _hand_over(told: Sequence[Loading]) -> float:
    spans = known(each.hand_over_ms for each in told)
    return fmean(spans) / 1000 if spans else 0.0


def _longer_beside(now: Situation, candidate: Candidate, patient: Patient) -> float:
    """By how much a step on the device alone is longer with what the new loader takes of it: seen beside it, else as of the present one."""
    if patient.case.around.device is None:
        raise Unmeasured("a step on batches that are there already", patient.run.diagnose())
    now_on_device, on_device = spec_of(now.loader).on_device, spec_of(candidate.loader).on_device
    if on_device and candidate.step_ms:
        taken = max(0.0, fmean(candidate.step_ms) / 1000 - fmean(span for each in now.steps for span in each))
        return taken + behind_s(1.0 if candidate.kept_up is None else candidate.kept_up, now.batch, candidate.alone)
    taken = stolen_s(patient.case) if not (on_device or now_on_device) else 0.0
    return _wire(now.loader, candidate.loader) * (copies_s(patient.case) + pageable_s(patient.case)) + taken


def _wire(loader: str, other: str) -> float:
    """How many times as many bytes the batches of ``other`` are on their way to the device; 0 where either has no such way."""
    ours, theirs = spec_of(loader), spec_of(other)
    return 0.0 if ours.on_device or theirs.on_device else theirs.value_bytes / ours.value_bytes


def _costs_of(now: Situation, candidate: Candidate, patient: Patient) -> tuple[Curve | None, Curve | None]:
    """An image's costs as those of the loader of ``now``, times what they differ by with nobody training."""
    workers, present = _present(now, patient)
    if now.image_cpu is None or now.trainer_cpu is None or not present:
        return None, None
    times = image_cpu_s(candidate.alone) / image_cpu_s(present)
    more = now.batch * (_handing_s(candidate.loader, candidate.workers, candidate.alone) - _handing_s(now.loader, workers, present))
    return now.image_cpu.times(times), now.trainer_cpu.plus(max(more, -min(value for _, value in now.trainer_cpu.points)))


def _present(now: Situation, patient: Patient) -> tuple[int, Sequence[Alone]]:
    """The workers of the loader of ``now`` as it was measured, and what it gave with nobody training; nothing where it was not."""
    record, diagnosis = patient.case.record, patient.case.around.diagnosis
    if now.loader == record.config.loader:
        return record.workers, diagnosis.alone if diagnosis else []
    lent = patient.lent.candidates.get((now.loader, None))
    return (lent.workers, lent.alone) if lent else (0, [])


def _handing_s(name: str, workers: int, alone: Sequence[Alone]) -> float:
    """Nothing where the trainer makes its batches itself: what its thread takes then is making them."""
    return handing_s(alone) if spec_of(name).makers(workers) or spec_of(name).resident else 0.0
