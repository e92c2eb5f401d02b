"""torchrun as a child of ours: the same program, without what it says of ranks that have said themselves how they ended."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

from ddpbench.distributed.exit_status import OUTCOME_VARIABLE, outcome_in

ITS_LOGGERS = ("torch.distributed", "torch")


def speak_where_no_rank_has() -> None:
    """torchrun's lines are all there is where a rank was killed and nobody could say so."""
    left = Path(os.environ[OUTCOME_VARIABLE])
    for handler in (handler for name in ITS_LOGGERS for handler in logging.getLogger(name).handlers):
        handler.addFilter(lambda line: outcome_in(left) is None)


if __name__ == "__main__":
    speak_where_no_rank_has()
    try:
        main()
    except SignalException as ended:
        sys.exit(128 + ended.sigval)
    except ChildFailedError:
        sys.exit(1)
