"""Docstrings, comments, messages and help are in plain English: some words are ruled out."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

RULED_OUT = re.compile(
    r"\b(told|tells|anew|whoever|somebody|nobody|laid down|beside which|what lay|where there is|as they are|made set"
    r"|of one's own|an image a GPU a step)\b",
    re.IGNORECASE,
)
"""Words of programs and records that report, and riddles. ``tell`` as in "tell DDP" is fine."""

FILES = [
    *sorted((ROOT / "ddpbench").rglob("*.py")),
    *sorted((ROOT / "docs").rglob("*.py")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "results").rglob("*.py")),
    *sorted((ROOT / "results").rglob("*.md")),
    *sorted((ROOT / "launch").iterdir()),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
]


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every string and comment of a module; the lines of any other file."""
    content = path.read_text()
    if path.suffix != ".py":
        yield from enumerate(content.splitlines(), 1)
        return
    yield from (
        (token.start[0], token.string)
        for token in tokenize.generate_tokens(io.StringIO(content).readline)
        if token.type == tokenize.COMMENT
    )
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def test_ruled_out_words_are_not_used() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]}"
        for path in FILES
        for line, text in texts(path)
        for match in RULED_OUT.finditer(" ".join(text.split()))
    ]
    assert not found, "\n".join(found)


def test_ruled_out_words_are_recognized(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""What a rank tells."""\nWORDS = f"{1} as they\\n    are"  # measured anew\n')
    assert [match[0] for _, text in texts(module) for match in RULED_OUT.finditer(" ".join(text.split()))] == [
        "anew",
        "tells",
        "as they are",
    ]
