"""Whether the shared memory through which DataLoader's workers hand over their batches can hold them. Nothing here needs torch."""

from __future__ import annotations

from ddpbench.machine.host import shared_memory_free_bytes
from ddpbench.machine.rank_env import from_env
from ddpbench.record.diagnosis import SHM_DIR
from ddpbench.record.errors import UsageError
from ddpbench.record.resolved import ResolvedConfig

MIB = 2**20


def check_shm(config: ResolvedConfig, train_bytes_per_value: int, held_out_bytes_per_value: int, channels: int) -> None:
    """Raises UsageError where the batches on their way of all ranks of this node do not fit.

    ``train_bytes_per_value`` and ``held_out_bytes_per_value`` are the bytes per pixel value in the batches of either kind, 0 if no workers
    hand them over. While held-out images are read, those that wait to be trained on are still there. A worker that meets the end of the
    memory is killed in the midst of a run, and a small one is what containers have by default.
    """
    values = config.batch_size * channels * (config.image_size or 0) ** 2
    ranks, at_once = from_env().local_world_size, config.workers * config.prefetch + 1
    needed = ranks * at_once * values * (train_bytes_per_value + held_out_bytes_per_value) if config.workers else 0
    free = shared_memory_free_bytes()
    if free is not None and needed > free:
        each = ((train_bytes_per_value, ""), (held_out_bytes_per_value, " of held-out images"))
        sizes = " and ".join(f"{-(-values * of_a_value // MIB):,} MiB{what}" for of_a_value, what in each if of_a_value)
        raise UsageError(
            f"{SHM_DIR} has {free // MIB:,} MiB free, and batches on their way take {-(-needed // MIB):,}: {ranks} x {at_once} of {sizes}",
            "fewer workers (-j), --prefetch 1, a smaller batch (-b), --loader torch-uint8; a container: --ipc=host or --shm-size=16g",
        )
