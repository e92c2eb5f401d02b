"""The diff of a user's script on the page of a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ddpbench.record.script_diff import ScriptDiff
from ddpbench.report.layout import BAD, GOOD, LABEL, Page, styled, wrap_command, wrap_text
from ddpbench.report.messages.script_diff import no_diff_text

MAX_LINES = 20
"""Lines of a diff on a page. Of a longer one the page has the file only."""

INDENT = " " * len("  diff  ")
FOLD = "    "
"""Before the rest of a line that is too long for the page."""


def diff_lines(diff: ScriptDiff | None, page: Page) -> Iterator[Text]:
    """The diff, the command with the script's own arguments, and how to prove both; and why a part, or all, is missing."""
    if diff is None:
        return
    if diff.command:
        yield from styled(wrap_command("  run   ", diff.command, page), LABEL, len("  run"))
    if diff.text:
        yield from styled([f"  diff  {diff.file}"], LABEL, len("  diff"))
        lines = [Text(part, style) for line in diff.text.split("\n")[:-1] for part, style in _folded(line, page.width)]
        yield from lines if len(lines) <= MAX_LINES else ()
    if diff.obstacle:
        yield from styled(wrap_text("  diff  ", no_diff_text(diff.obstacle, diff.missing), page), LABEL, len("  diff"))
    if diff.proof:
        yield from styled(wrap_command("  prove ", diff.proof, page), LABEL, len("  prove"))


def diff_texts(diff: ScriptDiff | None) -> dict[str, str]:
    """The same, without the text of the diff, by their labels."""
    if diff is None:
        return {}
    missing = no_diff_text(diff.obstacle, diff.missing) if diff.obstacle else ""
    file = "; ".join(filter(None, (diff.file if diff.text else "", missing)))
    return {"run": diff.command, "diff": file, "prove": diff.proof}


def _folded(line: str, width: int) -> Iterator[tuple[str, str]]:
    """Parts of a line of a diff that fit into ``width``, and their style."""
    style = LABEL if line[:3] in ("---", "+++") else GOOD if line[:1] == "+" else BAD if line[:1] == "-" else ""
    room = max(width - len(INDENT), 20)
    yield f"{INDENT}{line[:room]}".rstrip(), style
    room -= len(FOLD)
    for start in range(room + len(FOLD), len(line), room):
        yield f"{INDENT}{FOLD}{line[start : start + room]}", style
