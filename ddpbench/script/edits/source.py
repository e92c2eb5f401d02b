"""Edits one Python source by the positions of its calls, so that all that is not changed keeps its look."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

COMMENT = re.compile(r"#.*")
LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$")


@dataclass
class Source:
    """The text of a file, and the edits that were made of it so far. Lines count from 1."""

    name: str
    text: str
    _edits: list[tuple[int, int, str]] = field(default_factory=list)  # from one offset to another, and what comes there

    def __post_init__(self) -> None:
        self._tree = ast.parse(self.text)
        self._lines = _lines(self.text)
        self._starts = [0, *accumulate(map(len, self._lines))]

    def call(self, line: int, class_name: str) -> ast.Call | None:
        """The only call of that class whose text includes ``line``: ``SGD(...)``, ``optim.SGD(...)``; None without one."""
        imports = (alias for node in ast.walk(self._tree) if isinstance(node, ast.ImportFrom) for alias in node.names)
        names = {class_name} | {alias.asname for alias in imports if alias.name == class_name and alias.asname}
        found = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or line) and _last_name(node.func) in names
        ]
        return found[0] if len(found) == 1 else None

    def statement(self, line: int) -> ast.stmt | None:
        """The statement of a block whose text includes ``line``, and is alone on its lines; None if there is none."""
        found = [
            each
            for block in self._blocks()
            for each in block
            if each.lineno <= line <= (each.end_lineno or line) and not isinstance(getattr(each, "body", None), list)
        ]
        is_alone = len(found) == 1 and not self._lines[found[0].lineno - 1][: found[0].col_offset].strip()
        return found[0] if is_alone else None

    def before_branches(self, statement: ast.stmt, names: Sequence[str]) -> ast.stmt:
        """The outermost ``if`` around ``statement`` before which all ``names`` are bound, and in which none is.

        All its branches have what is inserted before it. ``statement`` itself without one. Nothing leaves ``if __name__ == "__main__"``,
        which spawned processes skip.
        """
        parents = {id(child): node for node in ast.walk(self._tree) for child in ast.iter_child_nodes(node)}
        place: ast.AST = statement
        found = statement
        while isinstance(place := parents[id(place)], ast.If) and "__name__" not in ast.unparse(place.test):
            if not all(self._is_bound_before(place, name, parents) for name in names):
                break
            if not self._lines[place.lineno - 1].lstrip().startswith("elif"):
                found = place
        return found

    def _is_bound_before(self, branch: ast.If, name: str, parents: Mapping[int, ast.AST]) -> bool:
        """Whether ``name`` is bound in the function of ``branch`` before that, and not in it, or only by the module."""
        scope: ast.AST = branch
        while not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module):
            scope = parents[id(scope)]
        lines = [line for bound, line in _bindings(scope) if bound == name]
        if not lines and "." not in name and not isinstance(scope, ast.Module):  # functions run after the module has bound its names
            return any(bound == name for bound, _ in _bindings(self._tree))
        return bool(lines) and max(lines) < branch.lineno

    def keyword(self, call: ast.Call, name: str) -> ast.expr | None:
        """What is written for the keyword ``name`` of ``call``; None if nothing is."""
        return next((each.value for each in call.keywords if each.arg == name), None)

    def written(self, expression: ast.expr) -> str:
        """The text of an expression."""
        start, end = self._span(expression)
        return self.text[start:end]

    def may_hide(self, call: ast.Call, name: str, position: int | None = None) -> bool:
        """Whether an argument ``name``, which can be the ``position``-th positional one, may be in ``call`` without being a keyword."""
        is_positional = position is not None and (len(call.args) > position or any(isinstance(each, ast.Starred) for each in call.args))
        return self.keyword(call, name) is None and (is_positional or any(each.arg is None for each in call.keywords))

    def set_keyword(self, call: ast.Call, name: str, value: str, position: int | None = None) -> bool:
        """Let ``call`` have ``name=value``. False, without an edit, if it ``may_hide`` that argument."""
        if written := self.keyword(call, name):
            self._replace(*self._span(written), value)
            return True
        if self.may_hide(call, name, position) or any(isinstance(each, ast.GeneratorExp) for each in call.args):
            return False  # a generator may have no brackets of its own
        end = self._span(call)[1] - 1  # before its last bracket
        last = self._last_argument_end(call)
        if last is None:
            self._replace(end, end, f"{name}={value}")
            return True
        tail = COMMENT.sub(lambda found: " " * len(found[0]), self.text[last:end])  # brackets around the argument, a comma
        place = last + (tail.index(",") if "," in tail else tail.rfind(")") + 1)
        self._replace(place, place, f", {name}={value}")
        return True

    def mentions(self, word: str) -> bool:
        """Whether the text has ``word``, be it as a name or in a comment."""
        return re.search(rf"\b{word}\b", self.text) is not None

    def wrap(self, expression: ast.expr, before: str, after: str) -> None:
        """Put ``before`` and ``after`` around an expression."""
        start, end = self._span(expression)
        self._replace(start, start, before)
        self._replace(end, end, after)

    def insert_before(self, statement: ast.stmt, code: str) -> None:
        """Lines of ``code`` before ``statement``, indented like that."""
        start = self._starts[statement.lineno - 1]
        self._replace(start, start, self._indented(code, statement))

    def insert_after(self, statement: ast.stmt, code: str) -> None:
        """Lines of ``code`` after ``statement``, indented like that."""
        end = self._starts[statement.end_lineno or statement.lineno]
        missing = "" if self.text[:end].endswith("\n") else self._line_end
        self._replace(end, end, missing + self._indented(code, statement))

    @property
    def edited(self) -> str:
        """The text with all edits. Raises SyntaxError if it is no Python any more."""
        text, done = "", 0
        for start, end, new in sorted(self._edits, key=lambda each: each[0]):
            text, done = text + self.text[done:start] + new, end
        text += self.text[done:]
        ast.parse(text)
        return text

    def diff(self) -> str:
        """What ``git apply`` takes, from the folder that ``name`` is relative to; empty without an edit."""
        lines = difflib.unified_diff(self._lines, _lines(self.edited), f"a/{self.name}", f"b/{self.name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def _blocks(self) -> Iterator[list[ast.stmt]]:
        for node in ast.walk(self._tree):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                    yield block

    @property
    def _line_end(self) -> str:
        return "\r\n" if self._lines[0].endswith("\r\n") else "\n"

    def _replace(self, start: int, end: int, new: str) -> None:
        """Once: several objects can be made in one place."""
        if (start, end, new) not in self._edits:
            self._edits.append((start, end, new))

    def _indented(self, code: str, statement: ast.stmt) -> str:
        line = self._lines[statement.lineno - 1]
        indent = line[: len(line) - len(line.lstrip())]
        return "".join(f"{indent}{each}{self._line_end}" for each in code.splitlines())

    def _offset(self, line: int, column: int) -> int:
        """``column`` is in bytes of UTF-8, as ``ast`` counts."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _span(self, node: ast.expr) -> tuple[int, int]:
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno or 0, node.end_col_offset or 0)

    def _last_argument_end(self, call: ast.Call) -> int | None:
        ends = [self._span(each)[1] for each in (*call.args, *(keyword.value for keyword in call.keywords))]
        return max(ends, default=None)


