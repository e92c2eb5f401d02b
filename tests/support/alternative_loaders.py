"""Find alternative loaders on two ranks: rank 0 in the first folder, rank 1 in each of the others. Rank 0 prints the results of
both as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import open_loaders
from training import world

from ddpbench.bench.diagnose.alternatives import alternative_configs

ranks = world()
first, *others = map(Path, sys.argv[1:])
by_folder = []
for other in others:
    config = open_loaders.config("torch", first if ranks.rank_env.is_rank0 else other)
    by_folder.append(ranks.gather([found.loader for found in alternative_configs(config, ranks)]))
if ranks.rank_env.is_rank0:
    print(json.dumps(by_folder))
ranks.close()
