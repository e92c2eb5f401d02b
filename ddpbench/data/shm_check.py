"""Whether the shared memory through which DataLoader's workers hand over their batches can hold them. Nothing here needs torch."""

from __future__ import annotations

from ddpbench.machine.host import shared_memory_free_bytes
from ddpbench.machine.rank_env import take_seat
from ddpbench.record.diagnosis import SHARED_MEMORY
from ddpbench.record.errors import UsageError
from ddpbench.record.resolved import Settled

MIB = 2**20


def refuse_little(config: Settled, training: int, held_out: int, channels: int) -> None:
    """Raises UsageError where the batches on their way of all ranks of this node do not fit.

    ``training`` and ``held_out`` are the bytes of a pixel's value in the batches of either kind, 0 where no workers hand them
    over. While held-out images are read, those that wait to be trained on are still there. A worker that meets the end of the
    memory is killed in the midst of a run, and a small one is what containers have by default.
    """
    values = config.batch_size * channels * (config.image_size or 0) ** 2
    ranks, at_once = take_seat().local_world_size, config.workers * config.prefetch + 1
    needed = ranks * at_once * values * (training + held_out) if config.workers else 0
    free = shared_memory_free_bytes()
    if free is not None and needed > free:
        each = ((training, ""), (held_out, " of held-out images"))
        sizes = " and ".join(f"{-(-values * of_a_value // MIB):,} MiB{what}" for of_a_value, what in each if of_a_value)
        raise UsageError(
            f"{SHARED_MEMORY} has {free // MIB:,} MiB free, and batches on their way take {-(-needed // MIB):,}: "
            f"{ranks} x {at_once} of {sizes}",
            "fewer workers (-j), --prefetch 1, a smaller batch (-b), --loader torch-uint8; a container: --ipc=host or --shm-size=16g",
        )
