"""Rank info, heartbeats and failure reports in the launcher's TCPStore, which outlives rank 0."""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from pathlib import Path

import msgspec
from torch import distributed as dist

from ddpbench.machine.progress_marker import Position
from ddpbench.machine.rank_env import RankEnv
from ddpbench.record.environment import RankPlacement, Software
from ddpbench.record.errors import RendezvousError, ReportedByPeer, Status, UsageError
from ddpbench.record.io import encode_json
from ddpbench.record.record import Fault
from ddpbench.record.text import numbered

HEARTBEAT_TIMEOUT_S = 1.5
"""A rank on another host without a heartbeat for this long is dead: six ticks of its watchdog."""


CONNECT_RETRY_S = 0.1
"""Pause between attempts to reach a store that may not exist yet."""

CONNECT_TIMEOUT_S = 5.0
"""A host that accepts no connection for this long is unreachable."""


class RankInfo(msgspec.Struct, frozen=True):
    """What a rank publishes about itself at the rendezvous."""

    placement: RankPlacement
    software: Software
    data_fingerprint: str = ""
    """Fingerprint of the dataset's files, which must be equal on all ranks."""

    machine_id: str = ""
    """Identifies the machine, since host names may not be unique."""

    requested: dict[str, str] = {}
    """Requested value per flag, which must be equal on all ranks."""


class FailureReport(msgspec.Struct, frozen=True):
    """Status and fault of a failed run, published by the rank that knows them."""

    status: Status
    fault: Fault


class RankStore:
    """Short texts by key, shared by all ranks.

    It has a separate connection, so that a process group that waits in its own store does not block it.
    """

    def __init__(self, store: dist.Store, rank_env: RankEnv) -> None:
        self._store = store
        self._rank_env = rank_env
        self._heartbeat_count = 0

    def set(self, key: str, text: str) -> None:
        self._store.set(key, text)

    def try_get(self, key: str) -> str | None:
        """The text under ``key``, or ``None``; never waits."""
        return self._store.get(key).decode() if self._store.check([key]) else None

    # rendezvous

    def register(self, info: RankInfo) -> None:
        self.set(f"place/{self._rank_env.rank}", encode_json(info).decode())

    def wait_for_key(self, key: str, timeout_s: float) -> None:
        """Wait until ``key`` is set or ``timeout_s`` has elapsed. Raises ReportedByPeer as soon as a rank has reported a failure."""
        end = time.monotonic() + timeout_s
        while self.try_get(key) is None and time.monotonic() < end:
            if report := self.get_failure_report():
                raise ReportedByPeer(report.fault.message, report.fault.hint)
            time.sleep(0.05)

    def wait_for_ranks(self, timeout_s: float) -> list[RankInfo]:
        """The RankInfo of all ranks, in rank order.

        Raises UsageError, which names missing ranks, after ``timeout_s``; ReportedByPeer as soon as another rank has reported a
        failure.
        """
        keys = [f"place/{rank}" for rank in range(self._rank_env.world_size)]
        end = time.monotonic() + timeout_s
        missing = keys
        while missing := [key for key in missing if not self._store.check([key])]:
            if report := self.get_failure_report():
                raise ReportedByPeer(report.fault.message, report.fault.hint)
            if time.monotonic() > end:
                missing_ranks = numbered("missing rank", [int(key.rpartition("/")[2]) for key in missing], separator=": ")
                error_type = RendezvousError if keys[0] in missing else UsageError  # without rank 0, every waiting rank reports
                raise error_type(
                    f"{len(keys) - len(missing)} of {len(keys)} ranks joined the rendezvous at "
                    f"{self._rank_env.master_addr}:{self._rank_env.master_port} within {timeout_s:.0f} s; {missing_ranks}",
                    "check that every node has started and can reach that port",
                )
            time.sleep(0.05)
        return [msgspec.json.decode(self._store.get(key), type=RankInfo) for key in keys]

    # heartbeats

    def heartbeat(self, position: Position) -> None:
        """Publish this rank's position with a new count, which distinguishes a waiting rank from a dead one."""
        self._heartbeat_count += 1
        self.set(f"mark/{self._rank_env.rank}", position.encode(self._heartbeat_count))

    def check_connection(self) -> None:
        """Raise OSError if the store's host no longer accepts connections; a call to the store itself would block forever."""
        if self._rank_env.launched:
            _wait_until_reachable(self._rank_env, CONNECT_TIMEOUT_S)

    def heartbeats(self) -> dict[int, tuple[int, Position]]:
        """rank -> (heartbeat count, position), for every rank that has sent a heartbeat."""
        texts = {rank: self.try_get(f"mark/{rank}") for rank in range(self._rank_env.world_size)}
        return {rank: Position.decode(text) for rank, text in texts.items() if text is not None}

    # exit and failure

    def deregister(self) -> None:
        """Mark this rank as ended on purpose, so that ``dead_ranks`` does not report it."""
        self.set(f"left/{self._rank_env.rank}", "1")

    def dead_ranks(self, placements: list[RankPlacement]) -> list[int]:
        """Ranks that ended without ``deregister``, in rank order.

        On this host, those whose process has ended. Only if there are none, those on other hosts without a heartbeat for
        ``HEARTBEAT_TIMEOUT_S``, which this call waits.
        """
        this_host = placements[self._rank_env.rank].host
        ended = [placement.rank for placement in placements if placement.host == this_host and not is_process_alive(placement.pid)]
        if dead := self._not_deregistered(ended):
            return dead
        remote = self._not_deregistered([placement.rank for placement in placements if placement.host != this_host])
        heartbeats_before = {rank: text for rank in remote if (text := self.try_get(f"mark/{rank}")) is not None}
        if heartbeats_before:
            time.sleep(HEARTBEAT_TIMEOUT_S)
        return self._not_deregistered([rank for rank, text in heartbeats_before.items() if self.try_get(f"mark/{rank}") == text])

    def _not_deregistered(self, ranks: list[int]) -> list[int]:
        return [rank for rank in ranks if self.try_get(f"left/{rank}") is None]

    def claim_reporter(self) -> bool:
        """Whether this rank is the first to claim the error message of the launch: one message per launch."""
        return bool(self._store.add("reporter", 1) == 1)

    def report_failure(self, report: FailureReport) -> None:
        """Publish ``report`` for the rank that writes the record; the first report is kept."""
        if self.try_get("failure") is None:
            self.set("failure", encode_json(report).decode())

    def get_failure_report(self) -> FailureReport | None:
        text = self.try_get("failure")
        return msgspec.json.decode(text, type=FailureReport) if text else None


