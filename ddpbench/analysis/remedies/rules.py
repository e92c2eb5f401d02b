"""What can be done about a loader: each offer is one cure, with the change that it is and the command that tries it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from shlex import quote

from ddpbench.analysis.command import Rerun
from ddpbench.analysis.inputs import Case
from ddpbench.analysis.pipeline.interference import decodes_on_device
from ddpbench.analysis.pipeline.model import Supply
from ddpbench.analysis.pipeline.rates import workers_that_fit
from ddpbench.analysis.pipeline.worker_startup import start_of
from ddpbench.analysis.text import device_word
from ddpbench.record.diagnosis import SHARED_MEMORY
from ddpbench.record.loaders import DALI, SYNTHETIC, spec_of
from ddpbench.record.prediction import Change
from ddpbench.record.record import Record
from ddpbench.record.text import count, trimmed

WORTH_IT = 1.05
"""A predicted gain below this is none that anybody would notice."""

DALIS_SHARE, NEARLY_ALL = 0.65, 0.99
"""Of the JPEGs, what DALI leaves to the GPU's own decoder where nobody says how many; and as many as it can have."""

MOST_OF_MEMORY = 0.5
"""Of what is free there, what a data set may take: workers hand their batches over in the rest, and programs live in it."""


@dataclass(frozen=True)
class Cure:
    """``command`` tries it beside what was run; empty where it cannot be tried here.

    ``gain`` is predicted of ``change``, in times as many images/s; None where something has to be measured for it first.
    """

    name: str
    why: str
    command: str = ""
    change: Change | None = None
    gain: float | None = None


@dataclass(frozen=True)
class FedRun:
    """A run, what was measured of it, and what its loader gives."""

    run: Rerun
    case: Case
    given: Supply

    @property
    def record(self) -> Record:
        return self.case.record

    @property
    def on(self) -> str:
        return device_word(self.record.environment)

    @property
    def knows_costs(self) -> bool:
        """Whether it was seen what an image costs while fewer threads want the cores: a run alone tells it under its own load."""
        return self.case.around.diagnosis is not None

    @property
    def reads_jpegs(self) -> bool:
        return self.record.data is not None and self.record.data.of_jpegs


Offer = Callable[[FedRun], Cure | None]
"""None where the cure does not apply."""


def more_workers(fed: FedRun) -> Cure | None:
    given = fed.given
    if given.workers_wanted is None or given.workers_of_use is None or given.worker_s is None or given.contended:
        return None
    workers = min(given.workers_wanted, given.workers_of_use)
    if workers <= given.workers:
        return None
    with_what = " with the trainer process" if given.handed_too_slowly else ""
    why = f"{given.workers_wanted} would keep up{with_what}, and the cores have work for {given.workers_of_use}"
    return _other_workers(fed, workers, why, Change(workers=workers))


def fewer_workers(fed: FedRun) -> Cure | None:
    """As many as the cores keep busy; by their number where costs are not known."""
    given = fed.given
    workers = given.workers_of_use or max(1, workers_that_fit(given.cores, given.trainers, given.ranks))
    if not given.contended or workers >= given.workers:
        return None
    why = f"{count(given.ranks * given.workers, 'worker')} take turns on {count(given.cores, 'core')}, and every turn costs"
    return _other_workers(fed, workers, why, Change(workers=workers) if fed.knows_costs else None)


def _other_workers(fed: FedRun, workers: int, why: str, change: Change | None) -> Cure:
    """By a command, unless a function of somebody's own starts as many as it likes."""
    config = fed.record.config
    if not fed.record.heeds_workers:
        return Cure(count(workers, "worker"), f"{why}; {config.loader} starts {fed.given.workers} whatever --workers says")
    return Cure(count(workers, "worker"), why, fed.run.command(workers=(config.workers, workers)), change)


def in_the_trainer(fed: FedRun) -> Cure | None:
    """Where ranks compute on the cores that load, a worker may do no more than take turns with its trainer."""
    given, config = fed.given, fed.record.config
    if fed.record.environment.device_type != "cpu" or not given.workers or not given.contended or spec_of(config.loader).threaded:
        return None
    if not fed.knows_costs or not fed.record.heeds_workers:
        return None
    return Cure(
        "--workers 0",
        "a rank that makes its batches itself takes turns with nobody",
        fed.run.command(workers=(config.workers, 0)),
        Change(workers=0),
    )


def more_cores(fed: FedRun) -> Cure | None:
    given = fed.given
    wanted, whole = given.cores_wanted, given.whole_cores_wanted
    if wanted is None or whole is None or given.ranks * wanted <= given.cores:
        return None
    workers = max(given.workers, given.workers_wanted or 0)
    with_workers = f" and {count(workers, 'worker')}" if workers > given.workers else ""
    as_fast = "one trainer process hands over" if given.handed_too_slowly else f"the {fed.on} trains"
    return Cure(
        f"{count(whole, 'core')}{with_workers} a {fed.on}",
        f"loads as fast as {as_fast}",
        change=Change(cores_per_gpu=whole, workers=workers),
    )


def tensor(fed: FedRun) -> Cure | None:
    """For sets that fit in memory: none of their samples needs a process of its own."""
    record = fed.record
    if record.config.loader not in ("torch", "torch-uint8") or record.data is None or record.data.of_folders:
        return None
    return Cure(
        "--loader tensor",
        "the whole set lies on the device, and is cropped and flipped a batch at a time",
        fed.run.command(loader=(record.config.loader, "tensor")),
        Change(loader="tensor"),
    )


