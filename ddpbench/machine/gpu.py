"""NVML: driver and GPUs of a host, and each GPU's clocks, power, temperature, memory and processes.

If NVML does not work, health is unavailable.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from ddpbench.record.trace import Health

Reading = TypeVar("Reading")

SAMPLE_PERIOD_S = 0.2

THROTTLE_REASONS = {
    0x4: "sw-power-cap",
    0x8: "hw-slowdown",
    0x20: "sw-thermal",
    0x40: "hw-thermal",
    0x80: "hw-power-brake",
}
"""Bits of NVML's clock event reasons that slow a GPU (nvml.h, nvmlClocksEventReasons)."""


class Gpu:
    """NVML handle of one GPU. A reading is ``None`` if the driver does not support it."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    @classmethod
    def find(cls, uuid: str) -> tuple[Gpu | None, str]:
        """(GPU, empty string), or (None, reason) if NVML cannot find it."""
        try:
            pynvml.nvmlInit()
            return cls(pynvml.nvmlDeviceGetHandleByUUID(uuid)), ""
        except pynvml.NVMLError as problem:
            return None, str(problem)

    def sm_mhz(self) -> float | None:
        return _query(lambda: float(pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM)))

    def watts(self) -> float | None:
        return _query(lambda: float(pynvml.nvmlDeviceGetPowerUsage(self._handle)) / 1e3)

    def celsius(self) -> float | None:
        return _query(lambda: float(pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU)))

    def energy_j(self) -> float | None:
        """Energy in joules since the driver was loaded."""
        return _query(lambda: float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3)

    def throttle_reasons(self) -> list[str]:
        """Current throttle reasons; empty if none or unknown."""
        bits = _query(lambda: int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle))) or 0
        return [name for bit, name in THROTTLE_REASONS.items() if bits & bit]

    def pci_address(self) -> str | None:
        """PCI address as in the kernel's sysfs: ``0000:19:00.0``."""
        pci = _query(lambda: pynvml.nvmlDeviceGetPciInfo(self._handle))
        return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0" if pci else None

    def has_nvlink_to(self, other: Gpu) -> bool | None:
        """Whether another GPU of this host is reached over NVLink, directly or through NVSwitch; None if unknown."""
        capability = pynvml.NVML_P2P_CAPS_INDEX_NVLINK
        status = _query(lambda: int(pynvml.nvmlDeviceGetP2PStatus(self._handle, other._handle, capability)))
        return None if status is None else status == pynvml.NVML_P2P_STATUS_OK

    def compute_processes(self) -> list[tuple[int, int | None]] | None:
        """(pid, bytes) of every compute process. Pids are in NVML's namespace, which may differ from this container's."""
        processes = _query(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        return None if processes is None else [(int(process.pid), process.usedGpuMemory) for process in processes]

    def used_memory_bytes(self) -> int | None:
        return _query(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).used))

    def process_memory_bytes(self) -> int | None:
        """Device memory of this process in bytes. If its pid is not found, that of the only process on the GPU, else None."""
        processes = self.compute_processes() or []
        own_bytes: list[int | None] = [used for pid, used in processes if pid == os.getpid()] or (
            [processes[0][1]] if len(processes) == 1 else []
        )
        return own_bytes[0] if own_bytes else None


def driver_version() -> str | None:
    """The NVIDIA driver's version; None without a driver."""
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None


def gpu_names() -> list[str]:
    """Names of this host's GPUs; empty if NVML does not work."""
    try:
        pynvml.nvmlInit()
        return [str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i))) for i in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []


def _query(query: Callable[[], Reading]) -> Reading | None:
    try:
        return query()
    except pynvml.NVMLError:
        return None


class GpuTelemetry:
    """Samples one GPU from a thread while a round runs. ctypes releases the GIL during each call."""

    def __init__(self, gpu: Gpu | None, ranks_on_gpu: int) -> None:
        self._gpu = gpu
        self._ranks_on_gpu = ranks_on_gpu
        self._stop = threading.Event()
        self._samples: list[tuple[float | None, float | None, float | None, list[str]]] = []
        self._thread: threading.Thread | None = None
        self._energy_j: float | None = None

    def start(self) -> None:
        if self._gpu is None:
            return
        self._energy_j = self._gpu.energy_j()
        self._thread = threading.Thread(target=self._sample, name="ddpbench-health", daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        assert self._gpu is not None
        while not self._stop.wait(SAMPLE_PERIOD_S):
            self._samples.append((self._gpu.sm_mhz(), self._gpu.watts(), self._gpu.celsius(), self._gpu.throttle_reasons()))

    def finish(self) -> Health | None:
        """Health since ``start``; ``None`` without NVML."""
        if self._gpu is None or self._thread is None:
            return None
        energy_j, processes = self._gpu.energy_j(), self._gpu.compute_processes()
        self._stop.set()
        self._thread.join()
        clocks = [mhz for mhz, _, _, _ in self._samples if mhz is not None]
        watts = [value for _, value, _, _ in self._samples if value is not None]
        celsius = [value for _, _, value, _ in self._samples if value is not None]
        return Health(
            sm_mhz=sum(clocks) / len(clocks) if clocks else None,
            sm_mhz_min=min(clocks, default=None),
            watts=sum(watts) / len(watts) if watts else None,
            celsius=max(celsius, default=None),
            energy_j=energy_j - self._energy_j if energy_j is not None and self._energy_j is not None else None,
            throttle_reasons=sorted({name for *_, names in self._samples for name in names}),
            other_processes=None if processes is None else max(0, len(processes) - self._ranks_on_gpu),
            samples=len(self._samples),
        )
