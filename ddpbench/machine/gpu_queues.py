"""The hardware queues of a GPU, over which CUDA distributes streams."""

from __future__ import annotations

import os

from ddpbench.machine.variables import EnvVar

MAX_GPU_QUEUES = "32"
"""The most hardware queues that CUDA supports; its default is 8.

https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
"""


def use_most_gpu_queues() -> None:
    """Let CUDA, which must not have started, use all hardware queues, unless the user has chosen their number.

    For loaders that decode on the training GPU. They use many streams; in a queue that they share with training, they wait for it.
    """
    os.environ.setdefault(EnvVar.CUDA_DEVICE_MAX_CONNECTIONS, MAX_GPU_QUEUES)
