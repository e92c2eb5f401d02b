"""Accuracy of ``ddpbench diagnose SCRIPT``: the scripts of tests/scripts, whose limits are known.

    python results/watch/scripts.py [NAME...]

Diagnoses the named scripts, or all of them, each as often as tests/scripts/tries.py says; one diagnosis takes a minute and a half. With
a GPU those that need one, one after the other, else the others: each on two cores, several at once if there are more. Writes
scripts.json next to this file after each diagnosis, and README.md from it. Goes on where an earlier call was stopped: a script that has
all of its tries is skipped.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "support")]

import msgspec  # noqa: E402
import torch  # noqa: E402
from core_slots import run_on_core_slots  # noqa: E402
from scripts.page import page  # noqa: E402
from scripts.tries import Tried, scripts_of, tries_of, try_script  # noqa: E402

RECORD, PAGE = HERE / "scripts.json", HERE / "README.md"


def main(names: list[str]) -> None:
    known = {script.title: script for script in scripts_of(torch.cuda.is_available())}
    if unknown := set(names) - known.keys():
        sys.exit(f"unknown script: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    tried = msgspec.json.decode(RECORD.read_bytes(), type=dict[str, Tried]) if RECORD.exists() else {}
    for title in names or known:
        tried.setdefault(title, Tried(title=title, right=" or ".join(known[title].causes) or known[title].kind))
    missing = {title: tries_of(known[title]) - len(tried[title].tries) for title in names or known}
    saving = threading.Lock()

    def diagnose(title: str, cores: list[int]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            found = try_script(known[title], Path(folder), cores)
        print(f"{title}: {found.said.score}: {found.said.verdict}: {found.said.says or found.said.problem}; {found.said.why}", flush=True)
        with saving:
            tried[title].tries.append(found)
            RECORD.write_bytes(msgspec.json.format(msgspec.json.encode(tried), indent=1) + b"\n")
            PAGE.write_text(page(list(tried.values())))

    rounds = range(max(missing.values(), default=0))  # each script once, before any is tried again
    tasks = [title for number in rounds for title in missing if missing[title] > number]
    run_on_core_slots(diagnose, tasks, at_once=1 if torch.cuda.is_available() else None)


if __name__ == "__main__":
    main(sys.argv[1:])
