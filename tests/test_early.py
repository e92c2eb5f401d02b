"""What stands in the way of a job is said when its ranks have met."""

from __future__ import annotations

from dataclasses import replace

import records
from msgspec.structs import replace as with_fields
from test_idle import world

from ddpbench.bench.early import early_words

ALONE = records.record([{"forward": 1.0}])


def test_a_rank_alone_among_gpus_or_nodes_is_told_how_to_start_all() -> None:
    one = world("none")
    assert [*early_words(one, ALONE, {})] == []
    among = replace(one, device=replace(one.device, there=4))
    assert [*early_words(among, ALONE, {})] == ["one of 4 GPUs trains: --gpus 4 for all"]
    launched = replace(among, seat=replace(one.seat, address="127.0.0.1"))
    assert launched.seat.launched
    assert [*early_words(launched, ALONE, {})] == [], "somebody asked for one"
    (said,) = early_words(launched, ALONE, {"SLURM_JOB_NUM_NODES": "2"})
    assert said.startswith("one rank alone, in a job of 2 nodes: sbatch ")


def test_nodes_that_are_not_equal_are_told() -> None:
    place = records.environment(4, nodes=2)
    fewer = [with_fields(each, usable_cores=8.0) if each.node_rank else each for each in place.places]
    record = records.record([{"forward": 1.0}] * 4, environment=with_fields(place, places=fewer))
    two = replace(world("gloo"), notices=world("gloo").notices * 4)
    (said,) = early_words(two, record, {})
    assert said.startswith("8 usable cores on ")
    assert said.endswith("all nodes go at the pace of the slowest")
