"""Looks for other loaders on every rank, each of which is given a folder of its own; rank 0 prints what each found, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import loading
from training import world

from ddpbench.bench.diagnose.alternatives import alternative_configs

ranks = world()
found = [other.loader for other in alternative_configs(loading.config("torch", Path(sys.argv[1 + ranks.rank])), ranks)]
told = ranks.gather(found)
if ranks.rank_env.is_rank0:
    print(json.dumps(told))
ranks.close()
