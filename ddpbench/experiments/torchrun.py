"""torchrun as a child of ours: the same program, without the traceback and the banner that repeat what its ranks have said."""

from __future__ import annotations

import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

if __name__ == "__main__":
    try:
        main()
    except SignalException as ended:
        sys.exit(128 + ended.sigval)
    except ChildFailedError:
        sys.exit(1)
