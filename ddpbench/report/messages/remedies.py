"""Sentences about remedies: names, reasons, predicted and measured gains."""

from __future__ import annotations

from collections.abc import Mapping

from ddpbench.record.diagnosis import SHM_DIR, Diagnosis
from ddpbench.record.loaders import loader_spec
from ddpbench.record.prediction import Scenario
from ddpbench.record.record import Record
from ddpbench.record.remedy import (
    AdviceCode,
    DataInMemory,
    DecodeOnDevice,
    DecodeOnGpu,
    FewerRanks,
    FewerWorkers,
    LargerBatch,
    MoreCores,
    MoreWorkers,
    PersistentWorkers,
    Remedy,
    RemedyCode,
    Worth,
)
from ddpbench.record.text import format_3sig, pluralize
from ddpbench.record.verdict import ChangeDataLoader, ReduceRanks
from ddpbench.report.format import format_rounded, format_with_interval
from ddpbench.report.messages.phrases import device_noun
from ddpbench.report.messages.predictions import gain_text, missing_measurement_text
from ddpbench.report.messages.sample_comparison import comparison_text
from ddpbench.report.messages.shared_handles import shared_text
from ddpbench.report.messages.verdict import next_step_text
from ddpbench.report.messages.worker_memory import room_text

NAMES: Mapping[RemedyCode, str] = {
    "persistent-workers": "persistent_workers=True",
    "dataloader-with-workers": "DataLoader with num_workers > 0",
    "data-in-memory": "data in memory",
    "pinned-memory-and-worker": "num_workers=1, pin_memory=True",
    "decode-on-device": 'decode_jpeg(..., device="cuda")',
    "without-loader": "no loader",
    "fast": "--fast",
    "less-sync": "cheaper gradient sync",
    "even-batches": "batches of like sizes on all ranks",
    "faster-compute": "faster compute, not faster data loading",
    "inspect-straggler": "inspect the straggler",
    "list-processes": "list other processes",
    "more-evidence": "more evidence",
}
"""Names of remedies that are more than the flags of their scenario."""

REASONS: Mapping[RemedyCode, str] = {
    "all-cores-workers": "as many workers as cores and memory allow: what to try first where no gain can be predicted",
    "no-workers": "loading in the trainer process avoids contention with workers",
    "more-prefetch": "prefetched batches hide a slow one",
    "out-of-order": "a late batch holds up no other; the order of the batches is no longer reproducible",
    "dataloader-with-workers": "the trainer process loads each batch itself and prefetches none while it trains",
    "more-hw-decoding": "the GPU's JPEG unit decodes nearly all images and frees the SMs for training",
    "ready-indices": "the trainer process draws the indices of every batch while it waits for it, and workers take nothing of that over",
    "resident-data": "data stay in the memory of the device, where a batch is read at once, without workers",
    "pinned-memory": "copies from pinned memory overlap training",
    "pinned-memory-and-worker": "not predicted; without workers, the trainer process would pin each batch itself and wait for it",
    "even-batches": "not predicted; for example a sampler that sorts samples by length into the batches of one step",
    "without-loader": "upper limit: no batch is loaded or copied",
    "fast": "fused kernels move fewer bytes, and CUDA graphs launch all kernels of a step at once",
    "cuda-graphs": "CUDA graphs launch all kernels of a step at once",
    "larger-batch": "more work per launched kernel",
}
"""Why a remedy may help, without numbers; self-explanatory ones have no reason."""

LOADER_REASONS: Mapping[str, str] = {
    "tensor": "the whole dataset is on the device, cropped and flipped per batch",
    "torch-uint8": "decodes with libjpeg-turbo and stays in uint8: less CPU time per image, a quarter of the bytes to copy",
    "dali-cpu": "threads instead of worker processes, no collate",
    "dali-gpu": "decodes on the GPU: needs few cores, but takes GPU time",
}
"""Why a loader may help, by its name; without an entry, its ``LoaderSpec.help``."""

TRIED_WITHOUT_PREDICTION = "tried without a prediction"
ADVICE: Mapping[AdviceCode, str] = {
    "change": "",
    "screened": "",
    "keep-nothing-faster": "the current settings: no trial is measurably faster",
    "keep-too-noisy": "the current settings: the trials vary too much to tell; a quiet machine or a longer --time-limit helps",
    "keep-changes-numbers": "the current settings: what computes faster changes numbers, which only you can decide",
    "keep-other-losses": "the current settings: what computes faster changes the losses of the same steps more than rounding does",
    "keep-no-gain-predicted": "the current settings: no remedy that can be tried here has a predicted gain",
    "undecided-no-trial-worked": "undecided: no trial worked, as the remedies below say",
    "undecided-other-samples": "undecided: more workers may read other samples, and nothing else could be tried here",
    "undecided-nothing-to-try": "undecided: no remedy could be tried here",
}
"""What to use if no trial has gained anything."""


