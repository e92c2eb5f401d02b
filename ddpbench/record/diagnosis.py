"""What the experiments around a training found out about its data pipeline, beside the trainings' own records."""

from __future__ import annotations

import msgspec

from ddpbench.record.loader_stats import CoreUse, Loading
from ddpbench.record.prediction import Prediction
from ddpbench.record.ranges import Amount, AtLeastOne, Count, Difference, Elapsed, Fraction, Milliseconds, NonZero, Seconds

SHARED_MEMORY = "/dev/shm"
"""A file system that is memory, where loader workers hand batches over."""

DEVICE, NO_SYNC, REPLAY, BESIDE, REAL = "device alone", "no gradient sync", "replay", "beside the loader", "as asked"
AGAIN, TRIED = "as asked, again", "tried: "
"""The labels of a diagnosis' trainings.

device alone       batches lie on the device: what the device can do
no gradient sync   the same, every rank for itself
replay             real batches in pinned host memory, copied every step
beside the loader  batches lie on the device, while the loader runs and its batches are dropped
as asked           the real run
as asked, again    the same in turns with cures that are tried, each of which is labelled as tried: and its flags
"""


class Alone(msgspec.Struct, frozen=True, kw_only=True):
    """The loader of one rank with nobody training."""

    rank: Count
    seconds: Elapsed
    images: AtLeastOne
    intervals_ms: list[Milliseconds]  # between one batch and the next
    first_batch_s: Seconds  # from opening the loader
    cpu_s: Difference  # of the workers, and of threads that load inside the trainer
    main_cpu_s: Difference  # of the trainer process beside them
    memory_bytes: Count | None  # resident, of the workers
    loading: Loading | None = None
    cores: CoreUse | None = None

    @property
    def images_per_s(self) -> float:
        return self.images / self.seconds


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a data set, and how fast a node reads them. Rates are files/s of the node; None where they could not be measured."""

    path: str
    file_system: str  # "ext4", "nfs4", "tmpfs"
    files: Count
    bytes_per_file: Amount
    resident: Fraction | None  # fraction of the sampled bytes that lay in the page cache
    warm: NonZero | None
    cold: NonZero | None
    cold_why: str = ""  # why there is no cold rate
    proved: bool = False  # the cold reads were seen to come from a device


class Copies(msgspec.Struct, frozen=True, kw_only=True):
    """Host-to-device bandwidth of one rank, all ranks at once, in bytes/s; the least over ranks."""

    pinned: NonZero
    pageable: NonZero
    bytes_per_image: NonZero  # on the wire


class Numa(msgspec.Struct, frozen=True, kw_only=True):
    """The NUMA nodes of one rank, as far as they are told."""

    rank: Count
    cores: list[Count] = []
    gpu: list[Count] = []


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """One node: what the job may use there, and who else is there."""

    host: str
    affinity: AtLeastOne
    quota: NonZero | None  # cores, the least of all cgroups up the tree
    slurm: AtLeastOne | None
    numa: list[Numa] = []
    shm_free_bytes: Count | None = None
    memory_bytes: Count | None = None
    others_cores: Amount | None = None  # cores that other people's processes keep busy, before anything here runs


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Another loader on the same files, with as many workers, all ranks at once; or the same one with another share of decoding."""

    loader: str
    workers: Count
    hw_decoder_load: Fraction | None = None
    alone: list[Alone]
    step_ms: list[Milliseconds] = []  # of training on batches that are there already, beside it; empty where that was not measured
    kept_up: Amount | None = None  # images that it gave meanwhile, for one that was trained on: 1 where it keeps up


class Diagnosis(msgspec.Struct, kw_only=True):
    """Everything that the experiments around the trainings gave."""

    loader: str
    surroundings: list[Surroundings] = []  # one a node
    alone: list[Alone] = []  # one a rank, all ranks at once
    alone_single: Alone | None = None  # rank 0 with the others idle
    stages: dict[str, Seconds] = {}  # CPU seconds an image by stage, where they were measured apart from the loader (DALI)
    storage: Storage | None = None
    copies: Copies | None = None
    candidates: list[Candidate] = []  # other loaders that might help
    predictions: list[Prediction] = []  # written before any of them is tried
    left_out: dict[str, str] = {}  # experiment -> why there was no time or no way for it
