"""The formulas of the data pipeline. Rates are images/s of one rank, times are seconds, and cores those of one node.

G ranks a node · B images a rank a step · W workers a rank · C usable cores · k cores that the trainer processes need · c, m seconds
of a core an image in the workers and in the trainer process · c_wall seconds an image in a worker · t seconds of a core to train it,
where that is done on the same cores · b bytes an image on the wire · h share of the files that lie in memory.
"""

from __future__ import annotations

from math import ceil, floor, inf

WORKER_HEADROOM = 1.15
"""Workers to have, over those that would just keep up."""


def device_rate(batch: int, step_s: float) -> float:
    """R_gpu = B / T_gpu: what a device trains of batches that are there already."""
    return batch / step_s


def worker_rate(workers: int, wall_s: float) -> float:
    """R_work = W / c_wall: what the workers make, all of them busy."""
    return workers / wall_s


def core_rate(cores: float, trainer_cores: float, ranks: int, image_cpu_s: float) -> float:
    """R_cpu = (C - k) / (G (c + m)): what the cores beside the trainers can load; ``image_cpu_s`` is c + m."""
    beside = max(0.0, cores - trainer_cores)
    return beside / (ranks * image_cpu_s) if image_cpu_s > 0 else inf if beside else 0.0


def shared_core_rate(cores: float, ranks: int, image_cpu_s: float, training_cpu_s: float) -> float:
    """C / (G (c + m + t)): the same where the cores that load also train, and a trainer that waits leaves its own to the workers."""
    return cores / (ranks * (image_cpu_s + training_cpu_s))


def trainer_rate(main_process_cpu_s: float) -> float:
    """1 / m: what one process takes over from its workers, pins and hands on; more of it there is not."""
    return 1 / main_process_cpu_s if main_process_cpu_s > 0 else inf


def copy_rate(bytes_per_s: float, image_bytes: float) -> float:
    """R_h2d = BW_h2d / b."""
    return bytes_per_s / image_bytes


def storage_rate(ranks: int, cached_fraction: float, warm: float | None, cold: float | None) -> float | None:
    """1 / R_st = G (h / R_warm + (1 - h) / R_cold), with R_warm and R_cold in files/s of the node.

    None where a rate that it takes is not known.
    """
    parts = [(cached_fraction, warm), (1 - cached_fraction, cold)]
    if any(share > 0 and not rate for share, rate in parts):
        return None
    return 1 / (ranks * sum(share / rate for share, rate in parts if share > 0 and rate))


def workers_needed(wall_s: float, rate: float) -> int:
    """ceil(1.15 c_wall R): workers a rank that give ``rate`` with some headroom."""
    return ceil(WORKER_HEADROOM * wall_s * rate)


def max_workers(cores: float, trainer_cores: float, ranks: int) -> int:
    """The most W with G W + k <= C; 0 where the trainers need all cores."""
    return max(0, floor((cores - trainer_cores) / ranks))


def cores_needed(image_cpu_s: float, rate: float, trainer_cores: float, ranks: int) -> float:
    """(c + m) R + k / G: cores a rank that load ``rate`` and train; ``image_cpu_s`` is c + m, k without m."""
    return image_cpu_s * rate + trainer_cores / ranks


def accelerator_utilization(device_s: float, real_s: float) -> float:
    """AU = T_gpu / T_real: the accelerator utilisation that storage people use, a fraction."""
    return device_s / real_s


def exposed_allreduce_s(device_s: float, independent_s: float) -> float:
    """T_device - T_no_sync: the part of a step in which gradient all-reduce is not hidden, in seconds; not below 0."""
    return max(0.0, device_s - independent_s)