def torch_uint8(fed: FedRun) -> Cure | None:
    if fed.record.config.loader != "torch" or not fed.reads_jpegs:
        return None
    return Cure(
        "--loader torch-uint8",
        "decodes with libjpeg-turbo and keeps bytes: fewer cores an image, and a quarter of the bytes to copy",
        fed.run.command(loader=("torch", "torch-uint8")),
        Change(loader="torch-uint8"),
    )


def dali_cpu(fed: FedRun) -> Cure | None:
    loader = fed.record.config.loader
    if loader not in ("torch", "torch-uint8", "dali-gpu") or not fed.reads_jpegs:
        return None
    return Cure(
        "--loader dali-cpu",
        "threads in place of worker processes, and nothing to collate",
        _install_dali(fed.record) + fed.run.command(loader=(loader, "dali-cpu")),
        Change(loader="dali-cpu"),
    )


def dali_gpu(fed: FedRun) -> Cure | None:
    record = fed.record
    loader = record.config.loader
    if loader not in ("torch", "torch-uint8", "dali-cpu") or not fed.reads_jpegs or record.environment.device_type != "cuda":
        return None
    return Cure(
        "--loader dali-gpu",
        "decodes on the GPU: a few cores are enough, and the GPU shares its time",
        _install_dali(record) + fed.run.command(loader=(loader, "dali-gpu")),
        Change(loader="dali-gpu"),
    )


def less_on_the_decoder(fed: FedRun) -> Cure | None:
    """More of the decoding by the GPU's own unit for it, which training does not use."""
    share = fed.record.config.hw_decoder_load
    share = DALIS_SHARE if share is None else share
    if not decodes_on_device(fed.record) or share >= NEARLY_ALL:
        return None
    return Cure(
        f"--hw-decoder-load {NEARLY_ALL}",
        "the GPU's JPEG unit decodes nearly all images, and leaves its multiprocessors to training",
        fed.run.command(hw_decoder_load=(share, NEARLY_ALL)),
        Change(hw_decoder_load=NEARLY_ALL),
    )


def data_in_memory(fed: FedRun) -> Cure | None:
    diagnosis, change = fed.case.around.diagnosis, Change(data_in_memory=True)
    files, directory = diagnosis.storage if diagnosis else None, fed.record.config.data_dir
    if files is None:
        return Cure("data in memory", "no file is waited for", change=change)
    gigabytes = files.files * files.bytes_per_file / 1e9
    room = min((each.shm_free_bytes or 0 for each in diagnosis.surroundings), default=0) / 1e9 if diagnosis else 0.0
    if directory is None or gigabytes > MOST_OF_MEMORY * room:
        return Cure("data in memory", f"its {trimmed(gigabytes)} GB; of {SHARED_MEMORY} {trimmed(room)} are free", change=change)
    if fed.record.environment.nodes > 1:
        return Cure("data in memory", f"its {trimmed(gigabytes)} GB fit in {SHARED_MEMORY}, where every node needs a copy", change=change)
    copied = f"{SHARED_MEMORY}/ddpbench-data"
    return Cure(
        "data in memory",
        f"its {trimmed(gigabytes)} GB fit in {SHARED_MEMORY}",
        f"cp -r {quote(directory)} {copied} && {fed.run.command(data_dir=(copied,))}",
        change,
    )


def prefetch(fed: FedRun) -> Cure | None:
    config = fed.record.config
    if not fed.record.workers or not fed.record.heeds_workers:
        return None
    return Cure(
        f"--prefetch {2 * config.prefetch}",
        "batches that are ready in advance bridge the time of a slow one",
        fed.run.command(prefetch=(config.prefetch, 2 * config.prefetch)),
        Change(prefetch=2 * config.prefetch),
    )


def workers_that_stay(fed: FedRun) -> Cure | None:
    """For a DataLoader of somebody's own; those of ours stay."""
    record, diagnosis, given = fed.record, fed.case.around.diagnosis, fed.given
    if record.data is None or not record.data.starts_anew or diagnosis is None:
        return None
    start = start_of(record, given, diagnosis)
    most = min(start.most_gain, given.device_rate / given.given_rate) if start else 1.0
    if start is None or most < WORTH_IT:
        return None
    return Cure(
        "persistent_workers=True",
        f"at most {trimmed(most)}x: your DataLoader starts its workers anew for every epoch of {trimmed(start.epoch_s)} s, and "
        f"{trimmed(start.first_s)} s pass until there is a batch, which also takes its time where they stay",
    )


def workers_ahead(fed: FedRun) -> Cure | None:
    """For batches of somebody's own that the trainer makes itself."""
    record = fed.record
    if not spec_of(record.config.loader).own or record.workers:
        return None
    return Cure(
        "a DataLoader with workers",
        "the training process makes its batches itself, one after the other, and nobody makes the next one while it trains",
    )


def pinned(fed: FedRun) -> Cure | None:
    if fed.record.config.pin_memory or fed.record.environment.device_type != "cuda":
        return None
    return Cure(
        "--pin-memory",
        "the GPU fetches batches itself from page-locked memory, while it trains",
        fed.run.command(pin_memory=(False, True)),
        Change(pin_memory=True),
    )


def without_loader(fed: FedRun) -> Cure | None:
    """What the loader costs altogether: the same beside a batch that is there already."""
    loader = fed.record.config.loader
    if loader == SYNTHETIC:
        return None
    command = fed.run.command(loader=(loader, SYNTHETIC))
    return Cure("without a loader", "what is left when no batch is loaded or copied", command)


def _install_dali(record: Record) -> str:
    software = record.environment.software
    if software.dali:
        return ""
    for_cuda_13, for_cuda_12 = DALI.packages
    return f"pip install {for_cuda_12 if (software.cuda or '').startswith('12') else for_cuda_13} && "
