"""``python -m ddpbench`` and ``torchrun ... -m ddpbench``: the same program as the ``ddpbench`` command."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    if sys.path[0] in ("", os.getcwd()):
        sys.path[0] = os.path.dirname(sys.executable)  # as the command has it: a random.py in the working folder is not for ddpbench
    from ddpbench.cli import main

    sys.exit(main())
