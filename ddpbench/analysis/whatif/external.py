"""What a question may need beyond one diagnosis: other loaders, and steps of another precision or batch, measured on the same devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddpbench.analysis.compare import same_devices
from ddpbench.analysis.controls import diagnosed
from ddpbench.analysis.inputs import Case
from ddpbench.analysis.whatif.measured import kept_up, step_spans
from ddpbench.record.diagnosis import BESIDE, DEVICE, Candidate
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Job, Record


@dataclass(frozen=True)
class Lent:
    """What others measured, or the diagnosis beside its trainings.

    ``candidates`` are by loader and the share that the GPU's own decoder decodes, None where nobody says which. ``steps`` are seconds,
    round by round, on batches that are there already, by precision, images a rank, and compile mode.
    """

    candidates: Mapping[tuple[str, float | None], Candidate] = field(default_factory=dict)
    steps: Mapping[tuple[str, int, str], Sequence[Sequence[float]]] = field(default_factory=dict)


def of_itself(case: Case) -> Lent:
    """What the diagnosis measured beside its trainings, and its step on batches that are there already."""
    diagnosis, device = case.around.diagnosis, case.around.device
    candidates = diagnosis.candidates if diagnosis else []
    return Lent(_by_name(candidates), {_key(device): step_spans(device)} if device else {})


def lent(job: Job, others: Sequence[Job] = ()) -> Lent:
    """What ``job`` itself measured of other settings, and what ``others`` add to it.

    Raises UsageError for one of them that is of another workload, or of other devices.
    """
    real = diagnosed(job) or job.records[0]
    candidates: list[Candidate] = []
    steps: dict[tuple[str, int, str], Sequence[Sequence[float]]] = {}
    for other in (*reversed(others), job):
        for record in other.records:
            _refuse_another(record, real, other is job)
            candidates += [_compared(record)] if record.alone else []
            if record.config.loader == SYNTHETIC and record.rounds and record.label in ("", DEVICE):
                steps[_key(record)] = step_spans(record)
        candidates += other.diagnosis.candidates if other.diagnosis else []
        if other is not job and other.diagnosis and other.diagnosis.alone:
            candidates.append(_diagnosed(other))
    return Lent(_by_name(candidates), steps)


def _by_name(candidates: Sequence[Candidate]) -> dict[tuple[str, float | None], Candidate]:
    """Of several that are alike the last."""
    return {(each.loader, each.hw_decoder_load): each for each in candidates}


def _key(record: Record) -> tuple[str, int, str]:
    return record.config.precision, record.config.batch_size, record.config.compile


def _compared(record: Record) -> Candidate:
    config = record.config
    return Candidate(loader=config.loader, workers=record.workers, hw_decoder_load=config.hw_decoder_load, alone=record.alone)


def _diagnosed(job: Job) -> Candidate:
    assert job.diagnosis is not None
    beside = [record for record in job.records if record.label == BESIDE and record.rounds]
    spans = [1000 * span for record in beside for each in step_spans(record) for span in each]
    real = diagnosed(job) or job.records[0]
    return Candidate(
        loader=job.diagnosis.loader,
        workers=real.workers,
        hw_decoder_load=real.config.hw_decoder_load,
        alone=job.diagnosis.alone,
        step_ms=spans,
        kept_up=kept_up([timed for record in beside for timed in record.rounds]),
    )


def _refuse_another(record: Record, real: Record, own: bool) -> None:
    if own:
        return
    here, there = real.config, record.config
    if (here.workload, here.image_size) != (there.workload, there.image_size):
        raise UsageError(
            f"records of {here.workload} at {here.image_size} px and {there.workload} at {there.image_size} px do not add up",
            "name records of one workload",
        )
    if not same_devices(record, real):
        raise UsageError("records of different devices, or of different numbers of them, do not add up", "name records of one machine")
