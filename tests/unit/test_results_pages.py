"""The pages under results/ name files that exist, and commands and scripts that accept their arguments."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ddpbench.cli.parse import parse_request
from ddpbench.cli.program import program
from ddpbench.cli.train import run, sweep

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "results").rglob("*.md"))
NAMED = [(page, name) for page in PAGES for name in re.findall(r"[`(]([\w./-]+\.(?:json|md|py|txt|png))[`)]", page.read_text())]
BARE_SCRIPT = "ddp_loop.py"
"""The independent script that harness-tax/launches.py ran; it is not part of the repository."""


def commands(page: Path) -> list[list[str]]:
    """Words of every ddpbench command of ``page``, in a block or in backticks."""
    text = page.read_text()
    blocks = [line for block in re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE) for line in block.splitlines()]
    inline = [
        " ".join(code.split())
        for code in re.findall(r"`(ddpbench [^`]+|torchrun [^`]+)`", re.sub(r"(?s)^```.*?^```", "", text, flags=re.M))
    ]
    starts = r"(?:ddpbench|torchrun .* -m ddpbench) (\S.*)"
    return [shlex.split(match[1]) for line in [*blocks, *inline] if (match := re.fullmatch(starts, line))]


COMMANDS = [words for page in PAGES for words in commands(page)]


@pytest.mark.parametrize(("page", "name"), NAMED, ids=lambda value: value.name if isinstance(value, Path) else value)
def test_named_file_exists(page: Path, name: str) -> None:
    assert name == BARE_SCRIPT or any((folder / name).exists() for folder in (page.parent, ROOT))


def test_scripts_in_commands_exist() -> None:
    scripts = {name for page in PAGES for name in re.findall(r"\bresults/[\w./-]+\.py\b", page.read_text())}
    assert len(scripts) > 10
    assert not [name for name in scripts if not (ROOT / name).exists()]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_command_parses(words: list[str]) -> None:
    name, rest = (words[0], words[1:]) if words[0] in program.commands else ("run", words)
    context = program.commands[name].make_context(name, rest)
    if name in (run.name, sweep.name):
        assert parse_request(context.params.pop("workload"), context.params, words).arms
