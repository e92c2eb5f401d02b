"""Records which transport carries gradients, as soon as NCCL has logged it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from ddpbench.bench.journal import Journal
from ddpbench.distributed.interconnect import Interconnect, capture_nccl_log, gather_interconnect, sort_transports
from ddpbench.distributed.world import World
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.machine.streams import print_note
from ddpbench.record.environment import Environment


class TransportProbe:
    """Reads NCCL's log, from rendezvous on, outside of timed rounds. Gloo's transports are known without it."""

    def __init__(self, world: World, marker: ProgressMarker, journal: Journal | None) -> None:
        self._world, self._marker, self._journal = world, marker, journal
        self._log: Callable[[], str] = str
        self._probed_arms: set[int] = set()

    @property
    def _needs_probe(self) -> bool:
        return self._world.backend == "nccl" and self._world.size > 1

    @contextmanager
    def capture_nccl_log(self) -> Iterator[None]:
        """Capture NCCL's log while the process group is created."""
        if not self._needs_probe:
            yield
            return
        with capture_nccl_log() as self._log:
            yield

    def probe(self, arm: int) -> None:
        """Gather the transports after the first round of ``arm``, when its connections exist. Every rank calls this."""
        if not self._needs_probe or arm in self._probed_arms:
            return
        self._probed_arms.add(arm)
        self._marker.enter("gathering the transports")
        interconnect = gather_interconnect(self._world, self._log())
        for record in self._journal.job.records if self._journal else []:
            record.environment = with_transport(record.environment, interconnect)
        self._note_slow_transport()

    def _note_slow_transport(self) -> None:
        """Print a note at once if NCCL uses no InfiniBand, before the report says so."""
        if self._journal is None or len(self._probed_arms) > 1:
            return
        from ddpbench.analysis.checks.machine import check_infiniband
        from ddpbench.report.messages.checks import check_hint, check_text

        record = self._journal.job.records[0]
        if check := check_infiniband(record):
            print_note(f"{check_text(check, record)}; {check_hint(check, record)}")


def with_transport(environment: Environment, interconnect: Interconnect) -> Environment:
    """``environment`` with those transports of ``interconnect`` that its ranks can use."""
    if environment.device_type != "cuda" or environment.world_size == 1:
        return environment
    transports = {transport for transport in interconnect.transports if environment.nodes > 1 or not transport.inter_node}
    return msgspec.structs.replace(
        environment, transport=sort_transports(transports | {*environment.transport}), infiniband_devices=interconnect.infiniband_devices
    )
