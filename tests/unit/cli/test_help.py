"""``--help``: examples that parse, and the most used flags first."""

from __future__ import annotations

import re
import shlex
from typing import Any

import click
import pytest

from ddpbench.cli import main
from ddpbench.cli.diagnose_script import diagnose_script
from ddpbench.cli.options import MOST_USED, parse_given
from ddpbench.cli.parse import parse_request
from ddpbench.cli.program import program
from ddpbench.cli.train import MOST_USED_FIELDS
from ddpbench.published.publications import published_names
from ddpbench.record.prediction import Scenario

WITH_EXAMPLES = ["run", "diagnose", "scale", "sweep", "whatif", "reproduce"]
WITH_MOST_USED = ["run", "diagnose", "scale", "sweep"]


def examples(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The examples right after the summary line of the printed help."""
    assert main([name, "--help"]) == 0
    _, summary, shown, *_ = re.split(r"\n *\n", capsys.readouterr().out)
    title, *lines = shown.splitlines()
    assert "\n" not in summary.strip()
    assert title.rstrip() == "Examples:"
    return [line.strip() for line in lines]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_help_starts_with_examples_that_parse(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = examples(name, capsys)
    assert len(lines) in (2, 3)
    for line in lines:
        word, *words = shlex.split(line)[1:]
        if word not in program.commands:
            word, words = "run", [word, *words]
        assert (word, shlex.split(line)[0]) == (name, "ddpbench")
        _, command, words = program.resolve_command(click.Context(program), [word, *words])
        assert command is not None
        params = command.make_context(word, words).params
        if command is not diagnose_script:
            assert_valid(word, params, words)


def assert_valid(name: str, params: dict[str, Any], words: list[str]) -> None:
    if name == "whatif":
        assert Scenario(**parse_given(Scenario, params)) != Scenario()
    elif name == "reproduce":
        assert params["name"] in (None, *published_names())
    else:
        assert parse_request(params.pop("workload"), params, words).arms


@pytest.mark.parametrize("name", WITH_MOST_USED)
def test_most_used_flags_come_first_and_only_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help-all"]) == 0
    groups = dict(re.findall(r"^([A-Z][\w ]+): *\n((?: .*\n)+)", capsys.readouterr().out, re.MULTILINE))
    del groups["Examples"]
    assert list(groups) == [MOST_USED, "Training", "Data", "Ranks", "Measuring", "Output", "Options"]
    shown = {group: re.findall(r"^ {2,6}(?:-\w {2})?(--[^ ]+)", rows, re.MULTILINE) for group, rows in groups.items()}
    assert [flag.replace("[no-]", "") for flag in shown[MOST_USED]] == [f"--{field.replace('_', '-')}" for field in MOST_USED_FIELDS]
    every = [flag for flags in shown.values() for flag in flags]
    assert len(every) == len(set(every))
    assert len(every) == sum(isinstance(option, click.Option) and not option.hidden for option in program.commands[name].params)


def shown_flags(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(words) == 0
    return re.findall(r"^ *(?:-\w +)?(--[\w\[\]-]+)", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("name", program.commands)
def test_help_shows_at_most_25_flags_and_help_all_shows_all(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    brief, full = shown_flags([name, "--help"], capsys), shown_flags([name, "--help-all"], capsys)
    options = [each for each in program.commands[name].params if isinstance(each, click.Option) and not each.hidden]
    assert len(brief) <= 25
    assert len(full) == len(options)
    assert set(brief) <= set(full)
    assert brief == full or len(full) > 25


def test_help_of_a_command_with_more_flags_says_how_to_see_them(capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "--help"])
    *_, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\d+ more flags: ddpbench run --help-all", last)


def test_help_leads_with_the_commands_for_a_first_answer(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    commands, more = re.findall(r"^(?:Commands|More): *\n((?: .*\n)+)", capsys.readouterr().out, re.MULTILINE)
    first, others = (re.findall(r"^  ([a-z-]+) ", rows, re.MULTILINE) for rows in (commands, more))
    assert first == ["diagnose", "ab", "run", "watch", "report"]
    assert [*first, *others] == list(program.commands)
