"""Train the tiny net in each given precision, from different weights per rank; rank 0 prints the final states as JSON."""

from __future__ import annotations

import json
import sys

import torch
from training import config, session, tiny_net, world

from ddpbench.training.loss_tracker import parameter_checksum

ranks = world()
ended = {}
for precision in sys.argv[1:]:
    model = tiny_net()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * ranks.rank)
    live = session(ranks, config(precision=precision, lr=0.05), model)
    live.train(8)
    masters = [float(master.double().sum()) for master in live._optimizer.state_dict().get("masters", [])]
    losses = [float(loss) for loss in live._loss_tracker._losses]
    mine = {  # final state of this rank
        "parameters": parameter_checksum(live.model.parameters()),
        "masters": masters,
        "losses": losses,
    }
    ended[precision] = ranks.gather(mine)
    live.close()
if ranks.rank_env.is_rank0:
    print(json.dumps(ended))
ranks.close()
