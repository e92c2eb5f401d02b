"""ddpbench with a rank that registers but never joins the process group, as with a wrong network interface."""

from __future__ import annotations

import os
import sys
import time

from ddpbench.cli import main
from ddpbench.distributed.world import World

if os.environ["RANK"] == "1":
    World.init_process_group = lambda self: time.sleep(3600)  # type: ignore[method-assign]

sys.exit(main())
