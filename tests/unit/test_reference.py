"""docs/reference.md is what docs/reference.py generates, and is complete."""

from __future__ import annotations

import ast
import itertools
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ddpbench.cli.program import program
from ddpbench.machine.speed_variables import SPEED_VARIABLES
from ddpbench.machine.variables import EnvVar
from ddpbench.published.publications import published_names
from ddpbench.record.errors import ExitCode
from ddpbench.record.loaders import LOADERS
from ddpbench.record.registry import ENGINES, PRECISION_ALIASES, PRECISIONS
from ddpbench.workloads.families import FAMILIES
from ddpbench.workloads.registry import WORKLOADS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ddpbench"
FILE = ROOT / "docs" / "reference.md"
SCRIPT = runpy.run_path(str(ROOT / "docs" / "reference.py"))
SECTIONS = dict(re.findall(r"^## (.+?)\n\n(.*?)(?=^## |\Z)", FILE.read_text(), re.MULTILINE | re.DOTALL))
FLAGS = dict(re.findall(r"^### (.+?)\n\n(.*?)(?=^### |\Z)", SECTIONS["Flags"], re.MULTILINE | re.DOTALL))


def difference(kept: str, generated: str) -> str:
    """The first line in which the file differs from what is generated, and the command that updates it; empty if none does."""
    lines = itertools.zip_longest(kept.splitlines(), generated.splitlines(), fillvalue="(no line)")
    for number, (old, new) in enumerate(lines, 1):
        if old != new:
            return f"docs/reference.md:{number}\n  in the file  {old}\n  generated    {new}\nrun '{SCRIPT['COMMAND']}'"
    return ""


def test_file_is_what_the_script_generates() -> None:
    message = difference(FILE.read_text(), SCRIPT["reference"]())
    assert not message, message


@pytest.mark.parametrize(
    ("kept", "line"),
    [("one\nold\nthree\n", "docs/reference.md:2\n  in the file  old\n  generated    two\n"), ("one\ntwo\n", "docs/reference.md:3\n")],
)
def test_difference_names_the_line_and_the_command(kept: str, line: str) -> None:
    message = difference(kept, "one\ntwo\nthree\n")
    assert message.startswith(line)
    assert message.endswith("run 'python docs/reference.py'")
    assert difference(kept, kept) == ""


def test_headings_are_those_that_other_documents_link_to() -> None:
    assert list(SECTIONS) == [
        "Commands",
        "Workloads",
        "Precisions",
        "Loaders",
        "Engines",
        "Published experiments",
        "Flags",
        "Exit codes",
        "Environment variables",
        "Shell completion",
    ]


@pytest.mark.parametrize("name", program.commands)
def test_every_flag_of_every_command_has_a_line(name: str) -> None:
    assert f"| `ddpbench {name} " in SECTIONS["Commands"]
    rows = "\n".join(FLAGS[section] for section in {"run", name} & FLAGS.keys())
    for option in program.commands[name].params:
        if isinstance(option, click.Option) and option.expose_value:
            spelled = next(each for each in option.opts if each.startswith("--"))
            spelled = spelled.replace("--", "--[no-]", 1) if option.secondary_opts else spelled
            short = "".join(rf"`{each}`, " for each in option.opts if not each.startswith("--"))
            assert re.search(rf"^\| {short}`{re.escape(spelled)}[ `]", rows, re.MULTILINE), spelled


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("Workloads", [*WORKLOADS, *(family.name for family in FAMILIES)]),
        ("Precisions", [*PRECISIONS, *PRECISION_ALIASES]),
        ("Loaders", LOADERS),
        ("Engines", ENGINES),
        ("Published experiments", published_names()),
        ("Environment variables", [*EnvVar, *SPEED_VARIABLES]),
    ],
)
def test_every_name_is_in_its_section(section: str, names: list[str]) -> None:
    assert [name for name in names if f"`{name}`" not in SECTIONS[section]] == []


def test_every_exit_code_has_a_row() -> None:
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", SECTIONS["Exit codes"], re.MULTILINE)] == [*ExitCode]


MAPPINGS = {"environ", "variables"}
"""Names of mappings of environment variables in the package: os.environ, parameters that default to it, and records' copies."""


def variables_read(path: Path) -> Iterator[tuple[int, ast.expr]]:
    """Line and key of every access to an environment variable in a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Subscript(value=mapping, slice=key):
                pass
            case ast.Call(func=ast.Attribute(value=mapping, attr="get" | "setdefault" | "pop"), args=[key, *_]):
                pass
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[mapping]):
                pass
            case ast.Call(func=ast.Attribute(value=mapping, attr="getenv" | "putenv"), args=[key, *_]):
                yield node.lineno, key
                continue
            case _:
                continue
        if (mapping.attr if isinstance(mapping, ast.Attribute) else getattr(mapping, "id", "")) in MAPPINGS:
            yield node.lineno, key


def test_every_variable_that_the_package_reads_is_a_known_one() -> None:
    found, unknown = 0, []
    for path in PACKAGE.rglob("*.py"):
        for line, key in variables_read(path):
            found += 1
            is_listed = isinstance(key, ast.Constant) and key.value in SPEED_VARIABLES  # in a record's copy
            is_member = isinstance(key, ast.Attribute) and ast.unparse(key.value) == "EnvVar"
            if not (is_listed or is_member or isinstance(key, ast.Name)):
                unknown.append(f"{path.relative_to(ROOT)}:{line}: {ast.unparse(key)}")
    assert found > 25
    assert not unknown, "\n".join(unknown)


def test_every_known_variable_is_used_and_named_like_its_member() -> None:
    package = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    assert [member for member in EnvVar if f"EnvVar.{member.name}" not in package] == []
    assert [member for member in EnvVar if member.name != member.value] == []


@pytest.mark.parametrize("read", ["os.environ['NEW']", "os.environ.get('NEW')", "os.getenv('NEW')", "'NEW' in os.environ"])
def test_reading_a_variable_is_recognized(read: str, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(f"import os\nprint({read})\n")
    assert [(line, ast.unparse(key)) for line, key in variables_read(module)] == [(2, "'NEW'")]
