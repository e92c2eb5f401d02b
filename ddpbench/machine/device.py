"""The one door to the device a rank trains on: CUDA or the CPU."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import torch

from ddpbench.machine.gpu import Gpu
from ddpbench.machine.host import cpu_name, host_memory_bytes, peak_rss_bytes, rss_bytes
from ddpbench.machine.rank_env import RankEnv
from ddpbench.record.errors import UsageError
from ddpbench.record.text import pluralize
from ddpbench.record.trace import Memory

BYTES_PER_UNIT = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
"""In which torch tells what it could not allocate on a GPU; on a CPU it counts bytes."""


@dataclass(frozen=True)
class Device:
    """One device. ``id`` is a GPU's UUID, empty for a CPU; ``gpu`` its NVML handle, or None and then ``why_no_health`` the reason."""

    torch_device: torch.device
    name: str
    uuid: str
    total_bytes: int
    gpu: Gpu | None = None
    health_unavailable_reason: str = ""
    num_visible_gpus: int = 1  # GPUs that this rank sees, of which it takes one

    @property
    def is_cuda(self) -> bool:
        return self.torch_device.type == "cuda"

    def synchronize(self) -> None:
        """Returns when everything issued to the device is done."""
        if self.is_cuda:
            torch.cuda.synchronize(self.torch_device)

    def reset_peak_memory_stats(self) -> None:
        """Peak memory counts from here."""
        if self.is_cuda:
            torch.cuda.reset_peak_memory_stats(self.torch_device)

    def empty_cache(self) -> None:
        """Gives cached memory back, so that it is not charged to whoever comes next."""
        self.free_cublas_workspaces()
        if self.is_cuda:
            torch.cuda.empty_cache()

    def free_cublas_workspaces(self) -> int | None:
        """Frees the matrix libraries' workspaces in torch's allocator, which come back when used, and returns their bytes.

        CUDA graphs do not survive it. None on a CPU.
        """
        if not self.is_cuda:
            return None
        before = torch.cuda.memory_allocated(self.torch_device)
        torch._C._cuda_clearCublasWorkspaces()  # there is no public way
        return before - torch.cuda.memory_allocated(self.torch_device)

    def allocator_retries(self) -> int:
        return int(torch.cuda.memory_stats(self.torch_device).get("num_alloc_retries", 0)) if self.is_cuda else 0

    def describe_oom(self, problem: BaseException) -> str:
        """What was in use and what was asked for, where ``problem`` is an allocation that failed; empty for any other problem.

        On a CPU it is this rank's own memory that was in use, of all that the host has.
        """
        text = str(problem)
        if not (isinstance(problem, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in text):
            return ""
        asked = re.search(r"tried to allocate ([\d.]+) (\w+)", text, re.IGNORECASE)
        more = f", {_format_gib(float(asked[1]) * BYTES_PER_UNIT.get(asked[2], 1))} GiB more asked for" if asked else ""
        peak = torch.cuda.max_memory_allocated(self.torch_device) if self.is_cuda else peak_rss_bytes()
        return f"peak {'-' if peak is None else _format_gib(peak)} of {_format_gib(self.total_bytes)} GiB{more}"

    def memory_stats(self, worker_pids: list[int], retries_before: int, workspace_bytes: int | None) -> Memory:
        """Peaks since ``reset_peaks`` and what the host holds now."""
        workers = [resident for pid in worker_pids if (resident := rss_bytes(pid)) is not None]
        host_rss_bytes, workers_rss_bytes = rss_bytes(os.getpid()), sum(workers) if workers else None
        if not self.is_cuda:
            return Memory(device_total_bytes=self.total_bytes, host_rss_bytes=host_rss_bytes, workers_rss_bytes=workers_rss_bytes)
        return Memory(
            allocated_bytes=torch.cuda.max_memory_allocated(self.torch_device),
            reserved_bytes=torch.cuda.max_memory_reserved(self.torch_device),
            workspace_bytes=workspace_bytes,
            process_bytes=self.gpu.process_memory_bytes() if self.gpu else None,
            device_used_bytes=self.gpu.used_memory_bytes() if self.gpu else None,
            device_total_bytes=self.total_bytes,
            allocator_retries=self.allocator_retries() - retries_before,
            host_rss_bytes=host_rss_bytes,
            workers_rss_bytes=workers_rss_bytes,
        )


def _format_gib(size: float) -> str:
    """Bytes in GiB: ``0.02``, ``12.3``, ``558``; what is less than 0.01 as that."""
    gib = size / 2**30
    return f"{max(gib, 0.01):.2f}" if gib < 1 else f"{gib:.1f}" if gib < 100 else f"{gib:,.0f}"


def open_device(requested: str, rank_env: RankEnv, share_gpu: bool) -> Device:
    """The device of this rank; raises UsageError where it asks for a GPU that is not there or belongs to another rank."""
    gpus = torch.cuda.device_count() if requested != "cpu" and torch.cuda.is_available() else 0
    if requested == "cuda" and not gpus:
        raise UsageError("no CUDA device is visible to torch", "'ddpbench env' tells what is missing; --device cpu trains on the processor")
    if not gpus:
        return Device(torch.device("cpu"), cpu_name(), "", host_memory_bytes())
    if rank_env.local_world_size > gpus and not share_gpu:
        raise UsageError(
            f"{rank_env.local_world_size} ranks on {rank_env.host}, which has {pluralize(gpus, 'GPU')}",
            f"start {pluralize(gpus, 'rank')} a node, or allow ranks to share with --share-gpu",
        )
    index = rank_env.local_rank % gpus
    torch.cuda.set_device(index)
    properties = torch.cuda.get_device_properties(index)
    uuid = f"GPU-{properties.uuid}"
    gpu, why = Gpu.find(uuid)
    return Device(torch.device("cuda", index), properties.name, uuid, properties.total_memory, gpu, why, gpus)
