"""Time to gather a round after it was timed: all traces are sent to rank 0 and assembled.

torchrun --nproc_per_node=8 results/overhead/gather.py results/overhead/gather.json
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from ddpbench.analysis.rounds import collect_round
from ddpbench.bench.preflight import rendezvous_ranks
from ddpbench.machine.device import open_device
from ddpbench.machine.rank_env import from_env
from ddpbench.record.config import Config
from ddpbench.record.trace import PHASES, Memory, Numerics, Trace

STEPS, REPEATS = 2000, 5


def main(target: str) -> None:
    """Gather ``REPEATS`` rounds of ``STEPS`` steps, and write the seconds of each on the slowest rank."""
    seat = from_env()
    world = rendezvous_ranks(seat, open_device("cpu", seat, False), Config(workload="resnet50"), data="", requested={})
    world.init_process_group()
    trace = Trace(
        rank=world.rank,
        steps=STEPS,
        samples=STEPS,
        wall_s=1.0,
        phases_ms={name: [1.2345 + step / 7919 for step in range(STEPS)] for name in PHASES},
        host_data_ms=[1.2345 + step / 7919 for step in range(STEPS)],
        host_lead_ms=[1.2345 + step / 7919 for step in range(STEPS)],
        memory=Memory(),
        numerics=Numerics(first_loss=1.0, last_loss=1.0),
    )
    seconds = []
    for _ in range(REPEATS):
        world.barrier()
        begin = perf_counter()
        if traces := world.gather(trace):
            collect_round(0, traces, "ddp")
        seconds.append(world.all_max(perf_counter() - begin))
    if world.rank_env.is_rank0:
        result = {
            "command": f"torchrun --nproc_per_node={world.size} results/overhead/gather.py",
            "ranks": world.size,
            "steps": STEPS,
            "cores": os.cpu_count(),
            "bytes_a_rank": len(pickle.dumps(trace)),
            "seconds": seconds,
        }
        Path(target).write_text(json.dumps(result, indent=1) + "\n")
        print(f"{world.size} ranks x {STEPS} steps gathered in {median(seconds):.3f} s (median of {REPEATS})")
    world.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
