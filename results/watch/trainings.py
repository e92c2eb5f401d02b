"""Truths of the trainings in tests/trainings, on which no rule was tuned, and what ``ddpbench diagnose`` says of them.

    python results/watch/trainings.py truth [--repositories FOLDER] [--seconds S] [--pairs N] [NAME...]
    python results/watch/trainings.py diagnose [--repositories FOLDER] [--time-limit S] [--records FOLDER] [NAME...]
    python results/watch/trainings.py prove [--repositories FOLDER] [--seconds S] [--pairs N] [NAME...]
    python results/watch/trainings.py merge FILE...
    python results/watch/trainings.py page

``truth`` times the named trainings, or all of them, in alternating plain runs: as it is, with each change, and once on batches that are
repeated from memory. ``diagnose`` diagnoses them with the ddpbench of this checkout. ``prove`` times what the last diagnosis of each
advises, if it is other arguments of a DataLoader: runs as it is and with the change alternate. Each run has two cores, several at once if
there are more. ``merge`` adds what another record, of another machine, has beside this one.

Public repositories are checked out in FOLDER of --repositories, each in a folder of its name, at the commit that the list names; their
packages, and those of ddpbench, are on PYTHONPATH. Writes trainings.json next to this file, or to the folder --out, after each run, and
trainings.md from it. Goes on where an earlier call was stopped.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "support"), str(ROOT)]

import msgspec  # noqa: E402
from core_slots import CORES, run_on_core_slots  # noqa: E402
from scripts.tries import TIME_LIMIT_S  # noqa: E402
from trainings import proofs  # noqa: E402
from trainings.diagnoses import diagnose, sources  # noqa: E402
from trainings.kept import AS_IS, Proof, Timing, Truth  # noqa: E402
from trainings.listing import TRAININGS, Change, Training  # noqa: E402
from trainings.page import page  # noqa: E402
from trainings.pinned import machine, place, prepare  # noqa: E402
from trainings.truths import command, planned, run  # noqa: E402

LIMIT_S = 240
"""Of one plain run, its start included."""

NAME = "trainings.json"


class Book:
    """The record, written to the folder ``out`` after each run. It begins with that next to this file."""

    def __init__(self, out: Path) -> None:
        self.path, self.lock = out / NAME, threading.Lock()
        out.mkdir(parents=True, exist_ok=True)
        self.truths = read(self.path if self.path.exists() else HERE / NAME)

    def truth(self, training: Training) -> Truth:
        with self.lock:
            return self.truths.setdefault(training.name, Truth(name=training.name))

    @contextmanager
    def changed(self) -> Iterator[None]:
        """Within it, truths may be changed; after it they are saved."""
        with self.lock:
            yield
            self.save()

    def save(self) -> None:
        order = {training.name: number for number, training in enumerate(TRAININGS)}
        self.truths = dict(sorted(self.truths.items(), key=lambda item: order.get(item[0], len(order))))
        self.path.write_bytes(msgspec.json.format(msgspec.json.encode(self.truths), indent=1) + b"\n")
        self.path.with_suffix(".md").write_text(page(self.truths))

    def merge(self, other: Path) -> None:
        for name, truth in read(other).items():
            self.truths.setdefault(name, Truth(name=name)).add(truth)


def read(path: Path) -> dict[str, Truth]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Truth]) if path.exists() else {}


def measure(training: Training, asked: argparse.Namespace, book: Book, cores: list[int]) -> None:
    """All runs of one training that are missing."""
    truth = book.truth(training)
    done = {title: len(runs) for title, runs in truth.runs.items()}
    for title, change in planned(training, asked.pairs):
        if done.get(title, 0) > 0:
            done[title] -= 1
            continue
        if time.monotonic() > asked.end_s:
            break
        found = timed(training, title, change, asked, cores)
        with book.changed():
            if isinstance(found, str):
                truth.failures[title] = found
            else:
                truth.runs.setdefault(title, []).append(found)
                truth.failures.pop(title, None)
                truth.machine = asked.machine


def diagnose_once(training: Training, asked: argparse.Namespace, book: Book, cores: list[int]) -> None:
    """A diagnosis, unless this ddpbench has made one."""
    truth = book.truth(training)
    if any(found.sources == sources() for found in truth.diagnosed) or time.monotonic() > asked.end_s:
        return
    found = diagnose(training, asked.repositories, asked.data / training.name, cores, asked.time_limit, asked.records)
    with book.changed():
        truth.diagnosed.append(msgspec.structs.replace(found, machine=asked.machine))
    print(f"{training.name}: diagnosed in {found.elapsed_s:.0f} s, exit code {found.exit_code}", flush=True)


def prove(training: Training, asked: argparse.Namespace, book: Book, cores: list[int]) -> None:
    """The runs that prove what the last diagnosis advises. Those of another machine are replaced."""
    truth = book.truth(training)
    change = proofs.change_of(training, truth.diagnosed[-1].step) if truth.diagnosed else None
    if change is None:
        return
    proof = truth.proofs.get(change.title) or Proof(machine=asked.machine)
    if len(proof.changed) < asked.pairs and proof.machine != asked.machine:
        proof = Proof(machine=asked.machine)
    for kind in proofs.missing(proof, asked.pairs):
        if time.monotonic() > asked.end_s:
            return
        found = timed(training, kind, None if kind == AS_IS else change, asked, cores)
        with book.changed():
            proofs.add(proof, kind, found)
            truth.proofs[change.title] = proof


def timed(training: Training, title: str, change: Change | None, asked: argparse.Namespace, cores: list[int]) -> Timing | str:
    """The window of one plain run, or its last lines if it failed."""
    folder = asked.data / training.name
    words = command(training, title, change, folder, asked.seconds)
    found = run(training, words, asked.repositories, folder, cores, min(LIMIT_S, asked.end_s + 60 - time.monotonic()))
    shown = change.title if change else title
    print(f"{training.name}: {shown}: {found if isinstance(found, str) else found.ms_per_step}", flush=True)
    return found


WORK: dict[str, Callable[[Training, argparse.Namespace, Book, list[int]], None]] = {
    "truth": measure,
    "diagnose": diagnose_once,
    "prove": prove,
}


def work(asked: argparse.Namespace, book: Book, wanted: list[Training]) -> None:
    """Do what was asked for with each training, on cores of its own."""

    def one(training: Training, cores: list[int]) -> None:
        prepare(training, asked.repositories, asked.data / training.name)
        WORK[asked.verb](training, asked, book, cores)

    run_on_core_slots(one, wanted)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=(*WORK, "merge", "page"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="trainings; with merge, files")
    temporary = Path(tempfile.gettempdir())
    parser.add_argument("--repositories", type=Path, default=Path("repositories"))
    parser.add_argument("--data", type=Path, default=temporary / "trainings", help="folder for generated data")
    parser.add_argument("--out", type=Path, default=HERE, help=f"folder for {NAME} and its page")
    parser.add_argument("--records", type=Path, default=temporary / "trainings-records", help="folder for records and output of diagnoses")
    parser.add_argument("--time-limit", type=int, default=TIME_LIMIT_S, metavar="S", help="of a diagnosis")
    parser.add_argument("--seconds", type=float, default=12.0, help="of the window of a plain run")
    parser.add_argument("--pairs", type=int, default=2, help="plain runs of each kind")
    parser.add_argument("--for-seconds", type=float, default=1e9, help="begin no run later")
    return parser.parse_intermixed_args()


def main() -> None:
    asked = options()
    book = Book(asked.out)
    if asked.verb in WORK:
        known = {training.name: training for training in TRAININGS}
        if unknown := set(asked.names) - known.keys():
            sys.exit(f"unknown training: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
        asked.repositories, asked.data, asked.records = asked.repositories.resolve(), asked.data.resolve(), asked.records.resolve()
        asked.end_s = time.monotonic() + asked.for_seconds
        asked.machine = machine(CORES)
        wanted = [known[name] for name in asked.names] if asked.names else list(TRAININGS)
        if missing := [training.name for training in wanted if not place(training, asked.repositories).exists()]:
            print(f"not checked out in {asked.repositories}, left out: {', '.join(missing)}", flush=True)
        work(asked, book, [training for training in wanted if training.name not in missing])
    elif asked.verb == "merge":
        for name in asked.names:
            book.merge(Path(name))
    book.save()


if __name__ == "__main__":
    main()
