"""The file that holds a diff, and above it the arguments of the script in a line that ``git apply`` passes over."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from ddpbench.record.script_diff import ScriptDiff

ARGUMENTS = "Arguments: "


def diff_file_text(diff: ScriptDiff) -> str:
    """What the file holds."""
    return (f"{ARGUMENTS}{diff.arguments}\n" if diff.arguments else "") + diff.text


def arguments_in(text: str) -> list[str]:
    """The arguments that the text of such a file names; empty for that of another program."""
    first = text.partition("\n")[0]
    return shlex.split(first.removeprefix(ARGUMENTS)) if first.startswith(ARGUMENTS) else []


def write_diff_file(diff: ScriptDiff, path: Path) -> None:
    """Raises OSError."""
    path.write_text(diff_file_text(diff), encoding="utf-8")


def with_arguments(command: Sequence[str], words: Sequence[str]) -> list[str]:
    """``command`` with each option of ``words`` in place of the last such one, the only one that counts, or at its end."""
    given = [*command]
    while words:
        end = next((place for place, word in enumerate(words) if place and word.startswith("-")), len(words))
        given, words = _with_option(given, words[:end]), words[end:]
    return given


def _with_option(given: list[str], words: Sequence[str]) -> list[str]:
    option = words[0]
    for place in reversed(range(len(given))):
        if given[place].startswith(f"{option}=") and len(words) == 2:
            return [*given[:place], f"{option}={words[1]}", *given[place + 1 :]]
        if given[place] == option:
            has_value = len(words) == 2 and place + 1 < len(given) and not given[place + 1].startswith("-")
            return [*given[:place], *words, *given[place + 1 + has_value :]]
    return [*given, *words]
