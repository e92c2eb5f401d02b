"""Runs a script whose files are protected: ``protected.py SCRATCH REPORT landlock|python SCRIPT [ARGUMENT]...``

A refusal is a line of stderr, as is a file whose denial has ended the script.
REPORT, outside of the scratch folder, gets a line from ddpbench itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ddpbench.script.protect.protection import FileProtection
from ddpbench.script.protect.refusal import Refusal
from ddpbench.script.run_script import Program, run_program


def print_refusal(refusal: Refusal) -> None:
    print("refused", refusal.action, refusal.name, file=sys.stderr, flush=True)


def main() -> None:
    scratch, report, defence, script, *arguments = sys.argv[1:]
    protection = FileProtection(Path(scratch), print_refusal, use_landlock=defence == "landlock")
    protection.install()
    ending = run_program(Program(script, tuple(arguments)))
    if denied := protection.denied(ending.problem):
        print("denied", denied.action, denied.name, file=sys.stderr, flush=True)
    protection.run_unprotected(Path(report).write_text, f"landlock {protection.has_landlock}\n")
    ending.exit_process()


if __name__ == "__main__":
    main()
