"""Edits one Python source by the positions of its calls, so that all that is not changed keeps its look."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Source:
    """The text of a file, and the edits that were made of it so far. Lines count from 1."""

    name: str
    text: str
    _edits: list[tuple[int, int, str]] = field(default_factory=list)  # from one offset to another, and what comes there

    def __post_init__(self) -> None:
        self._tree = ast.parse(self.text)
        lines = self.text.splitlines(keepends=True)
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))
        self._lines = lines

    def call(self, line: int, *names: str) -> ast.Call | None:
        """The only call of one of ``names`` whose text includes ``line``: ``SGD(...)``, ``optim.SGD(...)``; None if there is no such one."""
        found = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or line) and _last_name(node.func) in names
        ]
        return found[0] if len(found) == 1 else None

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """The statement of a block that contains ``node``, and stands on lines of its own; None if it shares them with another."""
        for block in self._blocks():
            for place, each in enumerate(block):
                if any(inner is node for inner in ast.walk(each)) and not _has_blocks(each):
                    before = block[place - 1] if place else None
                    after = block[place + 1] if place + 1 < len(block) else None
                    shares = (before is not None and before.end_lineno == each.lineno) or (
                        after is not None and after.lineno == each.end_lineno
                    )
                    own_line = self._lines[each.lineno - 1][: each.col_offset].strip() == ""
                    return each if own_line and not shares else None
        return None

    def set_keyword(self, call: ast.Call, name: str, value: str) -> bool:
        """Let ``call`` have ``name=value``. False, without an edit, if it may be among ``**`` arguments."""
        for keyword in call.keywords:
            if keyword.arg == name:
                self._edits.append((*self._span(keyword.value), value))
                return True
        if any(keyword.arg is None for keyword in call.keywords):
            return False
        end = self._span(call)[1] - 1  # before its last bracket
        before = self.text[self._span(call)[0] : end].rstrip()
        start = self._span(call)[0] + len(before)
        last = self._last_argument_end(call)
        tail = self.text[last:end] if last is not None else ""
        if last is not None and "," in _without_comments(tail):
            self._edits.append((last, last, f", {name}={value}"))
        else:
            self._edits.append((start if last is None else last, start if last is None else last, f"{', ' if last else ''}{name}={value}"))
        return True

    def insert_before(self, statement: ast.stmt, code: str) -> None:
        """One line of ``code`` before ``statement``, indented like that."""
        start = self._starts[statement.lineno - 1]
        self._edits.append((start, start, f"{self._indent(statement)}{code}\n"))

    def insert_after(self, statement: ast.stmt, code: str) -> None:
        """One line of ``code`` after ``statement``, indented like that."""
        end = self._starts[statement.end_lineno or statement.lineno]
        missing = "" if self.text[:end].endswith("\n") else "\n"
        self._edits.append((end, end, f"{missing}{self._indent(statement)}{code}\n"))

    @property
    def edited(self) -> str:
        """The text with all edits. Raises SyntaxError if it is no Python any more."""
        text = self.text
        for start, end, new in sorted(self._edits, key=lambda each: each[0], reverse=True):
            text = text[:start] + new + text[end:]
        ast.parse(text)
        return text

    def diff(self) -> str:
        """What ``git apply`` takes, from the folder that ``name`` is relative to; empty without an edit."""
        before, after = self.text.splitlines(keepends=True), self.edited.splitlines(keepends=True)
        lines = difflib.unified_diff(before, after, f"a/{self.name}", f"b/{self.name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def _blocks(self) -> Iterator[list[ast.stmt]]:
        for node in ast.walk(self._tree):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                    yield block

    def _indent(self, statement: ast.stmt) -> str:
        line = self._lines[statement.lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    def _offset(self, line: int, column: int) -> int:
        """``column`` is in bytes of UTF-8, as ``ast`` counts."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _span(self, node: ast.expr) -> tuple[int, int]:
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno or 0, node.end_col_offset or 0)

    def _last_argument_end(self, call: ast.Call) -> int | None:
        ends = [self._span(each)[1] for each in (*call.args, *(keyword.value for keyword in call.keywords))]
        return max(ends, default=None)


def assigned_name(statement: ast.stmt, value: ast.expr) -> str | None:
    """``optimizer`` of ``optimizer = SGD(...)``, ``self.optimizer`` of ``self.optimizer = ...``; None unless all of ``value`` has one name."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is not value:
        return None
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return ast.unparse(targets[0]) if len(targets) == 1 and isinstance(targets[0], ast.Name | ast.Attribute) else None


def _last_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""


def _has_blocks(statement: ast.stmt) -> bool:
    return isinstance(getattr(statement, "body", None), list)


def _without_comments(text: str) -> str:
    return "\n".join(line.partition("#")[0] for line in text.splitlines())