def binds(statement: ast.stmt, name: str) -> bool:
    """Whether a lambda or a comprehension in ``statement`` has a variable ``name`` of its own: outside it is another one, or none."""
    inner = [node for node in ast.walk(statement) if isinstance(node, ast.Lambda | ast.comprehension)]
    arguments = {each.arg for node in inner if isinstance(node, ast.Lambda) for each in ast.walk(node.args) if isinstance(each, ast.arg)}
    targets = (node.target for node in inner if isinstance(node, ast.comprehension))
    return name in arguments | {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}


def _bindings(scope: ast.AST) -> Iterator[tuple[str, int]]:
    """The names, and attributes of names, that are assigned, imported, or arguments in ``scope``, with their lines."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield ast.unparse(node), node.lineno
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((each.asname or each.name.partition(".")[0], node.lineno) for each in node.names)
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def assigned_name(statement: ast.stmt, value: ast.expr) -> str | None:
    """``optimizer`` of ``optimizer = SGD(...)``, ``self.optimizer`` of ``self.optimizer = ...``; None unless ``value`` gets one name."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is not value:
        return None
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return ast.unparse(targets[0]) if len(targets) == 1 and isinstance(targets[0], ast.Name | ast.Attribute) else None


def _lines(text: str) -> list[str]:
    """With their ends, as Python counts them: a form feed ends none."""
    return LINE.findall(text)


def _last_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
