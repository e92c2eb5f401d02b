"""Measurements of one rank in one timed round."""

from __future__ import annotations

from math import fsum
from typing import Literal

import msgspec

from ddpbench.record.loader_stats import CpuUsage, LoaderStats, subsample
from ddpbench.record.ranges import Amount, AtLeastOne, Count, Difference, Elapsed, Fraction, Milliseconds

PHASES = ("data", "host_to_device", "broadcast", "forward", "backward", "sync", "optimizer")
"""The phases of a step in execution order. They are contiguous: their sum is the step time on the device's clock.

data            from the request to the loader until the host has the batch
host_to_device  until the compute stream has waited for the copy (and layout or dtype conversion)
broadcast       DDP's broadcast of buffers before the forward: a wait for rank 0
forward         model and loss
backward        until the last gradient is computed
sync            exposed gradient all-reduce, or all-reduce that stalled backward: a wait for other ranks
optimizer       unscale, step, zero_grad
"""

EPOCH_START_PHASE, SCRIPT_PHASE = "epoch_start", "script"
"""The first and the last phase of a watched script, which other records lack.

epoch_start  the end of an epoch's workers, the start of those of the next one, and the wait for their first batch
script       from the optimizer's step to the next request to the loader
"""

DATA_PHASES = ("data", EPOCH_START_PHASE)
"""The phases in which a rank waits for its own loader."""

COLLECTIVE_PHASES = ("broadcast", "sync")
"""The phases in which a rank waits for other ranks. The rest of the step is the rank's own time."""

RetryReason = Literal["throttle"]


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Peak memory of one rank in one round, in bytes; ``None`` if unknown."""

    allocated_bytes: Count | None = None  # torch's allocator
    reserved_bytes: Count | None = None  # torch's allocator
    workspace_bytes: Count | None = None  # part of allocated_bytes in cuBLAS workspaces: 32 MiB per thread on Hopper
    process_bytes: Count | None = None  # this process on the device, from NVML
    device_used_bytes: Count | None = None  # all processes on the device, from NVML
    device_total_bytes: Count | None = None
    host_rss_bytes: Count | None = None  # this rank
    workers_rss_bytes: Count | None = None  # sum over its loader workers
    allocator_retries: Count = 0  # times in the round that the allocator had to free its cache and retry


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """NVML readings of one GPU during one round; ``None`` if unknown."""

    sm_mhz: Amount | None = None  # mean
    sm_mhz_min: Amount | None = None
    watts: Amount | None = None  # mean
    celsius: float | None = None  # maximum
    energy_j: Difference | None = None  # over the round
    throttle_reasons: list[str] = []  # seen in any sample, named as in machine.gpu.THROTTLE_REASONS
    other_processes: Count | None = None  # compute processes on the GPU outside the job
    samples: Count = 0


class Numerics(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the round trained: its losses, skipped updates and parameters."""

    first_loss: float | None  # of the round; None if not finite, which JSON cannot represent
    last_loss: float | None
    mean_loss: float | None = None  # over the round's steps
    accuracy: Fraction | None = None  # on held-out samples of all ranks, after the round
    nonfinite_step: Count | None = None  # first step of the round whose loss was not finite
    skipped_steps: list[Count] = []  # steps whose update the loss scaler skipped, counted from 0 in the round
    loss_scale: Amount | None = None  # at the end of the round
    params_checksum_before: int = 0  # checksum of all parameters before the round
    params_checksum_after: int = 0  # and after it


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Trace of one rank in one round: phase times of every step, resources and numerics."""

    rank: Count
    steps: AtLeastOne
    samples: Count  # this rank's
    wall_s: Elapsed  # from the synchronisation before the first step to the one after the last
    phases_ms: dict[str, list[Milliseconds]]  # phase -> duration per step on the device's clock; only one of every n steps above 64 ranks
    host_data_ms: list[Milliseconds]  # wait for the loader on the host's clock, per step
    host_lead_ms: list[Difference]  # host run-ahead over the device when it had issued the step; empty on the CPU
    host_issue_ms: list[Milliseconds] = []  # part of forward, backward and optimizer in which the host was still issuing them, per step:
    # an upper bound on the device's wait for the host; empty on the CPU
    memory: Memory
    numerics: Numerics
    health: Health | None = None
    cpu_s: Difference | None = None  # CPU seconds of this rank's process and its loader workers; None if unknown
    thread_cpu_s: Difference | None = None  # CPU seconds of the training thread
    retry_reason: RetryReason | None = None  # why this round was measured a second time; None if it was not
    loader_stats: LoaderStats | None = None  # None if batches are already on the device, or if the loader has no statistics
    cpu_usage: CpuUsage | None = None
    backward_stall_ms: Milliseconds = 0.0  # part of the round's sync that was moved from backward, where it stalled for a late rank
    totals_ms: dict[str, Milliseconds] = {}  # phase -> sum over all steps; empty if phases_ms holds every step

    @property
    def phases(self) -> list[str]:
        """Its phases in execution order: PHASES, and around them those of a watched script."""
        return [phase for phase in (EPOCH_START_PHASE, *PHASES, SCRIPT_PHASE) if phase in self.phases_ms]

    def total_ms(self, phase: str) -> float:
        """Sum of a phase over all steps of the round, in ms."""
        return self.totals_ms[phase] if self.totals_ms else fsum(self.phases_ms[phase])

    def subsample_steps(self, every: int) -> Trace:
        """A copy with totals per phase and one of every ``every`` steps, the same steps on all ranks."""
        if every == 1:
            return self
        return msgspec.structs.replace(
            self,
            totals_ms={phase: self.total_ms(phase) for phase in self.phases_ms},
            phases_ms={phase: subsample(every, durations) for phase, durations in self.phases_ms.items()},
            host_data_ms=subsample(every, self.host_data_ms),
            host_lead_ms=subsample(every, self.host_lead_ms),
            host_issue_ms=subsample(every, self.host_issue_ms),
            loader_stats=self.loader_stats and self.loader_stats.subsample_batches(every),
        )
