"""What helps a run that its loader holds back: each cure with what the formulas predict of it, and the command that tries it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil
from shlex import quote

from ddpbench.analysis.case import Case
from ddpbench.analysis.command import Rerun
from ddpbench.analysis.evidence import BINDING
from ddpbench.analysis.pipeline.rates import workers_that_fit
from ddpbench.analysis.pipeline.stealing import decodes_on_device
from ddpbench.analysis.pipeline.supply import Supply, supply
from ddpbench.analysis.words import about, device
from ddpbench.record.record import Record
from ddpbench.record.verdict import Verdict

UINT8_GAIN = 1.6
"""How many times the images that PIL and float32 transforms load from a core libjpeg-turbo and uint8 transforms load at least.

Measured on one process: 730 images/s a core against 450, and 0.07 ms an image to collate against 0.41.
"""

WORTH_IT = 1.05
"""A predicted gain below this is none that anybody would notice."""

IN_MEMORY = "/dev/shm"
"""A file system that is memory."""

MOST_OF_MEMORY = 0.5
"""Of what is free there, what a data set may take: workers hand their batches over in the rest, and programs live in it."""


@dataclass(frozen=True)
class Cure:
    """``images_per_s`` is what a rank is predicted to reach; None where only a trial can tell.

    ``command`` tries it beside what was run; empty where it cannot be tried here.
    """

    name: str
    why: str
    images_per_s: float | None = None
    command: str = ""


def loader_cures(run: Rerun, case: Case, found: Verdict) -> list[Cure]:
    """Those that apply, the ones for the verdict's own cause first; without those that the formulas predict no gain of."""
    patient = _Patient(run, case, supply(case))
    named = OF_CAUSE.get(found.cause, ()) if found.kind == "data-bound" else OF_KIND[found.kind]
    chosen = [cure for each in dict.fromkeys((*named, *(GENERAL if found.kind == "data-bound" else ()))) if (cure := each(patient))]
    return [cure for cure in chosen if cure.images_per_s is None or cure.images_per_s >= WORTH_IT * patient.given.given_rate]


@dataclass(frozen=True)
class _Patient:
    run: Rerun
    case: Case
    given: Supply

    @property
    def record(self) -> Record:
        return self.case.record

    @property
    def on(self) -> str:
        return device(self.record)

    @property
    def reads_jpegs(self) -> bool:
        return self.record.data is not None and "JPEG" in self.record.data.description

    def reaches(self, *limits: float | None) -> float | None:
        """The least of the device's rate and ``limits``; None where one of these is not known, or such limits do not explain the run."""
        there = [limit for limit in limits if limit is not None]
        if len(there) < len(limits) or not (self.given.explained or self.given.wait_share < BINDING):
            return None
        return min(self.given.device_rate, *there)


def more_workers(patient: _Patient) -> Cure | None:
    given, config = patient.given, patient.record.config
    if given.workers_wanted is None or given.workers_of_use is None or given.worker_s is None or given.contended:
        return None
    workers = min(given.workers_wanted, given.workers_of_use)
    if workers <= given.workers:
        return None
    return Cure(
        f"{workers} workers",
        f"{given.workers_wanted} would keep up, and the cores have work for {given.workers_of_use}",
        patient.reaches(workers / given.worker_s, given.by_cores),
        patient.run.command(workers=(config.workers, workers)),
    )


def fewer_workers(patient: _Patient) -> Cure | None:
    """As many as the cores keep busy; by their number where costs are not known."""
    given, config = patient.given, patient.record.config
    workers = given.workers_of_use or max(1, workers_that_fit(given.cores, given.trainers, given.ranks))
    if not given.contended or workers >= given.workers:
        return None
    return Cure(
        f"{workers} worker{'s' * (workers > 1)}",
        f"{given.ranks * given.workers} workers take turns on {about(given.cores)} cores, and every turn costs",
        None,
        patient.run.command(workers=(config.workers, workers)),
    )


def more_cores(patient: _Patient) -> Cure | None:
    given = patient.given
    wanted = given.cores_wanted
    if wanted is None or given.ranks * wanted <= given.cores:
        return None
    return Cure(
        f"{ceil(wanted)} cores a {patient.on}",
        f"loading as fast as the {patient.on} trains takes so many; here each has {about(given.cores / given.ranks)}",
        given.device_rate,
    )


def tensor(patient: _Patient) -> Cure | None:
    """For sets that fit in memory: none of their samples needs a process of its own."""
    record = patient.record
    if record.config.loader not in ("torch", "torch-uint8") or record.data is None or patient.reads_jpegs:
        return None
    return Cure(
        "--loader tensor",
        "the whole set lies on the device, and is cropped and flipped a batch at a time",
        patient.given.device_rate,
        patient.run.command(loader=(record.config.loader, "tensor")),
    )


def torch_uint8(patient: _Patient) -> Cure | None:
    given = patient.given
    if patient.record.config.loader != "torch" or not patient.reads_jpegs:
        return None
    predicted = None
    if given.image_s and given.worker_s and given.workers:
        predicted = patient.reaches(given.cores_give(given.image_s / UINT8_GAIN), UINT8_GAIN * given.workers / given.worker_s)
    return Cure(
        "--loader torch-uint8",
        f"decodes with libjpeg-turbo and keeps bytes: about {UINT8_GAIN} times as many images a core, a quarter of the bytes to copy",
        predicted,
        patient.run.command(loader=("torch", "torch-uint8")),
    )


