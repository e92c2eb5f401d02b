"""Train the tiny net with every engine for the same steps on every rank; rank 0 prints the losses as JSON."""

from __future__ import annotations

import json
import sys

from training import config, session, world

from ddpbench.record.registry import ENGINES

SYNCED_ENGINES = [engine for engine in ENGINES if engine != "none"]
STEPS = 8

ranks = world()
losses = {}
for engine in SYNCED_ENGINES:
    live = session(ranks, config(engine=engine, precision=sys.argv[1], lr=0.05))
    live.train(STEPS)
    losses[engine] = [float(loss) for loss in live._loss_tracker._losses]
    live.close()
if ranks.rank_env.is_rank0:
    print(json.dumps(losses))
ranks.close()
