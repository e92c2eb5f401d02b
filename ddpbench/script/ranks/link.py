"""Messages between rank 0 and the other ranks besides their steps: rank 0 is alive, a rank has failed, all ranks must end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import msgspec
from torch import distributed as dist

from ddpbench.record.environment import RankPlacement
from ddpbench.record.io import encode_json
from ddpbench.record.ranges import Count
from ddpbench.script.ranks.gather import BEFORE_FIRST_BATCH, POLL_S, SILENT, SILENT_PERIODS
from ddpbench.script.ranks.progress import RankProgress

STATE, FAILED, SEEN, ABORT, GO, REPORTER = (f"watch/{name}" for name in ("rank-0", "failed", "seen", "abort", "go", "reporter"))


class Rank0State(msgspec.Struct, frozen=True, kw_only=True):
    """What rank 0 publishes for the other ranks."""

    placement: RankPlacement
    messages: Count = 0
    progress: RankProgress = RankProgress()
    record_path: str = ""  # empty until it is saved
    has_ended: bool = False


class CoordinatorLink:
    """The end of rank 0."""

    def __init__(self, store: dist.Store, placement: RankPlacement) -> None:
        self._store, self._state = store, Rank0State(placement=placement)

    def send(self, progress: RankProgress, record_path: str, has_ended: bool) -> None:
        """Publish that rank 0 lives, or that its script has ended."""
        messages = self._state.messages + 1
        self._state = Rank0State(
            placement=self._state.placement, messages=messages, progress=progress, record_path=record_path, has_ended=has_ended
        )
        self._store.set(STATE, encode_json(self._state).decode())

    def has_failed_rank(self) -> bool:
        """Whether a rank has failed. It waits for ``confirm_failure`` before its process ends."""
        return bool(self._store.check([FAILED])) and not self._store.check([SEEN])

    def confirm_failure(self) -> None:
        self._store.set(SEEN, "1")

    def announce_abort(self) -> None:
        """Make the other ranks wait for ``abort``, so that none sees the others' connections close before it ends."""
        self._store.set(ABORT, "1")

    def abort(self) -> None:
        """End the other ranks now."""
        self._store.set(GO, "1")


class FollowerLink:
    """The end of any other rank."""

    def __init__(self, store: dist.Store, period_s: float) -> None:
        self._store, self._silent_s = store, SILENT_PERIODS * period_s
        self._heard_s = time.monotonic()
        self.state: Rank0State | None = None

    def receive(self) -> None:
        """Fetch the last state of rank 0."""
        if not self._store.check([STATE]):
            return
        state = msgspec.json.decode(self._store.get(STATE), type=Rank0State)
        if self.state is None or state.messages != self.state.messages:
            self._heard_s = time.monotonic()
        self.state = state

    @property
    def has_ended(self) -> bool:
        """Whether the script of rank 0 has ended."""
        return self.state is not None and self.state.has_ended

    def progress(self) -> RankProgress | None:
        """The standstill of rank 0, if it sends nothing (any more); else None: it looks after itself."""
        silent_s = time.monotonic() - self._heard_s
        if self.has_ended or silent_s < self._silent_s:
            return None
        if self.state is None:
            return RankProgress(idle_s=silent_s, is_silent=True, line=BEFORE_FIRST_BATCH)
        idle_s = self.state.progress.idle_s + silent_s
        return msgspec.structs.replace(self.state.progress, idle_s=idle_s, is_silent=True, line=SILENT)

    def is_aborted(self) -> bool:
        """Whether rank 0 ends all ranks."""
        return bool(self._store.check([ABORT]))

    def wait_for_abort(self, timeout_s: float) -> None:
        with suppress(RuntimeError):  # rank 0 has ended first, or the store with it
            self._store.wait([GO], timedelta(seconds=timeout_s))

    def report_failure(self, timeout_s: float, has_rank0_process_ended: Callable[[], bool] = lambda: False) -> None:
        """Publish that this rank has failed, and wait until rank 0 has saved that: a launcher may end all ranks as soon as one has."""
        self._store.set(FAILED, "1")
        end_s = time.monotonic() + timeout_s
        while not self._store.check([SEEN]) and not has_rank0_process_ended() and time.monotonic() < end_s:
            time.sleep(POLL_S)

    def claim_reporter(self) -> bool:
        """Whether this rank is the first to report in place of rank 0."""
        return bool(self._store.add(REPORTER, 1) == 1)