def remedy_name(remedy: Remedy, record: Record) -> str:
    """A few words, or flags to use, for a remedy of ``record``; for a script, the call of its DataLoader."""
    if remedy.change is not None:
        return next_step_text(remedy.change)
    if record.script is not None and remedy.code == "cuda-graphs":
        return 'torch.compile(model, mode="reduce-overhead")'
    match remedy:
        case MoreWorkers() | FewerWorkers():
            return pluralize(remedy.workers, "worker")
        case MoreCores():
            workers = f" and {pluralize(remedy.workers, 'worker')}" if remedy.workers > record.workers else ""
            return f"{pluralize(remedy.cores, 'core')}{workers} per {device_noun(record.environment)}"
        case LargerBatch():
            return f"--batch-size {remedy.batch_size}"
        case FewerRanks():
            return next_step_text(ReduceRanks(remedy.max_ranks_per_node))
        case PersistentWorkers(is_rebuilt=True):
            return "one DataLoader for all epochs, with persistent_workers=True"
    if remedy.code in NAMES:
        return NAMES[remedy.code]
    assert remedy.scenario is not None, "named by its flags"
    return remedy.scenario.flag_text


def remedy_room(remedy: Remedy, record: Record, diagnosis: Diagnosis | None) -> str:
    """What memory keeps ``remedy`` to fewer workers than the cores could keep busy, and how to make room; empty if nothing does."""
    memory = diagnosis.worker_memory if diagnosis else None
    if not (isinstance(remedy, MoreWorkers) and remedy.wanted_workers and remedy.limited_by and memory):
        return ""
    return room_text(remedy.limited_by, remedy.workers, remedy.wanted_workers, record.config.prefetch, memory)


def remedy_reason(remedy: Remedy, record: Record, diagnosis: Diagnosis | None = None) -> str:
    """Why ``remedy`` may help ``record``, or cannot be tried; empty if its name is self-explanatory."""
    if isinstance(remedy.change, ChangeDataLoader) and remedy.change.shared_handles:
        return shared_text(remedy.change.shared_handles)
    if remedy.reads_other_samples and record.script is not None and record.script.sample_comparison is not None:
        return comparison_text(record.script.sample_comparison)
    match remedy:
        case MoreWorkers():
            target = " with the trainer process" if remedy.is_handoff_bound else ""
            needed = f"{remedy.workers_needed} would keep up{target}"
            cores = f"{needed}; the cores can keep {remedy.max_useful_workers} busy{_ignored_workers_text(record)}"
            room = remedy_room(remedy, record, diagnosis)
            return f"{cores}; {room}" if room else cores
        case FewerWorkers():
            oversubscribed = f"{pluralize(remedy.workers_per_node, 'worker')} share {pluralize(remedy.usable_cores, 'core')}"
            return f"{oversubscribed}; context switches cost time{_ignored_workers_text(record)}"
        case MoreCores():
            device = device_noun(record.environment)
            return f"loads as fast as {'one trainer process receives batches' if remedy.is_handoff_bound else f'the {device} trains'}"
        case DataInMemory():
            return _memory_text(remedy, record)
        case PersistentWorkers():
            epoch_s, first_batch_s = format_3sig(remedy.epoch_s), format_3sig(remedy.first_batch_s)
            if record.script is not None:
                why = "the script creates its loader again" if remedy.is_rebuilt else "workers start again"
                return f"{why} for every epoch of {epoch_s} s, which takes {first_batch_s} s of it"
            return (
                f"at most {format_3sig(remedy.max_gain)}x: your DataLoader restarts its workers every epoch of {epoch_s} s; "
                f"the first batch takes {first_batch_s} s, in part even with persistent workers"
            )
        case DecodeOnGpu():
            return pixels_text(remedy.mean_difference, remedy.max_difference)
        case DecodeOnDevice():
            return _device_decoding_text(remedy, record)
        case Remedy(code="other-loader", scenario=Scenario(loader=str(loader))):
            return LOADER_REASONS.get(loader) or loader_spec(loader).help
    return REASONS.get(remedy.code, "")


def pixels_text(mean: float, most: float) -> str:
    """How much a GPU that decodes changes pixels of 0 to 255."""
    return f"changes pixels: by {format_rounded(mean, 2)} of 255 on average, by {most:.0f} at most; validation keeps its own decoder"


def _ignored_workers_text(record: Record) -> str:
    """That a user-defined loader ignores --workers; empty if it does not."""
    return "" if record.honors_num_workers else f"; {record.config.loader} ignores --workers and starts {record.workers}"


