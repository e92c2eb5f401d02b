"""What one rank saw in one timed round."""

from __future__ import annotations

from math import fsum

import msgspec

from ddpbench.record.loader_stats import CpuUsage, LoaderStats, subsample
from ddpbench.record.ranges import Amount, AtLeastOne, Count, Difference, Elapsed, Fraction, Milliseconds

PHASES = ("data", "host_to_device", "broadcast", "forward", "backward", "sync", "optimizer")
"""The phases of a step in the order they run. They are contiguous, so their sum is the step on the device's clock.

data            from asking the loader until the host has the batch in hand
host_to_device  until the compute stream has waited for the copy (and layout or dtype conversion) to end
broadcast       DDP's broadcast of buffers before the forward: a wait for rank 0
forward         model and loss
backward        until the gradient that arrives last is there
sync            gradient all-reduce that backward did not hide, or that held it: a wait for other ranks
optimizer       unscale, step, zero_grad
"""

COLLECTIVE_PHASES = ("broadcast", "sync")
"""The phases in which a rank waits for other ranks. A rank's own time is its step without them."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Peak memory of one rank in one round, in bytes; ``None`` where it cannot be read."""

    allocated_bytes: Count | None = None  # torch's allocator
    reserved_bytes: Count | None = None  # torch's allocator
    workspace_bytes: Count | None = None  # of allocated_bytes, what the matrix libraries keep for themselves: 32 MiB a thread on Hopper
    process_bytes: Count | None = None  # this process on the device, by NVML
    device_used_bytes: Count | None = None  # everybody on the device, by NVML
    device_total_bytes: Count | None = None
    host_rss_bytes: Count | None = None  # this rank
    workers_rss_bytes: Count | None = None  # its loader workers together
    allocator_retries: Count = 0  # in the round: the allocator had to free its cache and try again


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What NVML saw of one GPU during one round; ``None`` where it cannot be read."""

    sm_mhz: Amount | None = None  # mean
    sm_mhz_min: Amount | None = None
    watts: Amount | None = None  # mean
    celsius: float | None = None  # maximum
    energy_j: Difference | None = None  # over the round
    throttle_reasons: list[str] = []  # those seen at any sample, as machine.nvml.THROTTLES names them
    other_processes: Count | None = None  # compute processes of others on the GPU
    samples: Count = 0


class Numerics(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the round trained: its losses, skipped updates and parameters."""

    first_loss: float | None  # of the round; None where it is not finite, which JSON cannot hold
    last_loss: float | None
    mean_loss: float | None = None  # over the round's steps
    accuracy: Fraction | None = None  # fraction of held-out samples that the model names right after the round, of all ranks
    nonfinite_step: Count | None = None  # first step of the round whose loss was not finite
    skipped_steps: list[Count] = []  # steps whose update the loss scaler skipped, counted from 0 in the round
    loss_scale: Amount | None = None  # at the end of the round
    params_checksum_before: int = msgspec.field(default=0, name="parameters_before")  # checksum of all parameters before the round
    params_checksum_after: int = msgspec.field(default=0, name="parameters_after")  # and after it


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's round: the phases of every step, and what stood around them."""

    rank: Count
    steps: AtLeastOne
    images: Count  # this rank's
    wall_s: Elapsed  # from the synchronisation before the first step to the one after the last
    phases_ms: dict[str, list[Milliseconds]]  # phase -> one duration a step, on the device's clock; of one of every n steps above 64 ranks
    host_data_ms: list[Milliseconds]  # the host's own wait for the loader, a step
    host_lead_ms: list[Difference] = msgspec.field(
        name="lead_ms"
    )  # how far the host was ahead of the device when it had issued the step; empty on the CPU
    host_issue_ms: list[Milliseconds] = msgspec.field(
        default=[], name="issuing_ms"
    )  # how long, of forward, backward and optimizer, the host was still issuing them, a step: the device
    # waited for it no longer than that; empty on the CPU
    memory: Memory
    numerics: Numerics
    health: Health | None = None
    cpu_s: Difference | None = None  # CPU seconds of this rank's process and its loader workers; None where it cannot be read
    thread_cpu_s: Difference | None = None  # CPU seconds of the thread that trains, alone
    retry_reason: str = msgspec.field(default="", name="retried_for")  # why this round is the second try of itself ("throttle"), or empty
    loader_stats: LoaderStats | None = msgspec.field(
        default=None, name="loading"
    )  # None where batches lie on the device, or the loader does not tell
    cpu_usage: CpuUsage | None = msgspec.field(default=None, name="cores")
    backward_stall_ms: Milliseconds = msgspec.field(
        default=0.0, name="held_ms"
    )  # of all its sync, what was found inside backward: it stood still there, as another rank was late
    totals_ms: dict[str, Milliseconds] = {}  # phase -> its sum over all steps, where phases_ms holds only some of them

    def total_ms(self, phase: str) -> float:
        """The sum of a phase over all steps of the round."""
        return self.totals_ms[phase] if self.totals_ms else fsum(self.phases_ms[phase])

    def subsample_steps(self, every: int) -> Trace:
        """This trace with its sums, and of every ``every`` steps only one, the same on all ranks."""
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
