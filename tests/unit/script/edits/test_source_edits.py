"""Edits of one source: keywords in place, lines before and after a statement, and a diff that git applies."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ddpbench.script.edits.source import Source, assigned_name, binds

SCRIPT = """from torch.optim import RMSprop as Rms

def main(args):
    model = build()  # größer
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=args.lr,
    )
    other = AdamW(model.parameters(), lr=1e-3)
    plain = SGD(model.parameters()); extra = 1
    free = Adam(**settings)
    empty = Adagrad()
    aliased = Rms(model.parameters(), lr=(1e-3 * 2))
    commented = Rprop(
        lr=(args.lr * 2),  # twice, (really)
    )
    generated = ASGD(each for each in model.parameters())
    return optimizer
"""


def edited(line: int, name: str, keyword: str = "fused", value: str = "True") -> str | None:
    source = Source("train.py", SCRIPT)
    call = source.call(line, name)
    assert call is not None
    return source.edited if source.set_keyword(call, keyword, value) else None


@pytest.mark.parametrize(
    ("line", "name", "expected"),
    [
        (5, "SGD", "        lr=args.lr, fused=True,\n"),
        (7, "SGD", "        lr=args.lr, fused=True,\n"),
        (9, "AdamW", "AdamW(model.parameters(), lr=1e-3, fused=True)\n"),
        (12, "Adagrad", "Adagrad(fused=True)\n"),
        (13, "RMSprop", "Rms(model.parameters(), lr=(1e-3 * 2), fused=True)\n"),
        (15, "Rprop", "        lr=(args.lr * 2), fused=True,  # twice, (really)\n"),
    ],
)
def test_keyword_is_added_to_the_call_at_that_line(line: int, name: str, expected: str) -> None:
    text = edited(line, name)
    assert text is not None
    assert expected in text
    assert len(text.splitlines()) == len(SCRIPT.splitlines())


def test_keyword_that_is_there_gets_the_value() -> None:
    assert "AdamW(model.parameters(), lr=0.5)" in (edited(9, "AdamW", "lr", "0.5") or "")


def test_keyword_that_may_be_among_others_is_not_added() -> None:
    assert edited(11, "Adam") is None
    assert edited(17, "ASGD") is None, "the generator has the brackets of the call"


def test_call_must_be_the_only_one_of_its_line() -> None:
    source = Source("train.py", "a = SGD(1) if SGD(2) else 3\n")
    assert source.call(1, "SGD") is None
    assert source.call(1, "Adam") is None


def test_lines_come_before_and_after_the_whole_statement() -> None:
    source = Source("train.py", SCRIPT)
    call = source.call(6, "SGD")
    assert call is not None
    statement = source.statement(6)
    assert statement is not None
    assert assigned_name(statement, call) == "optimizer"
    source.insert_before(statement, "model.to(memory_format=torch.channels_last)")
    source.insert_after(statement, "print(optimizer)")
    lines = source.edited.splitlines()
    assert lines[4] == "    model.to(memory_format=torch.channels_last)"
    assert lines[8:10] == ["    )", "    print(optimizer)"]


def test_statement_that_shares_its_line_is_none() -> None:
    assert Source("train.py", SCRIPT).statement(10) is None


TEXTS = {
    "unix": SCRIPT,
    "no last newline": SCRIPT.rstrip("\n"),
    "windows": SCRIPT.replace("\n", "\r\n"),
    "form feed": SCRIPT.replace(" as Rms\n", " as Rms\n# \f\n"),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_git_applies_the_diff(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(text.encode())
    source = Source("train.py", text)
    line = next(number for number, each in enumerate(text.split("\n"), start=1) if "AdamW" in each)
    call, statement = source.call(line, "AdamW"), source.statement(line)
    assert call is not None
    assert statement is not None
    source.set_keyword(call, "fused", "True")
    source.insert_after(statement, "if other:\n    print(other)")
    assert ("\r\n" in text) is ("\r\n" in source.edited)
    assert source.edited.count("\r") in (0, source.edited.count("\n"))
    (tmp_path / "fused.diff").write_bytes(source.diff().encode())
    subprocess.run(["git", "apply", "fused.diff"], cwd=tmp_path, check=True)
    assert path.read_bytes().decode() == source.edited


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("opts = [SGD(m.parameters(), 0.1) for m in models]", True),
        ("make = lambda m: SGD(m.parameters(), 0.1)", True),
        ("opt = SGD([p for p in m.parameters()], 0.1)", False),
    ],
)
def test_variable_of_a_comprehension_is_none_outside(text: str, bound: bool) -> None:
    statement = Source("train.py", text).statement(1)
    assert statement is not None
    assert binds(statement, "m") is bound


def test_without_an_edit_there_is_no_diff() -> None:
    assert Source("train.py", SCRIPT).diff() == ""
