"""A notice board in the launcher's store, which outlives rank 0: where ranks leave their place, their mark and their last word."""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from pathlib import Path

import msgspec
from torch import distributed as dist

from ddpbench.machine.progress_marker import Mark
from ddpbench.machine.rank_env import Seat
from ddpbench.record.encoded import encoded
from ddpbench.record.environment import RankPlace, Software
from ddpbench.record.errors import RefusedElsewhere, Status, Unreachable, UsageError
from ddpbench.record.record import Fault

SILENCE_S = 1.5
"""A rank on another host whose mark does not beat for this long is gone: six ticks of its watchdog."""


RETRY_S = 0.1
"""Between two tries to reach a store that may not be there yet."""

ANSWER_S = 5.0
"""A host that takes no connection for so long is gone."""


class Notice(msgspec.Struct, frozen=True):
    """What a rank tells of itself before the ranks meet."""

    place: RankPlace
    software: Software
    data: str = ""
    """The files that it found, which have to be those of all."""

    machine: str = ""
    """What it stands on, where several may have one name."""

    asked: dict[str, str] = {}
    """What it was asked to train, flag by flag, which has to be what all were asked."""


class Blame(msgspec.Struct, frozen=True):
    """How the run ended and why, left by the rank that knows."""

    status: Status
    fault: Fault


class Board:
    """Short texts by key, seen by all ranks. Its connection is its own: a process group waiting in its store does not block it."""

    def __init__(self, store: dist.Store, seat: Seat) -> None:
        self._store = store
        self._seat = seat
        self._beat = 0

    def pin(self, key: str, text: str) -> None:
        self._store.set(key, text)

    def read(self, key: str) -> str | None:
        """The text under ``key``, or ``None``; never waits."""
        return self._store.get(key).decode() if self._store.check([key]) else None

    # who is there

    def arrive(self, notice: Notice) -> None:
        self.pin(f"place/{self._seat.rank}", encoded(notice).decode())

    def wait_for(self, key: str, limit_s: float) -> None:
        """Returns when ``key`` is pinned, or ``limit_s`` is over; raises RefusedElsewhere as soon as a rank has told why it ends."""
        end = time.monotonic() + limit_s
        while self.read(key) is None and time.monotonic() < end:
            if blame := self.blamed():
                raise RefusedElsewhere(blame.fault.message, blame.fault.hint)
            time.sleep(0.05)

    def wait_for_all(self, limit_s: float) -> list[Notice]:
        """The notices of all ranks in rank order; raises UsageError with how many came when ``limit_s`` is over.

        Raises RefusedElsewhere as soon as another rank has told why it does not come.
        """
        keys = [f"place/{rank}" for rank in range(self._seat.world_size)]
        end = time.monotonic() + limit_s
        missing = keys
        while missing := [key for key in missing if not self._store.check([key])]:
            if blame := self.blamed():
                raise RefusedElsewhere(blame.fault.message, blame.fault.hint)
            if time.monotonic() > end:
                ranks = ", ".join(key.rpartition("/")[2] for key in missing[:8])
                kind = Unreachable if keys[0] in missing else UsageError  # without rank 0, whoever is here speaks
                raise kind(
                    f"{len(keys) - len(missing)} of {len(keys)} ranks came to {self._seat.address}:{self._seat.port} "
                    f"within {limit_s:.0f} s; missing: rank {ranks}",
                    "is every node started, and may the nodes reach that port?",
                )
            time.sleep(0.05)
        return [msgspec.json.decode(self._store.get(key), type=Notice) for key in keys]

    # where they are

    def beat(self, mark: Mark) -> None:
        """Publishes this rank's mark; a new beat each time, so that a rank that is alive but waits is told from one that is gone."""
        self._beat += 1
        self.pin(f"mark/{self._seat.rank}", mark.encode(self._beat))

    def must_answer(self) -> None:
        """Raises OSError where nobody listens at the store's address any more: the store itself would be waited for without end."""
        if self._seat.launched:
            _wait_for_an_answer(self._seat, ANSWER_S)

    def marks(self) -> dict[int, tuple[int, Mark]]:
        """rank -> (beat, mark), for every rank that ever beat."""
        texts = {rank: self.read(f"mark/{rank}") for rank in range(self._seat.world_size)}
        return {rank: Mark.decode(text) for rank, text in texts.items() if text is not None}

    # how they leave

    def leave(self) -> None:
        """This rank ends on purpose: whoever looks for a dead one need not count it."""
        self.pin(f"left/{self._seat.rank}", "1")

    def gone(self, places: list[RankPlace]) -> list[int]:
        """Ranks that ended without a word: a dead process on this host, a mark that stopped beating on another."""
        own_host = places[self._seat.rank].host
        local = [place.rank for place in places if place.host == own_host and not alive(place.pid)]
        before = {place.rank: self.read(f"mark/{place.rank}") for place in places if place.host != own_host}
        if before and not local:
            time.sleep(SILENCE_S)
        remote = [rank for rank, text in before.items() if text is not None and self.read(f"mark/{rank}") == text]
        return [rank for rank in (*local, *remote) if self.read(f"left/{rank}") is None]

    def claim(self) -> bool:
        """Whether this rank is the first to speak for the launch: one message a launch."""
        return bool(self._store.add("spoken", 1) == 1)

    def blame(self, blame: Blame) -> None:
        """Leaves what happened for whoever writes the record; the first word stands."""
        if self.read("blame") is None:
            self.pin("blame", encoded(blame).decode())

    def blamed(self) -> Blame | None:
        text = self.read("blame")
        return msgspec.json.decode(text, type=Blame) if text else None


def alive(pid: int) -> bool:
    """Whether a process of this host still runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def open_store(seat: Seat, limit_s: float, serve: bool = False) -> dist.Store:
    """A new connection to the store at the launcher's address; with ``serve``, rank 0 hosts it where the launcher does not.

    Raises Unreachable where nobody answers within ``limit_s``.
    """
    if not seat.launched:
        return dist.HashStore()
    serves = serve and seat.rank == 0 and not seat.agent_store
    try:
        if not serves:
            _wait_for_an_answer(seat, limit_s)
        limit = timedelta(seconds=limit_s)
        store = dist.TCPStore(seat.address, seat.port, is_master=serves, wait_for_workers=False, timeout=limit)
    except (RuntimeError, OSError) as problem:
        why = getattr(problem, "strerror", None) or str(problem).splitlines()[0]
        raise Unreachable(
            f"rank {seat.rank} of {seat.world_size} cannot reach {seat.address}:{seat.port}: {why}",
            "is rank 0's node started, and may this node reach that port?",
        ) from problem
    return dist.PrefixStore(f"ddpbench/{seat.attempt}", store)


def _wait_for_an_answer(seat: Seat, limit_s: float) -> None:
    """Returns when somebody listens there, which torch's own waiting would fill stderr for. Raises OSError after ``limit_s``."""
    end = time.monotonic() + limit_s
    while True:
        try:
            return socket.create_connection((seat.address, seat.port), timeout=max(0.1, end - time.monotonic())).close()
        except OSError:
            if time.monotonic() + RETRY_S > end:
                raise
        time.sleep(RETRY_S)
