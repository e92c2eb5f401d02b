"""Sentences about remedies: their names and reasons, what was predicted of them, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping

from ddpbench.analysis.remedies.remedy import (
    DataInMemory,
    FewerRanks,
    FewerWorkers,
    LargerBatch,
    MoreCores,
    MoreWorkers,
    PersistentWorkers,
    Remedy,
    RemedyCode,
)
from ddpbench.analysis.stats import Interval, PairedRatio
from ddpbench.analysis.whatif.outcome import PredictionOutcome, is_runnable
from ddpbench.record.diagnosis import SHM_DIR
from ddpbench.record.prediction import Prediction
from ddpbench.record.record import Record
from ddpbench.record.text import format_3sig, pluralize
from ddpbench.report.format import format_rounded, format_with_interval
from ddpbench.report.messages.phrases import device_noun
from ddpbench.report.messages.status import failure_reason
from ddpbench.report.messages.whatif import gain_text, missing_measurement_text

NAMES: Mapping[RemedyCode, str] = {
    "persistent-workers": "persistent_workers=True",
    "dataloader-with-workers": "a DataLoader with workers",
    "data-in-memory": "data in memory",
    "without-loader": "without a loader",
    "less-sync": "less to sync",
    "faster-compute": "nothing to do for the data; faster computing",
    "inspect-straggler": "what tells why",
    "list-processes": "who else is there",
    "more-evidence": "better evidence",
}
"""Names of remedies that are more than the flags of their scenario."""

REASONS: Mapping[RemedyCode, str] = {
    "no-workers": "a rank that makes its batches itself takes turns with nobody",
    "more-prefetch": "batches that are ready in advance bridge the time of a slow one",
    "dataloader-with-workers": (
        "the training process makes its batches itself, one after the other, and nobody makes the next one while it trains"
    ),
    "tensor-loader": "the whole set lies on the device, and is cropped and flipped a batch at a time",
    "torch-uint8-loader": "decodes with libjpeg-turbo and keeps bytes: fewer cores an image, and a quarter of the bytes to copy",
    "dali-cpu-loader": "threads in place of worker processes, and nothing to collate",
    "dali-gpu-loader": "decodes on the GPU: a few cores are enough, and the GPU shares its time",
    "more-hw-decoding": "the GPU's JPEG unit decodes nearly all images, and leaves its multiprocessors to training",
    "pinned-memory": "the GPU fetches batches itself from page-locked memory, while it trains",
    "without-loader": "what is left when no batch is loaded or copied",
    "cuda-graphs": "CUDA graphs: the host issues a step's kernels at once",
    "larger-batch": "more work for every kernel that is issued",
}
"""Why a remedy may help, without numbers; one whose name says it all has no reason."""

NOTHING_FASTER = "nothing that was tried is measurably faster"
NO_GAIN_PREDICTED = "no gain is predicted of anything that can be tried here"
"""Why the present setting stays."""


def remedy_name(remedy: Remedy, record: Record) -> str:
    """A few words, or flags to use, for a remedy of ``record``."""
    match remedy:
        case MoreWorkers() | FewerWorkers():
            return pluralize(remedy.workers, "worker")
        case MoreCores():
            workers = f" and {pluralize(remedy.workers, 'worker')}" if remedy.workers > record.workers else ""
            return f"{pluralize(remedy.cores, 'core')}{workers} a {device_noun(record.environment)}"
        case LargerBatch():
            return f"--batch-size {remedy.batch_size}"
        case FewerRanks():
            return f"at most {remedy.max_ranks_per_node} ranks a node"
    if remedy.code in NAMES:
        return NAMES[remedy.code]
    assert remedy.scenario is not None, "named by its flags"
    return remedy.scenario.flag_text


def remedy_reason(remedy: Remedy, record: Record) -> str:
    """Why ``remedy`` may help ``record``; empty if its name says it all."""
    match remedy:
        case MoreWorkers():
            with_what = " with the trainer process" if remedy.is_handoff_bound else ""
            needed = f"{remedy.workers_needed} would keep up{with_what}"
            return f"{needed}, and the cores have work for {remedy.max_useful_workers}{_ignored_workers_text(record)}"
        case FewerWorkers():
            crowd = f"{pluralize(remedy.workers_per_node, 'worker')} take turns on {pluralize(remedy.usable_cores, 'core')}"
            return f"{crowd}, and every turn costs{_ignored_workers_text(record)}"
        case MoreCores():
            device = device_noun(record.environment)
            return f"loads as fast as {'one trainer process hands over' if remedy.is_handoff_bound else f'the {device} trains'}"
        case DataInMemory():
            return _memory_text(remedy, record)
        case PersistentWorkers():
            return (
                f"at most {format_3sig(remedy.max_gain)}x: your DataLoader starts its workers anew for every epoch of "
                f"{format_3sig(remedy.epoch_s)} s, and {format_3sig(remedy.first_batch_s)} s pass until there is a batch, which also takes "
                "its time where they stay"
            )
    return REASONS.get(remedy.code, "")


def _ignored_workers_text(record: Record) -> str:
    """That a user-defined loader ignores --workers; empty if it does not."""
    return "" if record.honors_num_workers else f"; {record.config.loader} starts {record.workers} whatever --workers says"


def _memory_text(remedy: DataInMemory, record: Record) -> str:
    if remedy.dataset_bytes is None or remedy.shm_free_bytes is None:
        return "no file is waited for"
    size = f"its {format_3sig(remedy.dataset_bytes / 1e9)} GB"
    if not remedy.fits:
        return f"{size}; of {SHM_DIR} {format_3sig(remedy.shm_free_bytes / 1e9)} are free"
    return f"{size} fit in {SHM_DIR}" + (", where every node needs a copy" if record.environment.nodes > 1 else "")


def prediction_text(prediction: Prediction) -> str:
    """``predicted 1.42x (1.34 to 1.51)``, or what has to be measured first."""
    if prediction.gain is None or prediction.low is None or prediction.high is None:
        missing = prediction.missing_measurement
        return f"needs a measurement: {missing_measurement_text(missing) if missing else ''}"
    return f"predicted {gain_text(prediction.gain, prediction.low, prediction.high)}"


def outcome_text(outcome: PredictionOutcome) -> str:
    """The predicted gain, the measured one, and the error of the prediction."""
    foretold, ratio = prediction_text(outcome.prediction), outcome.measured
    short = f", in rounds that are {pluralize(outcome.missing_batches, 'batch', 'es')} short" if outcome.missing_batches else ""
    if outcome.failed:
        return f"{foretold}; failed: {failure_reason(outcome.failed)}"
    if ratio is None:
        return f"{foretold}; {'not tried' if is_runnable(outcome.prediction.scenario) else 'cannot be tried here'}"
    if not ratio.has_interval:
        return f"{foretold}; measured {format_rounded(ratio.center, 2)}x, too few rounds to tell"
    if outcome.is_wide:
        return f"{foretold}; measured {format_rounded(ratio.low, 2)}x to {format_rounded(ratio.high, 2)}x, too wide to compare{short}"
    held = f"{'inside' if outcome.is_inside else 'outside'}, {_prediction_error_text((outcome.prediction.gain or 1.0) / ratio.center - 1)}"
    came = "" if outcome.is_gain else ", a loss" if outcome.is_significant else ", no gain measured"
    return f"{foretold}; measured {gain_text(ratio.center, ratio.low, ratio.high)}, {held}{came}{short}"


def _prediction_error_text(error: float) -> str:
    """``9% too high``."""
    share = f"{100 * abs(error):.0f}%"
    return "0% off" if share == "0%" else f"{share} too {'high' if error > 0 else 'low'}"


def savings_text(gain: PairedRatio, baseline_samples_per_s: float, baseline: Record, unit: str) -> str:
    """Throughput gained, in ``unit``, and hours saved per day, with the interval of the gain."""
    hours = 24 * baseline.world_size
    device = "GPU-hours" if device_noun(baseline.environment) == "GPU" else "hours of a rank"
    more = Interval(*((times - 1) * baseline_samples_per_s for times in (gain.center, gain.low, gain.high)))
    saved = Interval(*((1 - 1 / times) * hours for times in (gain.center, gain.low, gain.high)))
    return f"{_format_rough(more)} {unit} more; {_format_rough(saved)} of {hours:,} {device} a day are saved for the same work"


def _format_rough(estimate: Interval) -> str:
    return format_with_interval(estimate.center, estimate.low, estimate.high, width_digits=1)
