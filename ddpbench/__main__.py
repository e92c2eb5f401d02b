"""``python -m ddpbench`` and ``torchrun ... -m ddpbench``: the same program as the ``ddpbench`` command."""

from __future__ import annotations

import sys

from ddpbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
