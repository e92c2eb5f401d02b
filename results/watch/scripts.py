"""Accuracy of ``ddpbench diagnose SCRIPT``: the scripts of tests/scripts, whose limits are known.

    python results/watch/scripts.py [NAME...]

Diagnoses the named scripts, or all of them, each as often as tests/scripts/tries.py says; one diagnosis takes a minute and a half. With
a GPU those that need one, else the others. Writes scripts.json next to this file after each diagnosis, and README.md from it. Goes on
where an earlier call was stopped: a script that has all of its tries is skipped.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "support")]

import msgspec  # noqa: E402
import torch  # noqa: E402
from scripts.page import page  # noqa: E402
from scripts.tries import Tried, scripts_of, tries_of, try_script  # noqa: E402

RECORD, PAGE = HERE / "scripts.json", HERE / "README.md"


def main(names: list[str]) -> None:
    known = {script.title: script for script in scripts_of(torch.cuda.is_available())}
    if unknown := set(names) - known.keys():
        sys.exit(f"unknown script: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    tried = msgspec.json.decode(RECORD.read_bytes(), type=dict[str, Tried]) if RECORD.exists() else {}
    for number in range(max(map(tries_of, known.values()), default=0)):  # each script once, before any is tried again
        for title in names or known:
            found = tried.setdefault(title, Tried(title=title, right=" or ".join(known[title].causes) or known[title].kind))
            if len(found.tries) > number or number >= tries_of(known[title]):
                continue
            with tempfile.TemporaryDirectory() as folder:
                found.tries.append(try_script(known[title], Path(folder)))
            said = found.tries[-1].said
            print(f"{title}: {said.score}: {said.verdict}: {said.says or said.problem}; {said.why}", flush=True)
            RECORD.write_bytes(msgspec.json.format(msgspec.json.encode(tried), indent=1) + b"\n")
            PAGE.write_text(page(list(tried.values())))


if __name__ == "__main__":
    main(sys.argv[1:])
