"""Truths of the trainings in tests/trainings, on which no rule was tuned.

    python results/watch/trainings.py truth [--repositories FOLDER] [--seconds S] [--pairs N] [NAME...]
    python results/watch/trainings.py page

``truth`` times the named trainings, or all of them, in alternating plain runs: as it is, with each change, and once on batches that are
repeated from memory; each on two cores, several at once if there are more. Public repositories are checked out in FOLDER, each in a
folder of its name, at the commit that the list names; packages are on PYTHONPATH. Writes trainings.json next to this file after each
run, and trainings.md from it. Goes on where an earlier call was stopped.
"""

from __future__ import annotations

import argparse
import os
import queue
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "tests")]

import msgspec  # noqa: E402
from trainings.listing import TRAININGS, Training  # noqa: E402
from trainings.page import page  # noqa: E402
from trainings.truths import BATCHES, Truth, command, machine, place, planned, prepare, run  # noqa: E402

LIMIT_S = 240
"""Of one run, its start included."""

CORES = 2
"""Of one run."""


class Book:
    """The record, written after each run."""

    def __init__(self, record: Path) -> None:
        self.record, self.lock = record, threading.Lock()
        self.truths = msgspec.json.decode(record.read_bytes(), type=dict[str, Truth]) if record.exists() else {}

    def save(self) -> None:
        order = [training.name for training in TRAININGS]
        self.truths = dict(sorted(self.truths.items(), key=lambda item: order.index(item[0])))
        self.record.write_bytes(msgspec.json.format(msgspec.json.encode(self.truths), indent=1) + b"\n")
        self.record.with_suffix(".md").write_text(page(self.truths, BATCHES))


def measure(training: Training, asked: argparse.Namespace, book: Book, slots: queue.Queue[list[int]]) -> None:
    """All runs of one training that are missing."""
    with book.lock:
        truth = book.truths.setdefault(training.name, Truth(name=training.name))
    folder, cores = asked.data / training.name, slots.get()
    try:
        prepare(training, asked.repositories, folder)
        done = {title: len(runs) for title, runs in truth.runs.items()}
        for title, change in planned(training, asked.pairs):
            if done.get(title, 0) > 0:
                done[title] -= 1
                continue
            if time.monotonic() > asked.end_s:
                break
            words = command(training, title, change, folder, asked.seconds)
            found = run(training, words, asked.repositories, folder, cores, min(LIMIT_S, asked.end_s + 60 - time.monotonic()))
            with book.lock:
                if isinstance(found, str):
                    truth.failures[title] = found
                else:
                    truth.runs.setdefault(title, []).append(found)
                    truth.failures.pop(title, None)
                    truth.machine = asked.machine
                book.save()
            print(f"{training.name}: {title}: {found if isinstance(found, str) else found.ms_per_step}", flush=True)
    finally:
        slots.put(cores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("truth", "page"))
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--repositories", type=Path, default=Path("repositories"))
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "trainings", help="folder for generated data")
    parser.add_argument("--record", type=Path, default=HERE / "trainings.json")
    parser.add_argument("--seconds", type=float, default=12.0, help="of the window of a run")
    parser.add_argument("--pairs", type=int, default=2, help="runs of each kind")
    parser.add_argument("--for-seconds", type=float, default=1e9, help="begin no run later")
    asked = parser.parse_intermixed_args()
    known = {training.name: training for training in TRAININGS}
    if unknown := set(asked.names) - known.keys():
        sys.exit(f"unknown training: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    book = Book(asked.record)
    if asked.verb == "truth":
        asked.repositories, asked.data = asked.repositories.resolve(), asked.data.resolve()
        asked.end_s = time.monotonic() + asked.for_seconds
        asked.machine = machine(CORES)
        usable = sorted(os.sched_getaffinity(0))
        slots: queue.Queue[list[int]] = queue.Queue()
        for first in range(0, max(len(usable) - CORES, 0) + 1, CORES):
            slots.put(usable[first : first + CORES])
        wanted = [known[name] for name in asked.names] if asked.names else list(TRAININGS)
        if missing := [training.name for training in wanted if not place(training, asked.repositories).exists()]:
            print(f"not checked out in {asked.repositories}, left out: {', '.join(missing)}", flush=True)
        with ThreadPoolExecutor(slots.qsize()) as pool:
            for done in [pool.submit(measure, training, asked, book, slots) for training in wanted if training.name not in missing]:
                done.result()
    book.save()


if __name__ == "__main__":
    main()
