"""ddpbench with another release version on rank 1."""

from __future__ import annotations

import os
import sys

import ddpbench

if os.environ["RANK"] == "1":
    ddpbench.__version__ = "99.0.0"

from ddpbench.cli import main

sys.exit(main())
