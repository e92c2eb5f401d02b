"""Sentences about remedies: names, reasons, predicted and measured gains."""

from __future__ import annotations

from collections.abc import Mapping

from ddpbench.analysis.remedies.remedy import (
    DataInMemory,
    DecodeOnDevice,
    FewerRanks,
    FewerWorkers,
    LargerBatch,
    MoreCores,
    MoreWorkers,
    PersistentWorkers,
    Remedy,
    RemedyCode,
)
from ddpbench.analysis.remedies.script import is_script_change, other_samples, pinned_memory_change, script_change, shared_in_workers
from ddpbench.analysis.stats import Interval, PairedRatio
from ddpbench.analysis.whatif.outcome import PredictionOutcome, is_runnable
from ddpbench.record.diagnosis import SHM_DIR, Diagnosis
from ddpbench.record.loaders import loader_spec
from ddpbench.record.prediction import FUSED, Prediction, Scenario
from ddpbench.record.record import Record
from ddpbench.record.text import format_3sig, pluralize
from ddpbench.record.verdict import ReduceRanks
from ddpbench.report.format import format_rounded, format_with_interval
from ddpbench.report.messages.phrases import device_noun
from ddpbench.report.messages.sample_comparison import comparison_text
from ddpbench.report.messages.shared_handles import shared_text
from ddpbench.report.messages.status import failure_reason
from ddpbench.report.messages.verdict import next_step_text
from ddpbench.report.messages.whatif import gain_text, missing_measurement_text
from ddpbench.report.messages.worker_memory import room_text

