"""Which open files forked workers of a script's loader would share, and how to fork workers that do not.

A dataset that opens a file in its constructor has it open before the first epoch: the script's own workers would share it, and mix up
what each reads. One that opens it with its first sample, as it should, has it open in this process if the script loads without workers.
Its own workers would each open it; those that ddpbench forks from this process must forget it first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, MutableSequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import ref

from torch.utils.data import DataLoader

from ddpbench.data.loaders.start_workers import is_forked
from ddpbench.record.script import SharedHandle
from ddpbench.script.diagnose.descriptors import moved_since, positions, restore
from ddpbench.script.diagnose.open_files import OpenFile, Search, find_open_files


@dataclass(frozen=True)
class Reset:
    """Takes an object that was created after the first epoch began out of what holds it."""

    holder: MutableMapping[Any, Any] | MutableSequence[Any]
    key: Any
    was_none: bool  # else there was none

    def apply(self) -> Any:
        """Returns the object, which must not be closed in a forked process: that would move its position."""
        found = self.holder[self.key]
        if self.was_none:
            self.holder[self.key] = None
        else:
            del self.holder[self.key]
        return found


class ForgetFiles:
    """The ``worker_init_fn`` of forked workers, which open their own files. Calls that of the user last."""

    def __init__(self, resets: list[Reset], worker_init: Callable[[int], None] | None) -> None:
        self._resets, self._worker_init = resets, worker_init
        self._kept: list[Any] = []

    def __call__(self, worker: int) -> None:
        self._kept += [reset.apply() for reset in self._resets]
        if self._worker_init:
            self._worker_init(worker)


class SharedFiles:
    """The open files of the datasets of a script, at the beginning of the first epoch and now."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[ref[Any], Search]] = {}
        self._moved: dict[int, list[SharedHandle]] = {}  # by the dataset whose workers move their position

    def begin_epoch(self, loader: Any) -> None:
        """Search the dataset of ``loader``, unless it has begun an epoch before."""
        dataset = getattr(loader, "dataset", None)
        if self._first_search(dataset) is None:
            try:
                weak = ref(dataset)
            except TypeError:  # a list: nothing opens a file in it later
                return
            self._first[id(dataset)] = weak, find_open_files(dataset, getattr(loader, "collate_fn", None))

    def shared(self, loader: DataLoader[Any]) -> list[SharedHandle]:
        """What workers of ``loader`` would share if they were forked now; empty if they are spawned: open files are not pickled."""
        return self._now(loader)[0] or self._moved.get(id(loader.dataset), [])

    def worker_init(self, loader: DataLoader[Any]) -> Callable[[int], None] | None:
        """The ``worker_init_fn`` of workers like those of ``loader``, which are forked from this process."""
        resets = self._now(loader)[1]
        return ForgetFiles(resets, loader.worker_init_fn) if resets else loader.worker_init_fn

    @contextmanager
    def watch_positions(self, loader: DataLoader[Any]) -> Iterator[None]:
        """Notice which files of this process are moved by workers of ``loader`` that ddpbench starts meanwhile.

        They are moved back, unless the script's own workers read them, too.
        """
        before = positions() if is_forked(loader) else []
        try:
            yield
        finally:
            if moved := moved_since(before):
                if not loader.num_workers:
                    restore(moved)
                name = type(loader.dataset).__name__
                self._moved[id(loader.dataset)] = [SharedHandle(name=name, kind="descriptor", path=each.path) for each in moved]

    def _now(self, loader: DataLoader[Any]) -> tuple[list[SharedHandle], list[Reset]]:
        if not is_forked(loader):
            return [], []
        first = self._first_search(loader.dataset)
        shared: list[SharedHandle] = []
        resets: list[Reset] = []
        now = find_open_files(loader.dataset, loader.collate_fn)
        for file in (*now.files, *now.opaque):
            reset = _reset(file, first) if first else None
            if reset is None:
                shared += [SharedHandle(name=file.name, kind=file.kind)] if file.kind else []
            elif not any(other.holder is reset.holder and other.key == reset.key for other in resets):
                resets.append(reset)
        return shared, resets

    def _first_search(self, dataset: Any) -> Search | None:
        weak, search = self._first.get(id(dataset), (None, None))
        return search if weak is not None and weak() is dataset else None


def _reset(file: OpenFile, first: Search) -> Reset | None:
    """How to forget ``file``, or the object that holds it, if there was none in the ``first`` search."""
    for parent, link in zip(file.links, file.links[1:], strict=False):
        if link.name in first.unset:
            return None if link.holder is None else Reset(link.holder, link.key, was_none=True)
        if link.name not in first.names:
            is_known = parent.name not in first.truncated and isinstance(link.holder, MutableMapping)
            return Reset(link.holder, link.key, was_none=False) if is_known and link.holder is not None else None
    return None
