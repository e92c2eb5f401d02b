"""ddpbench as rank 1 would run it from another installation: the release differs."""

from __future__ import annotations

import os
import sys

import ddpbench

if os.environ["RANK"] == "1":
    ddpbench.__version__ = "99.0.0"

from ddpbench.cli import main

sys.exit(main())
