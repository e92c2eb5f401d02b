"""The stages of a diagnosis. Rank 0 decides each and publishes it; every rank goes through the same ones at the same batch."""

from __future__ import annotations

from typing import Literal

import msgspec

from ddpbench.record.diagnosis import DeviceDecoding, H2DBandwidth, LoaderBenchmark, NodeState, PixelDifference, Storage, WorkerMemory
from ddpbench.record.loader_stats import CpuUsage, LoaderStats
from ddpbench.record.prediction import Scenario
from ddpbench.record.ranges import Count, Milliseconds, Seconds
from ddpbench.record.roles import Role
from ddpbench.record.roofline import Roofline
from ddpbench.record.screening import CureCode
from ddpbench.record.script import SampleComparison, SharedHandle
from ddpbench.script.diagnose.trial_loader import SPAWNED_BATCH_TIMEOUT_S
from ddpbench.script.ranks.gather import RankState

FIRST_BATCH = 10
"""Number of the batch before which the first stage begins; the steps until then are a warm-up."""

BatchSource = Literal["own", "repeated", "replayed", "background", "trial"]
"""Where the batches of a window come from.

own         the script's own DataLoader
repeated    batches that were kept, already on the device
replayed    the same in host memory, so that the script copies them
background  as repeated, while a thread takes and drops the batches of the script's own DataLoader
trial       the script's dataset in a DataLoader with other arguments
"""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage, from batch ``first`` on.

    Windows last ``batches`` batches. The benchmarks of loader, copies to the GPU, decoding on the GPU and storage, the comparison of
    samples, and the collection of what all ranks have measured, take place between two batches. The end lasts until the script has made
    its ``last_update``. A script that is only watched has stages of updates in place of batches.
    """

    kind: Literal["window", "benchmark", "copies", "decoding", "storage", "samples", "collect", "watch", "end"]
    first: Count
    batches: Count = 0
    source: BatchSource = "own"
    role: Role | None = None  # of a window: that of the record to which it belongs
    is_timed: bool = False  # a window is a round of that record, without its first ``unmeasured`` batches
    turn: Count = 0  # number of the round
    unmeasured: Count = 0
    workers: Count = 0  # of the loader that makes its batches; 0 without one, and in a benchmark for the script's own
    prefetched: Count = 0  # batches that these workers load ahead
    whole_epochs: bool = False  # epochs are short: the round consists of whole ones, with the starts of their workers
    screened: CureCode | None = None  # the cure whose windows, with and without it, take turns
    cures: list[CureCode] = []  # that are on
    from_snapshot: bool = False  # begins with the state of the training before the first such window
    is_profiled: bool = False  # rank 0 sums the time of its kernels in the window
    times_layers: bool = False  # and that of each layer of its model
    seconds: Seconds = 0.0  # of a benchmark
    single_rank: bool = False  # a benchmark of the loader on rank 0 alone
    last_update: Count = 0  # after which a script ends

    @property
    def end(self) -> int:
        """The batch before which the next stage begins."""
        return self.first + self.batches

    @property
    def extra_s(self) -> float:
        """Seconds by which ranks may differ in it besides those of any stage: some start other workers."""
        starts_workers = self.kind == "samples" or (self.kind == "benchmark" and self.workers)
        return 3 * self.seconds + (SPAWNED_BATCH_TIMEOUT_S if starts_workers else 0.0)

    @property
    def first_measured(self) -> int:
        return self.first + self.unmeasured

    @property
    def scenario(self) -> Scenario:
        """What a trial changes."""
        scenario = self.role.scenario if self.role else None
        assert scenario is not None, "only a trial has a scenario"
        return scenario


ENDLESS = 2**48


def end_stage(number: int, last_update: int) -> Stage:
    """The last stage, from batch ``number`` on: the script gets repeated batches until it has made its ``last_update``."""
    return Stage(kind="end", first=number, batches=ENDLESS, source="repeated", last_update=last_update)


class WindowResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank measured in a timed window, besides the times of its steps."""

    stage: Stage
    rows: bytes  # the steps of its round, as in script.rows
    loader_stats: LoaderStats | None
    cpu_usage: CpuUsage | None
    cpu_s: float  # per batch, of this process and its workers


class FailedTrial(msgspec.Struct, frozen=True):
    """A trial that did not work."""

    scenario: Scenario
    message: str


class FailedCure(msgspec.Struct, frozen=True):
    """A cure that could not be switched on."""

    code: CureCode
    message: str


class RankResults(msgspec.Struct, kw_only=True):
    """What one rank has measured so far."""

    stage: Count = 0  # number of the last stage at which it was published
    state: RankState | None = None
    own_rows: bytes = b""  # the steps before the first window that changes anything, as in script.rows
    epoch_starts_s: list[Seconds] = []  # seconds from the start of the script's own workers to their first batch, by epoch
    windows: list[WindowResult] = []
    benchmarks: list[LoaderBenchmark] = []  # with all ranks at once
    single_rank_benchmark: LoaderBenchmark | None = None
    all_cores_benchmark: LoaderBenchmark | None = None
    all_cores_problem: str = ""  # why there is none
    resident_benchmark: LoaderBenchmark | None = None
    decoding_benchmark: LoaderBenchmark | None = None  # of the script's images, decoded by ddpbench.loaders.decode_on_gpu
    pixel_difference: PixelDifference | None = None  # of those
    reads_on_host: bool = True  # the script does more with its batches than to move them to the device
    roofline: Roofline | None = None  # of rank 0, per batch
    kernel_ms: Milliseconds | None = None  # per batch, on rank 0
    h2d_bandwidth: H2DBandwidth | None = None
    device_decoding: DeviceDecoding | None = None
    storage: Storage | None = None  # on rank 0
    node_state: NodeState | None = None  # of the first rank of a node
    failed_trials: list[FailedTrial] = []
    failed_cures: list[FailedCure] = []
    shared_handles: list[SharedHandle] = []  # that workers of the script's loader would share
    sample_comparison: SampleComparison | None = None  # on rank 0
    worker_memory: WorkerMemory | None = None  # when its results were last collected
    has_forked: bool = False  # workers of ddpbench's own


def first_line(problem: Exception) -> str:
    """The first line of its message, else its type; of an error of a worker, which has its traceback in the message, the last line."""
    text = str(problem).strip()
    if text.startswith("Caught "):
        return text.rpartition("\n")[2].strip()
    return text.partition("\n")[0].strip() or type(problem).__name__
