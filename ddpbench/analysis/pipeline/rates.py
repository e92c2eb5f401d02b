"""Formulas of the data pipeline: images/s per rank, seconds, cores per node.

G ranks per node · B images per rank and step · W workers per rank · C usable cores · k cores that the trainer processes need · c, m CPU
seconds per image in the workers and in the trainer process · c_wall wall seconds per image in a worker · t CPU seconds to train on an
image, if that is done on the same cores · b bytes per image on the wire · h fraction of the files in the page cache.
"""

from __future__ import annotations

from math import ceil, inf

WORKER_HEADROOM = 1.15
"""Recommended workers as a multiple of the number that would just keep up."""


def step_rate(batch: float, step_s: float) -> float:
    """R = B / T: training rate of steps that take ``step_s``; R_gpu for batches that are already on the device."""
    return batch / step_s


def worker_rate(workers: int, wall_s: float) -> float:
    """R_work = W / c_wall: loading rate with all workers busy."""
    return workers / wall_s


def core_rate(cores: float, trainer_cores: float, ranks: int, sample_cpu_s: float) -> float:
    """R_cpu = (C - k) / (G (c + m)): loading rate of the cores that the trainers leave.

    ``sample_cpu_s`` is c + m.
    """
    loading_cores = max(0.0, cores - trainer_cores)
    return loading_cores / (ranks * sample_cpu_s) if sample_cpu_s > 0 else inf if loading_cores else 0.0


def shared_core_rate(cores: float, ranks: int, sample_cpu_s: float, training_cpu_s: float) -> float:
    """C / (G (c + m + t)): the same if the cores also train, and a waiting trainer leaves its cores to the workers."""
    return cores / (ranks * (sample_cpu_s + training_cpu_s))


def trainer_rate(main_process_cpu_s: float) -> float:
    """1 / m: the most that one trainer process can receive from its workers, pin and hand on."""
    return 1 / main_process_cpu_s if main_process_cpu_s > 0 else inf


def copy_rate(bytes_per_s: float, sample_bytes: float) -> float:
    """R_h2d = BW_h2d / b."""
    return bytes_per_s / sample_bytes


def storage_rate(ranks: int, cached_fraction: float, warm: float | None, cold: float | None) -> float | None:
    """1 / R_st = G (h / R_warm + (1 - h) / R_cold), with R_warm and R_cold in files/s of the node.

    None if a rate that it needs is unknown.
    """
    parts = [(cached_fraction, warm), (1 - cached_fraction, cold)]
    if any(fraction > 0 and not rate for fraction, rate in parts):
        return None
    return 1 / (ranks * sum(fraction / rate for fraction, rate in parts if fraction > 0 and rate))


def decoding_step_rates(device_rate: float, decoding_rate: float) -> tuple[float, float]:
    """1 / (1 / R_gpu + 1 / R_dec) and min(R_gpu, R_dec): a device that decodes before each step, and one that does both at once."""
    return 1 / (1 / device_rate + 1 / decoding_rate), min(device_rate, decoding_rate)


def workers_needed(wall_s: float, rate: float) -> int:
    """ceil(1.15 c_wall R): workers per rank that sustain ``rate`` with WORKER_HEADROOM."""
    return ceil(WORKER_HEADROOM * wall_s * rate)


def cores_needed(sample_cpu_s: float, rate: float, trainer_cores: float, ranks: int) -> float:
    """(c + m) R + k / G: cores per rank that load at ``rate`` and train.

    ``sample_cpu_s`` is c + m, and k excludes m.
    """
    return sample_cpu_s * rate + trainer_cores / ranks


def accelerator_utilization(device_s: float, real_s: float) -> float:
    """AU = T_gpu / T_real: accelerator utilization as in storage benchmarks, a fraction."""
    return device_s / real_s


def sync_cost_s(device_s: float, independent_s: float) -> float:
    """T_device - T_independent: seconds per step that gradient sync costs, by two control runs.

    At least 0. ``collective_wait.exposed_allreduce_ms`` measures exposed all-reduce within one run.
    """
    return max(0.0, device_s - independent_s)
