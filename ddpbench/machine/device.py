"""The device on which a rank trains: CUDA or the CPU."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import torch

from ddpbench.machine.gpu import Gpu
from ddpbench.machine.host import cpu_name, host_memory_bytes, peak_rss_bytes, rss_bytes, usable_cores
from ddpbench.machine.rank_env import RankEnv
from ddpbench.record.environment import RankPlacement
from ddpbench.record.errors import UsageError
from ddpbench.record.text import pluralize
from ddpbench.record.trace import Memory

BYTES_PER_UNIT = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
"""Units in torch's out-of-memory messages on a GPU. On a CPU the messages are in bytes."""


@dataclass(frozen=True)
class Device:
    """One device. ``uuid`` is a GPU's UUID, empty for a CPU.

    ``gpu`` is its NVML handle; if None on CUDA, ``health_unavailable_reason`` says why.
    """

    torch_device: torch.device
    name: str
    uuid: str
    total_bytes: int
    gpu: Gpu | None = None
    health_unavailable_reason: str = ""
    num_visible_gpus: int = 1  # GPUs visible to this rank, which uses one of them

    @property
    def is_cuda(self) -> bool:
        return self.torch_device.type == "cuda"

    def synchronize(self) -> None:
        """Wait until all work issued to the device is done."""
        if self.is_cuda:
            torch.cuda.synchronize(self.torch_device)

    def reset_peak_memory_stats(self) -> None:
        """Restart the peak memory statistics."""
        if self.is_cuda:
            torch.cuda.reset_peak_memory_stats(self.torch_device)

    def empty_cache(self) -> None:
        """Release cached memory, so that the next arm is not charged for it. CUDA graphs captured before become invalid."""
        self.free_cublas_workspaces()
        if self.is_cuda:
            torch.cuda.empty_cache()

    def free_cublas_workspaces(self) -> int | None:
        """Free the cuBLAS workspaces in torch's allocator and return their size in bytes; None on a CPU.

        They are allocated again on the next use. CUDA graphs captured before become invalid.
        """
        if not self.is_cuda:
            return None
        before = torch.cuda.memory_allocated(self.torch_device)
        torch._C._cuda_clearCublasWorkspaces()  # there is no public API
        return before - torch.cuda.memory_allocated(self.torch_device)

    def allocator_retries(self) -> int:
        return int(torch.cuda.memory_stats(self.torch_device).get("num_alloc_retries", 0)) if self.is_cuda else 0

    def describe_oom(self, problem: BaseException) -> str:
        """Memory in use and requested, as text, if ``problem`` is a failed allocation; else an empty string.

        On a CPU, memory in use is this rank's peak resident memory, out of the host's memory.
        """
        text = str(problem)
        if not (isinstance(problem, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in text):
            return ""
        requested = re.search(r"tried to allocate ([\d.]+) (\w+)", text, re.IGNORECASE)
        requested_text = (
            f", {_format_gib(float(requested[1]) * BYTES_PER_UNIT.get(requested[2], 1))} GiB more requested" if requested else ""
        )
        peak = torch.cuda.max_memory_allocated(self.torch_device) if self.is_cuda else peak_rss_bytes()
        return f"peak {'-' if peak is None else _format_gib(peak)} of {_format_gib(self.total_bytes)} GiB{requested_text}"

    def memory_stats(self, worker_pids: list[int], retries_before: int, workspace_bytes: int | None, min_peak_bytes: int = 0) -> Memory:
        """Peak device memory since ``reset_peak_memory_stats``, at least ``min_peak_bytes``, and current host memory."""
        worker_rss = [rss for pid in worker_pids if (rss := rss_bytes(pid)) is not None]
        host_rss_bytes, workers_rss_bytes = rss_bytes(os.getpid()), sum(worker_rss) if worker_rss else None
        if not self.is_cuda:
            return Memory(device_total_bytes=self.total_bytes, host_rss_bytes=host_rss_bytes, workers_rss_bytes=workers_rss_bytes)
        return Memory(
            allocated_bytes=max(min_peak_bytes, torch.cuda.max_memory_allocated(self.torch_device)),
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
    """Bytes in GiB: ``0.02``, ``12.3``, ``558``; at least 0.01."""
    gib = size / 2**30
    return f"{max(gib, 0.01):.2f}" if gib < 1 else f"{gib:.1f}" if gib < 100 else f"{gib:,.0f}"


def open_device(requested: str, rank_env: RankEnv, share_gpu: bool) -> Device:
    """The device of this rank. Raises UsageError if a requested GPU is missing or belongs to another rank."""
    gpus = torch.cuda.device_count() if requested != "cpu" and torch.cuda.is_available() else 0
    if requested == "cuda" and not gpus:
        raise UsageError("no CUDA device is visible to torch", "'ddpbench env' shows what is missing; --device cpu trains on the CPU")
    if not gpus:
        return describe_device(torch.device("cpu"))
    if rank_env.local_world_size > gpus and not share_gpu:
        raise UsageError(
            f"{rank_env.local_world_size} ranks on {rank_env.host}, which has {pluralize(gpus, 'GPU')}",
            f"start {pluralize(gpus, 'rank')} per node, or allow sharing with --share-gpu",
        )
    index = rank_env.local_rank % gpus
    torch.cuda.set_device(index)
    return describe_device(torch.device("cuda", index))


def describe_device(torch_device: torch.device) -> Device:
    """The Device for a GPU, or for the CPU."""
    if torch_device.type != "cuda":
        return Device(torch_device, cpu_name(), "", host_memory_bytes())
    properties = torch.cuda.get_device_properties(torch_device)
    uuid = f"GPU-{properties.uuid}"
    gpu, unavailable_reason = Gpu.find(uuid)
    return Device(torch_device, properties.name, uuid, properties.total_memory, gpu, unavailable_reason, torch.cuda.device_count())


def placement_of(device: Device, rank_env: RankEnv) -> RankPlacement:
    """Where this process runs, on ``device``."""
    return RankPlacement(
        rank=rank_env.rank,
        host=rank_env.host,
        pid=os.getpid(),
        local_rank=rank_env.local_rank,
        node_rank=rank_env.node_rank,
        device_name=device.name,
        device_id=device.uuid,
        device_total_bytes=device.total_bytes,
        usable_cores=usable_cores(),
    )


def free_gpu_bytes(device: torch.device) -> int:
    """Memory of a GPU that can be allocated, also from the cache of torch's allocator."""
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