NAMES: Mapping[RemedyCode, str] = {
    "persistent-workers": "persistent_workers=True",
    "dataloader-with-workers": "DataLoader with num_workers > 0",
    "data-in-memory": "data in memory",
    "pinned-memory-and-worker": "num_workers=1, pin_memory=True",
    "decode-on-device": 'torchvision.io.decode_jpeg(..., device="cuda")',
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
    "all-cores-workers": "a worker for every core: what to try first where no gain can be predicted",
    "no-workers": "loading in the trainer process avoids contention with workers",
    "more-prefetch": "prefetched batches hide a slow one",
    "out-of-order": "a late batch holds up no other; the order of the batches is no longer reproducible",
    "dataloader-with-workers": "the trainer process loads each batch itself and prefetches none while it trains",
    "more-hw-decoding": "the GPU's JPEG unit decodes nearly all images and frees the SMs for training",
    "pinned-memory": "copies from pinned memory overlap training",
    "pinned-memory-and-worker": "not predicted; without workers, the trainer process would pin each batch itself and wait for it",
    "even-batches": "not predicted; for example a sampler that sorts samples by length into the batches of one step",
    "without-loader": "upper limit: no batch is loaded or copied",
    "fast": "fused kernels move fewer bytes, and CUDA graphs launch all kernels of a step at once",
    "fused-kernels": "BatchNorm, addition, ReLU and max-pool move fewer bytes in one kernel",
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
NOTHING_FASTER = "no trial is measurably faster"
TOO_NOISY = "the trials vary too much to tell; a longer --time-limit helps"
NO_GAIN_PREDICTED = "no remedy that can be tried here has a predicted gain"
"""Why the present setting stays."""

NO_TRIAL_WORKED = "no trial worked, as the remedies below say"
NOTHING_TRIED = "no remedy could be tried here"
"""Why there is no setting to recommend."""


def remedy_name(remedy: Remedy, record: Record) -> str:
    """A few words, or flags to use, for a remedy of ``record``; for a script, the call of its DataLoader."""
    if remedy.code == "fused-kernels":
        return next_step_text(script_change(FUSED, record))
    if record.script is not None and remedy.scenario is not None and is_script_change(remedy.scenario):
        return next_step_text(script_change(remedy.scenario, record))
    if record.script is not None and record.script.shared_handles and remedy.code == "pinned-memory-and-worker":
        return next_step_text(pinned_memory_change(record))
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


def remedy_reason(remedy: Remedy, record: Record, diagnosis: Diagnosis | None = None) -> str:
    """Why ``remedy`` may help ``record``, or cannot be tried; empty if its name is self-explanatory."""
    if remedy.scenario is not None and (shared := shared_in_workers(remedy.scenario, record)):
        return shared_text(shared)
    if remedy.scenario is not None and (compared := other_samples(remedy.scenario, record)):
        return comparison_text(compared)
    match remedy:
        case MoreWorkers():
            target = " with the trainer process" if remedy.is_handoff_bound else ""
            needed = f"{remedy.workers_needed} would keep up{target}"
            cores = f"{needed}; the cores can keep {remedy.max_useful_workers} busy{_ignored_workers_text(record)}"
            memory = diagnosis.worker_memory if diagnosis else None
            if remedy.wanted_workers and remedy.limited_by and memory:
                prefetch = record.config.prefetch
                return f"{cores}; {room_text(remedy.limited_by, remedy.workers, remedy.wanted_workers, prefetch, memory)}"
            return cores
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
        case DecodeOnDevice():
            return _device_decoding_text(remedy, record)
        case Remedy(code="other-loader", scenario=Scenario(loader=str(loader))):
            return LOADER_REASONS.get(loader) or loader_spec(loader).help
    return REASONS.get(remedy.code, "")


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
    assert remedy.gain is not None, "that of its lower rate"
    gain = f"{format_3sig(remedy.gain)}x to {format_3sig(remedy.gain * remedy.high / remedy.low)}x"
    return (
        f"expected {low} to {high} {record.sample_unit}s/s per {device_noun(record.environment)}, {gain}; cannot be tried here: the "
        f"dataset would return the files' bytes; the GPU alone decodes and resizes {format_3sig(remedy.decoding_rate)} of them per second"
    )


def prediction_text(prediction: Prediction) -> str:
    """``predicted 1.42x (1.34 to 1.51)``, or which measurement is missing."""
    if prediction.gain is None or prediction.low is None or prediction.high is None:
        missing = prediction.missing_measurement
        what = "not predicted: unknown" if missing and missing.code == "unexplained-step" else "not measured:"
        return f"{what} {missing_measurement_text(missing) if missing else ''}"
    return f"predicted{' after the trial' if prediction.after_trial else ''} {gain_text(prediction.gain, prediction.low, prediction.high)}"


def outcome_text(outcome: PredictionOutcome) -> str:
    """The predicted gain, the measured one, and the error of the prediction."""
    predicted, ratio = prediction_text(outcome.prediction), outcome.measured
    short = f", with {pluralize(outcome.missing_batches, 'batch', 'es')} missing" if outcome.missing_batches else ""
    if outcome.prediction.gain is None and (ratio is not None or outcome.failed):
        predicted = TRIED_WITHOUT_PREDICTION
    if outcome.failed:
        return f"{predicted}; failed: {failure_reason(outcome.failed)}"
    if ratio is None:
        return f"{predicted}; {'not tried' if is_runnable(outcome.prediction.scenario) else 'cannot be tried here'}"
    if not ratio.has_interval:
        return f"{predicted}; measured {format_rounded(ratio.center, 2)}x, too few rounds for an interval"
    if outcome.is_wide:
        measured = f"measured {format_rounded(ratio.low, 2)}x to {format_rounded(ratio.high, 2)}x{', a gain' if outcome.is_gain else ''}"
        return f"{predicted}; {measured}, too wide to compare{short}"
    effect = "" if outcome.is_gain else ", a loss" if outcome.is_significant else ", no gain measured"
    if outcome.prediction.gain is None:
        return f"{predicted}; measured {gain_text(ratio.center, ratio.low, ratio.high)}{effect}"
    error = _prediction_error_text((outcome.prediction.gain or 1.0) / ratio.center - 1)
    agreement = f"{'inside' if outcome.is_inside else 'outside'} the predicted interval (prediction {error})"
    return f"{predicted}; measured {gain_text(ratio.center, ratio.low, ratio.high)}, {agreement}{effect}{short}"


def _prediction_error_text(error: float) -> str:
    """``9% too high``."""
    share = f"{100 * abs(error):.0f}%"
    return "0% off" if share == "0%" else f"{share} too {'high' if error > 0 else 'low'}"


def savings_text(gain: PairedRatio, baseline_samples_per_s: float, baseline: Record, unit: str) -> str:
    """Throughput gained, in ``unit``, and hours saved per day, with the interval of the gain."""
    hours = 24 * baseline.world_size
    device = "GPU-hours" if device_noun(baseline.environment) == "GPU" else "rank-hours"
    gained = Interval(*((times - 1) * baseline_samples_per_s for times in (gain.center, gain.low, gain.high)))
    saved = Interval(*((1 - 1 / times) * hours for times in (gain.center, gain.low, gain.high)))
    return f"{_format_rough(gained)} {unit} more; saves {_format_rough(saved)} of {hours:,} {device} per day for the same work"


def _format_rough(estimate: Interval) -> str:
    return format_with_interval(estimate.center, estimate.low, estimate.high, width_digits=1)