def is_process_alive(pid: int) -> bool:
    """Whether a process of this host still runs; a zombie counts as dead."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def open_store(rank_env: RankEnv, timeout_s: float, serve: bool = False) -> dist.Store:
    """A new connection to the store at the launcher's address. With ``serve``, rank 0 hosts it if the launcher does not.

    Raises RendezvousError if the store is not reachable within ``timeout_s``.
    """
    if not rank_env.launched:
        return dist.HashStore()
    is_host = serve and rank_env.rank == 0 and not rank_env.uses_agent_store
    try:
        if not is_host:
            _wait_until_reachable(rank_env, timeout_s)
        limit = timedelta(seconds=timeout_s)
        store = dist.TCPStore(rank_env.master_addr, rank_env.master_port, is_master=is_host, wait_for_workers=False, timeout=limit)
    except (RuntimeError, OSError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem).splitlines()[0]
        raise RendezvousError(
            f"rank {rank_env.rank} of {rank_env.world_size} cannot reach {rank_env.master_addr}:{rank_env.master_port}: {reason}",
            "check that rank 0's node has started and that this node can reach that port",
        ) from problem
    return dist.PrefixStore(f"ddpbench/{rank_env.restart_count}", store)


def _wait_until_reachable(rank_env: RankEnv, timeout_s: float) -> None:
    """Wait until the store accepts connections, without the stderr output of torch's own retries.

    Raises OSError after ``timeout_s``.
    """
    end = time.monotonic() + timeout_s
    while True:
        try:
            return socket.create_connection((rank_env.master_addr, rank_env.master_port), timeout=max(0.1, end - time.monotonic())).close()
        except OSError:
            if time.monotonic() + CONNECT_RETRY_S > end:
                raise
        time.sleep(CONNECT_RETRY_S)