def dali_cpu(patient: _Patient) -> Cure | None:
    loader = patient.record.config.loader
    if loader not in ("torch", "torch-uint8", "dali-gpu") or not patient.reads_jpegs:
        return None
    return Cure(
        "--loader dali-cpu",
        "threads in place of worker processes, and nothing to collate",
        None,
        _install_dali(patient.record) + patient.run.command(loader=(loader, "dali-cpu")),
    )


def dali_gpu(patient: _Patient) -> Cure | None:
    record = patient.record
    loader = record.config.loader
    if loader not in ("torch", "torch-uint8", "dali-cpu") or not patient.reads_jpegs or record.environment.device_type != "cuda":
        return None
    return Cure(
        "--loader dali-gpu",
        "decodes on the GPU: a few cores are enough, and the GPU shares its time",
        None,
        _install_dali(record) + patient.run.command(loader=(loader, "dali-gpu")),
    )


def less_on_the_decoder(patient: _Patient) -> Cure | None:
    """More of the decoding by the GPU's own unit for it, which training does not use."""
    if not decodes_on_device(patient.record):
        return None
    return Cure(
        "--hw-decoder-load 0.99",
        "the GPU's JPEG unit decodes nearly all images, and leaves its multiprocessors to training",
        None,
        patient.run.command(hw_decoder_load=(patient.record.config.hw_decoder_load or 0.65, 0.99)),
    )


def data_in_memory(patient: _Patient) -> Cure | None:
    diagnosis, given = patient.case.around.diagnosis, patient.given
    files, directory = diagnosis.storage if diagnosis else None, patient.record.config.data_dir
    predicted = None
    if given.cost and given.worker_s and given.workers:
        predicted = patient.reaches(given.workers / max(given.worker_s - given.cost.read_wait_s, 1e-9), given.by_cores)
    if files is None:
        return Cure("data in memory", "no file is waited for", predicted)
    gigabytes = files.files * files.bytes_per_file / 1e9
    room = min((each.shm_free_bytes or 0 for each in diagnosis.surroundings), default=0) / 1e9 if diagnosis else 0.0
    if directory is None or gigabytes > MOST_OF_MEMORY * room:
        return Cure("data in memory", f"its {about(gigabytes)} GB; of {IN_MEMORY} {about(room)} are free", predicted)
    if patient.record.environment.nodes > 1:
        return Cure("data in memory", f"its {about(gigabytes)} GB fit in {IN_MEMORY}, where every node needs a copy", predicted)
    copied = f"{IN_MEMORY}/ddpbench-data"
    return Cure(
        "data in memory",
        f"its {about(gigabytes)} GB fit in {IN_MEMORY}",
        predicted,
        f"cp -r {quote(directory)} {copied} && {patient.run.command(data_dir=(copied,))}",
    )


def prefetch(patient: _Patient) -> Cure | None:
    config = patient.record.config
    if not config.workers:
        return None
    return Cure(
        f"--prefetch {2 * config.prefetch}",
        "batches that are ready in advance bridge the time of a slow one",
        None,
        patient.run.command(prefetch=(config.prefetch, 2 * config.prefetch)),
    )


def pinned(patient: _Patient) -> Cure | None:
    if patient.record.config.pin_memory or patient.record.environment.device_type != "cuda":
        return None
    return Cure(
        "--pin-memory",
        "the GPU fetches batches itself from page-locked memory, while it trains",
        None,
        patient.run.command(pin_memory=(False, True)),
    )


def without_loader(patient: _Patient) -> Cure | None:
    """What the loader costs altogether: the same beside a batch that is there already."""
    loader = patient.record.config.loader
    if loader == "synthetic":
        return None
    command = patient.run.command(loader=(loader, "synthetic"))
    return Cure("without a loader", "what is left when no batch is loaded or copied", None, command)


Offer = Callable[[_Patient], Cure | None]

GENERAL: tuple[Offer, ...] = (tensor, more_workers, dali_gpu, torch_uint8, dali_cpu, more_cores)
"""What may help whatever the cause."""

OF_CAUSE: dict[str, tuple[Offer, ...]] = {
    "too-few-workers": (more_workers,),
    "oversubscribed": (fewer_workers,),
    "storage": (data_in_memory, more_workers, prefetch),
    "hand-over": (tensor, torch_uint8, dali_cpu),
    "head-of-line": (prefetch, more_workers),
}

OF_KIND: dict[str, tuple[Offer, ...]] = {
    "loader-steals-cpu": (tensor, fewer_workers, dali_gpu, torch_uint8, more_cores),
    "loader-steals-gpu": (less_on_the_decoder, dali_cpu),
    "host-to-device-bound": (pinned, torch_uint8, without_loader),
}


def _install_dali(record: Record) -> str:
    software = record.environment.software
    if software.dali:
        return ""
    return f"pip install nvidia-dali-cuda{'120' if (software.cuda or '').startswith('12') else '130'} && "


def first_command(cures: Iterable[Cure]) -> str:
    return next((cure.command for cure in cures if cure.command), "")
