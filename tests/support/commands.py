"""Parse command lines in-process, or check how they are rejected."""

from __future__ import annotations

import re
import shlex

import pytest

from ddpbench.cli import main
from ddpbench.cli.parse import parse_request
from ddpbench.cli.program import program
from ddpbench.record.request import Request


def parsed(line: str) -> tuple[str, Request]:
    """ddpbench command and request of the last shell command in ``line``."""
    words = shlex.split(line.split("&& ")[-1])
    words = words[next(place for place, word in enumerate(words) if word == "ddpbench" or word.endswith(".sbatch")) + 1 :]
    name = words.pop(0) if words[0] in program.commands else "run"
    context = program.commands[name].make_context(name, words, parent=program.make_context("ddpbench", [name]))
    return name, parse_request(context.params.pop("workload"), context.params, words)


def refused(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Stderr of a rejected command, which must be an error and a hint line."""
    with pytest.raises(SystemExit) as end:
        main(shlex.split(words))
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"(?:skipped: .*\n)*ddpbench: error: .*\nhint: .*\n", err)
    return err
