"""What stands in the way and is known as soon as the ranks have met: said then, and not with the report only."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from ddpbench.analysis.checks.cluster import unequal_nodes
from ddpbench.distributed.world import World
from ddpbench.record.record import Record


def startup_warnings(world: World, record: Record, variables: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Of a rank alone where there are more GPUs or nodes, and of unequal nodes, a sentence each."""
    if world.size == 1:
        yield from _single_rank_warnings(world, variables)
    if unequal := unequal_nodes(record):
        yield f"{unequal.sentence}: {unequal.hint}"


def _single_rank_warnings(world: World, variables: Mapping[str, str]) -> Iterator[str]:
    nodes, gpus = variables.get("SLURM_JOB_NUM_NODES", "1"), world.device.num_visible_gpus
    if nodes.isdecimal() and int(nodes) > 1:
        yield f"one rank alone, in a job of {nodes} nodes: sbatch launch/slurm_multi_node.sbatch WORKLOAD trains on all"
    elif gpus > 1 and not world.rank_env.launched:
        yield f"one of {gpus} GPUs trains: --gpus {gpus} for all"
