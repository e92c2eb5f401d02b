"""torchrun as a child of ours: the same program, without what it says of ranks that have said themselves how they ended."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

from ddpbench.distributed.exit_status import EXIT_STATUS_VARIABLE, read_exit_status

TORCHRUN_LOGGERS = ("torch.distributed", "torch")


def mute_torchrun_if_rank_reported() -> None:
    """torchrun's lines are all there is where a rank was killed and nobody could say so."""
    left = Path(os.environ[EXIT_STATUS_VARIABLE])
    for handler in (handler for name in TORCHRUN_LOGGERS for handler in logging.getLogger(name).handlers):
        handler.addFilter(lambda line: read_exit_status(left) is None)


if __name__ == "__main__":
    mute_torchrun_if_rank_reported()
    try:
        main()
    except SignalException as ended:
        sys.exit(128 + ended.sigval)
    except ChildFailedError:
        sys.exit(1)
