"""Markdown documents of the repository: their headings, links, code spans, fenced blocks, and the commands in them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

FENCE = re.compile(r"^\s*```(\w*)\s*$")
HEADING = re.compile(r"^(#+) +(.*)$")
CODE_SPAN = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
OFFERED_COMMAND = re.compile(r"^ *(?:next|use)? +((?:ddpbench|python -m ddpbench|torchrun) \S.*)$")
"""A command that a printed report offers: below a remedy, or after ``next`` or ``use``."""


class Text(NamedTuple):
    """Text, and the number of its first line."""

    line: int
    text: str


@dataclass
class Block:
    """A fenced block. ``line`` is the line of its opening fence."""

    line: int
    language: str
    lines: list[Text] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)


class Document:
    """A Markdown document."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.prose: list[Text] = []  # all lines outside of blocks
        self.blocks: list[Block] = []
        block: Block | None = None
        for line in map(Text._make, enumerate(path.read_text().splitlines(), 1)):
            if fence := FENCE.match(line.text):
                if block is None:
                    self.blocks.append(block := Block(line.line, fence[1]))
                else:
                    block = None
            elif block is None:
                self.prose.append(line)
            else:
                block.lines.append(line)

    @property
    def name(self) -> str:
        """Path from the root of the repository, if it is inside."""
        return str(self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path.name)

    @property
    def headings(self) -> list[tuple[int, int, str]]:
        """Line, level and text of every heading."""
        return [(line.line, len(match[1]), match[2]) for line in self.prose if (match := HEADING.match(line.text))]

    @cached_property
    def anchors(self) -> set[str]:
        """Anchors of the headings, by GitHub's rules."""
        seen: Counter[str] = Counter()
        anchors = set()
        for _, _, heading in self.headings:
            shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
            slug = re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")
            anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
        return anchors

    @property
    def paragraphs(self) -> Iterator[Text]:
        """Lines of prose that belong together. Every row of a table is a paragraph."""
        paragraph: list[Text] = []
        for line in [*self.prose, Text(0, "")]:
            is_row = line.text.startswith("|")
            if paragraph and (is_row or not line.text.strip() or line.line != paragraph[-1].line + 1):
                yield Text(paragraph[0].line, "\n".join(text for _, text in paragraph))
                paragraph = []
            if line.text.strip():
                paragraph.append(line)

    @property
    def links(self) -> Iterator[Text]:
        """Targets of all links and images."""
        for start, text in self.paragraphs:
            prose = CODE_SPAN.sub(lambda span: "\n" * span[0].count("\n"), text)
            for match in LINK.finditer(prose):
                yield Text(start + prose.count("\n", 0, match.start(1)), match[1])

    @property
    def code_spans(self) -> Iterator[Text]:
        for start, text in self.paragraphs:
            for match in CODE_SPAN.finditer(text):
                yield Text(start + text.count("\n", 0, match.start()), match[1].replace("\n", " "))

    @property
    def shell_commands(self) -> list[Text]:
        """Commands in ``sh`` blocks."""
        return [command for block in self.blocks if block.language == "sh" for command in joined(block.lines)]

    @property
    def commands(self) -> Iterator[Text]:
        """Commands in ``sh`` blocks, in tables, and in reports."""
        yield from self.shell_commands
        rows = {line for line, text in self.prose if text.startswith("|")}
        yield from (span for span in self.code_spans if span.line in rows and span.text.count(" ") > 1)  # two words name a command
        for block in self.blocks:
            if block.language == "text":
                for line, text in joined(block.lines):
                    if match := OFFERED_COMMAND.match(text):
                        yield Text(line, match[1])


def joined(lines: Iterable[Text]) -> Iterator[Text]:
    """Lines without blank ones and comments; lines that end with a backslash are joined with the next one."""
    start, parts = 0, []
    for line, text in lines:
        start = start if parts else line
        parts.append(text.removesuffix("\\").rstrip())
        if not text.endswith("\\"):
            whole = " ".join(part.strip() if index else part for index, part in enumerate(parts))
            if whole.strip() and not whole.lstrip().startswith("#"):
                yield Text(start, whole)
            parts = []
