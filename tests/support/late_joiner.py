"""The program, with a rank that came to the board and never joins the process group, as behind a wrong network interface."""

from __future__ import annotations

import os
import sys
import time

from ddpbench.cli import main
from ddpbench.distributed.world import World

if os.environ["RANK"] == "1":
    World.init_process_group = lambda self: time.sleep(3600)  # type: ignore[method-assign]

sys.exit(main())
