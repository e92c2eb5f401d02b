"""A notice board in the launcher's store, which outlives rank 0: where ranks leave their place, their mark and their last word."""

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
from ddpbench.record.files import encode_json
from ddpbench.record.record import Fault

HEARTBEAT_TIMEOUT_S = 1.5
"""A rank on another host whose mark does not beat for this long is gone: six ticks of its watchdog."""


CONNECT_RETRY_S = 0.1
"""Between two tries to reach a store that may not be there yet."""

CONNECT_TIMEOUT_S = 5.0
"""A host that takes no connection for so long is gone."""


class RankInfo(msgspec.Struct, frozen=True):
    """What a rank tells of itself before the ranks meet."""

    placement: RankPlacement
    software: Software
    data_fingerprint: str = ""
    """The files that it found, which have to be those of all."""

    machine_id: str = ""
    """What it stands on, where several may have one name."""

    requested: dict[str, str] = {}
    """What it was asked to train, flag by flag, which has to be what all were asked."""


class FailureReport(msgspec.Struct, frozen=True):
    """How the run ended and why, left by the rank that knows."""

    status: Status
    fault: Fault


class RankStore:
    """Short texts by key, seen by all ranks. Its connection is its own: a process group waiting in its store does not block it."""

    def __init__(self, store: dist.Store, rank_env: RankEnv) -> None:
        self._store = store
        self._rank_env = rank_env
        self._heartbeat_count = 0

    def set(self, key: str, text: str) -> None:
        self._store.set(key, text)

    def try_get(self, key: str) -> str | None:
        """The text under ``key``, or ``None``; never waits."""
        return self._store.get(key).decode() if self._store.check([key]) else None

    # who is there

    def register(self, info: RankInfo) -> None:
        self.set(f"place/{self._rank_env.rank}", encode_json(info).decode())

    def wait_for_key(self, key: str, timeout_s: float) -> None:
        """Returns when ``key`` is pinned, or ``timeout_s`` is over; raises RefusedElsewhere as soon as a rank has told why it ends."""
        end = time.monotonic() + timeout_s
        while self.try_get(key) is None and time.monotonic() < end:
            if blame := self.get_failure_report():
                raise ReportedByPeer(blame.fault.message, blame.fault.hint)
            time.sleep(0.05)

    def wait_for_ranks(self, timeout_s: float) -> list[RankInfo]:
        """The notices of all ranks in rank order; raises UsageError with how many came when ``timeout_s`` is over.

        Raises RefusedElsewhere as soon as another rank has told why it does not come.
        """
        keys = [f"place/{rank}" for rank in range(self._rank_env.world_size)]
        end = time.monotonic() + timeout_s
        missing = keys
        while missing := [key for key in missing if not self._store.check([key])]:
            if blame := self.get_failure_report():
                raise ReportedByPeer(blame.fault.message, blame.fault.hint)
            if time.monotonic() > end:
                ranks = ", ".join(key.rpartition("/")[2] for key in missing[:8])
                kind = RendezvousError if keys[0] in missing else UsageError  # without rank 0, whoever is here speaks
                raise kind(
                    f"{len(keys) - len(missing)} of {len(keys)} ranks came to {self._rank_env.master_addr}:{self._rank_env.master_port} "
                    f"within {timeout_s:.0f} s; missing: rank {ranks}",
                    "is every node started, and may the nodes reach that port?",
                )
            time.sleep(0.05)
        return [msgspec.json.decode(self._store.get(key), type=RankInfo) for key in keys]

    # where they are

    def heartbeat(self, position: Position) -> None:
        """Publishes this rank's mark; a new beat each time, so that a rank that is alive but waits is told from one that is gone."""
        self._heartbeat_count += 1
        self.set(f"mark/{self._rank_env.rank}", position.encode(self._heartbeat_count))

    def check_connection(self) -> None:
        """Raises OSError where nobody listens at the store's address any more: the store itself would be waited for without end."""
        if self._rank_env.launched:
            _wait_until_reachable(self._rank_env, CONNECT_TIMEOUT_S)

    def heartbeats(self) -> dict[int, tuple[int, Position]]:
        """rank -> (beat, mark), for every rank that ever beat."""
        texts = {rank: self.try_get(f"mark/{rank}") for rank in range(self._rank_env.world_size)}
        return {rank: Position.decode(text) for rank, text in texts.items() if text is not None}

    # how they leave

    def deregister(self) -> None:
        """This rank ends on purpose: whoever looks for a dead one need not count it."""
        self.set(f"left/{self._rank_env.rank}", "1")

    def dead_ranks(self, placements: list[RankPlacement]) -> list[int]:
        """Ranks that ended without a word: a dead process on this host, a mark that stopped beating on another."""
        own_host = placements[self._rank_env.rank].host
        local = [place.rank for place in placements if place.host == own_host and not is_process_alive(place.pid)]
        before = {place.rank: self.try_get(f"mark/{place.rank}") for place in placements if place.host != own_host}
        if before and not local:
            time.sleep(HEARTBEAT_TIMEOUT_S)
        remote = [rank for rank, text in before.items() if text is not None and self.try_get(f"mark/{rank}") == text]
        return [rank for rank in (*local, *remote) if self.try_get(f"left/{rank}") is None]

    def claim_reporter(self) -> bool:
        """Whether this rank is the first to speak for the launch: one message a launch."""
        return bool(self._store.add("spoken", 1) == 1)

    def report_failure(self, report: FailureReport) -> None:
        """Leaves what happened for whoever writes the record; the first word stands."""
        if self.try_get("blame") is None:
            self.set("blame", encode_json(report).decode())

    def get_failure_report(self) -> FailureReport | None:
        text = self.try_get("blame")
        return msgspec.json.decode(text, type=FailureReport) if text else None


def is_process_alive(pid: int) -> bool:
    """Whether a process of this host still runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def open_store(rank_env: RankEnv, timeout_s: float, serve: bool = False) -> dist.Store:
    """A new connection to the store at the launcher's address; with ``serve``, rank 0 hosts it where the launcher does not.

    Raises Unreachable where nobody answers within ``timeout_s``.
    """
    if not rank_env.launched:
        return dist.HashStore()
    serves = serve and rank_env.rank == 0 and not rank_env.uses_agent_store
    try:
        if not serves:
            _wait_until_reachable(rank_env, timeout_s)
        limit = timedelta(seconds=timeout_s)
        store = dist.TCPStore(rank_env.master_addr, rank_env.master_port, is_master=serves, wait_for_workers=False, timeout=limit)
    except (RuntimeError, OSError) as problem:
        why = getattr(problem, "strerror", None) or str(problem).splitlines()[0]
        raise RendezvousError(
            f"rank {rank_env.rank} of {rank_env.world_size} cannot reach {rank_env.master_addr}:{rank_env.master_port}: {why}",
            "is rank 0's node started, and may this node reach that port?",
        ) from problem
    return dist.PrefixStore(f"ddpbench/{rank_env.restart_count}", store)


def _wait_until_reachable(rank_env: RankEnv, timeout_s: float) -> None:
    """Returns when somebody listens there, which torch's own waiting would fill stderr for. Raises OSError after ``timeout_s``."""
    end = time.monotonic() + timeout_s
    while True:
        try:
            return socket.create_connection((rank_env.master_addr, rank_env.master_port), timeout=max(0.1, end - time.monotonic())).close()
        except OSError:
            if time.monotonic() + CONNECT_RETRY_S > end:
                raise
        time.sleep(CONNECT_RETRY_S)