def _memory_text(remedy: DataInMemory, record: Record) -> str:
    if remedy.dataset_bytes is None or remedy.shm_free_bytes is None:
        return "no waiting for file reads"
    size = f"dataset of {format_3sig(remedy.dataset_bytes / 1e9)} GB"
    if not remedy.fits:
        return f"{size}, but only {format_3sig(remedy.shm_free_bytes / 1e9)} GB free in {SHM_DIR}"
    return f"{size} fits in {SHM_DIR}" + (", one copy per node" if record.environment.nodes > 1 else "")


def _device_decoding_text(remedy: DecodeOnDevice, record: Record) -> str:
    low, high = format_3sig(remedy.low), format_3sig(remedy.high)
    return (
        f"expected {low} to {high} {record.sample_unit}s/s per {device_noun(record.environment)}; the "
        f"dataset would return the files' bytes; the GPU alone decodes and resizes {format_3sig(remedy.decoding_rate)} of them per second"
    )


def predicted_gain_text(remedy: Remedy) -> str:
    """``1.42x (1.34 to 1.51)``; ``3.3x to 4.8x`` if the gain is bounded only; empty without a prediction before the trial."""
    if isinstance(remedy, DecodeOnDevice) and remedy.gain is not None:
        return f"{format_rounded(remedy.gain, 2)}x to {format_rounded(remedy.gain * remedy.high / remedy.low, 2)}x"
    found = remedy.prediction
    if found is None or found.gain is None or found.low is None or found.high is None or found.after_trial:
        return ""
    return gain_text(found.gain, found.low, found.high)


def measured_gain_text(remedy: Remedy) -> str:
    """The measured gain, and whether it lies inside the predicted interval; or why there is none. Empty if nothing was predicted."""
    gain = remedy.measured
    if remedy.failure:
        return f"failed: {remedy.failure}"
    if gain is None:
        if remedy.prediction is None and remedy.gain is None:
            return ""
        return "not tried" if remedy.can_be_tried else "cannot be tried here"
    if not gain.has_interval:
        return f"{format_rounded(gain.center, 2)}x, too few rounds for an interval"
    if remedy.is_wide:
        effect = ", a gain" if remedy.is_gain else ""
        return f"{format_rounded(gain.low, 2)}x to {format_rounded(gain.high, 2)}x{effect}, too wide to compare"
    effect = "" if remedy.is_gain else ", a loss" if remedy.is_significant else ", no gain"
    return f"{gain_text(gain.center, gain.low, gain.high)}{_agreement_text(remedy)}{effect}"


def _agreement_text(remedy: Remedy) -> str:
    """Whether the gain lies inside the predicted interval; empty without a prediction before the trial."""
    found, measured = remedy.prediction, remedy.measured
    if found is None or found.after_trial or remedy.is_inside is None or measured is None:
        return ""
    return ", as predicted" if remedy.is_inside else f", {'less' if measured.center < (found.low or 0.0) else 'more'} than predicted"


def remedy_details(remedy: Remedy) -> str:
    """What the table of remedies has no room for: the error of the prediction or why there is none, and batches that are missing."""
    found, gain, details = remedy.prediction, remedy.measured, []
    if found is None:
        return ""
    if found.gain is None and (gain is not None or remedy.failure):
        details.append(TRIED_WITHOUT_PREDICTION)
    elif found.gain is None and (missing := found.missing_measurement):
        what = "not predicted: unknown" if missing.code == "unexplained-step" else "not measured:"
        details.append(f"{what} {missing_measurement_text(missing)}")
    elif found.after_trial and found.gain and found.low and found.high:
        details.append(f"predicted after the trial: {gain_text(found.gain, found.low, found.high)}")
    elif found.gain and gain is not None and remedy.is_inside is not None:
        details.append(f"prediction {_prediction_error_text(found.gain / gain.center - 1)}")
    if remedy.missing_batches:
        details.append(f"{pluralize(remedy.missing_batches, 'batch', 'es')} missing")
    return "; ".join(details)


def _prediction_error_text(error: float) -> str:
    """``9% too high``."""
    share = f"{100 * abs(error):.0f}%"
    return "0% off" if share == "0%" else f"{share} too {'high' if error > 0 else 'low'}"


def worth_text(worth: Worth, record: Record) -> str:
    """Throughput gained, with its interval, and hours saved per day by training the same number of samples."""
    device = "GPU-hours" if device_noun(record.environment) == "GPU" else "rank-hours"
    steps = " of training steps" if record.script is not None else ""
    gained = format_with_interval(worth.samples_per_s, worth.samples_per_s_low, worth.samples_per_s_high, width_digits=1)
    saved = f"{format_rounded(worth.saved_hours_per_day, 2)} of {worth.hours_per_day:,.0f} {device}/day{steps}"
    return f"{gained} {record.sample_unit}s/s more; saves {saved}"
