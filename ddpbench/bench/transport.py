"""How gradients travel, in the records as soon as NCCL has told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from ddpbench.analysis.checks.cluster import no_infiniband
from ddpbench.bench.journal import Journal
from ddpbench.distributed.interconnect import Fabric, ask, in_order
from ddpbench.distributed.nccl_log import nccl_log
from ddpbench.distributed.world import World
from ddpbench.machine.progress_marker import Pulse
from ddpbench.machine.stderr import print_note
from ddpbench.record.environment import Environment


class Travel:
    """What NCCL logs from the meeting of its ranks on, read off the clock. Gloo's ways are known without asking."""

    def __init__(self, world: World, pulse: Pulse, journal: Journal | None) -> None:
        self._world, self._pulse, self._journal = world, pulse, journal
        self._log: Callable[[], str] = str
        self._asked: set[int] = set()  # arms

    @property
    def _unknown(self) -> bool:
        return self._world.backend == "nccl" and self._world.size > 1

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While the process group is made."""
        if not self._unknown:
            yield
            return
        with nccl_log() as self._log:
            yield

    def learn(self, arm: int) -> None:
        """Asks all ranks after the first round of ``arm``, which has connected all that it needs. Every rank calls this."""
        if not self._unknown or arm in self._asked:
            return
        self._asked.add(arm)
        self._pulse.enter("asking how gradients travel")
        fabric = ask(self._world, self._log())
        for record in self._journal.job.records if self._journal else []:
            record.environment = with_ways(record.environment, fabric)
        self._say_what_is_slow()

    def _say_what_is_slow(self) -> None:
        """At once, and not with the report only."""
        if self._journal and len(self._asked) == 1 and (slow := no_infiniband(self._journal.job.records[0])):
            print_note(f"{slow.sentence}; {slow.hint}")


def with_ways(environment: Environment, fabric: Fabric) -> Environment:
    """``environment`` with the ways of ``fabric`` that its ranks can take."""
    if environment.device_type != "cuda" or environment.world_size == 1:
        return environment
    ways = {way for way in fabric.ways if environment.nodes > 1 or not way.across}
    return msgspec.structs.replace(environment, transport=in_order(ways | {*environment.transport}), infiniband=fabric.infiniband)
