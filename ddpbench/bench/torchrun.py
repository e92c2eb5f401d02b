"""torchrun as a child process, silent about failures that a rank has already reported."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

from ddpbench.distributed.exit_status import read_exit_status
from ddpbench.machine.variables import EnvVar

TORCHRUN_LOGGERS = ("torch.distributed", "torch")


def mute_torchrun_if_rank_reported() -> None:
    """Drop torchrun's log lines once a rank has reported how it ended; if a rank was killed, they are all there is."""
    exit_status_file = Path(os.environ[EnvVar.DDPBENCH_EXIT_STATUS])
    for handler in (handler for name in TORCHRUN_LOGGERS for handler in logging.getLogger(name).handlers):
        handler.addFilter(lambda record: read_exit_status(exit_status_file) is None)


if __name__ == "__main__":
    mute_torchrun_if_rank_reported()
    try:
        main()
    except SignalException as ended:
        sys.exit(128 + ended.sigval)
    except ChildFailedError:
        sys.exit(1)
