"""The README matches the program: flags, names and example commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ddpbench.cli.crossover import parse_crossover
from ddpbench.cli.options import FlagOption, flag_options
from ddpbench.cli.parse import parse_request
from ddpbench.cli.program import program
from ddpbench.cli.train import AMP_FLAG, crossover, reproduce, run, sweep
from ddpbench.published.publications import published_names
from ddpbench.record.config import TRAINING, Config
from ddpbench.record.loaders import LOADERS
from ddpbench.record.registry import ENGINES, PRECISION_ALIASES, PRECISIONS
from ddpbench.record.request import OutputOptions
from ddpbench.workloads.families import FAMILIES
from ddpbench.workloads.registry import WORKLOADS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
OPTIONS = [*flag_options(Config), *flag_options(OutputOptions)]


def row(option: FlagOption) -> str:
    """The row of a flag in the README."""
    field = option.field
    names = [field.flag.short] if field.flag.short else []
    names.append(f"--[no-]{field.option[2:]}" if field.is_bool else field.option)
    return f"| {', '.join(f'`{name}`' for name in names)} | {option.default} | {option.help} |"


ROWS = {option.field.name: (option.field.flag.group, row(option)) for option in OPTIONS}
ROWS["amp"] = (TRAINING, f"| `--amp` | off | {AMP_FLAG.help} |")


def commands() -> list[list[str]]:
    """Arguments of every ddpbench command in the README."""
    lines = [line for block in BLOCKS for line in block.splitlines()] + re.findall(r"^\| `([^`]+ [^`]+)` \|", README, re.MULTILINE)
    launcher = r"ddpbench|(?:python|torchrun .*|accelerate launch .*) -m ddpbench|bash launch/local.sh|sbatch .*\.sbatch"
    starts = rf"^(?:{launcher}) (\S.*)$"  # a report starts with the name and two spaces
    return [shlex.split(match[1]) for line in lines if (match := re.match(starts, line))]


def test_readme_starts_with_the_two_main_commands() -> None:
    assert BLOCKS[0] == "bash launch/local.sh resnet18 --amp\nbash launch/test.sh\n"


@pytest.mark.parametrize(("group", "row"), ROWS.values(), ids=ROWS)
def test_every_flag_has_a_row_under_its_group(group: str, row: str) -> None:
    _, _, section = README.partition(f"### {group}\n")
    assert row in section.partition("\n##")[0].splitlines()


def test_no_row_of_a_removed_flag_is_left() -> None:
    rows = re.findall(r"^\| (?:`-\w`, )?`--.*\|$", README, re.MULTILINE)
    assert sorted(rows) == sorted(row for _, row in ROWS.values())


@pytest.mark.parametrize("name", [*PRECISIONS, *LOADERS, *ENGINES, *published_names()])
def test_every_choice_has_a_row(name: str) -> None:
    spoken = [f"`{each}`" for each in (name, *(alias for alias in PRECISION_ALIASES if PRECISION_ALIASES[alias] == name))]
    assert re.search(rf"^\| {', '.join(spoken)} \|", README, re.MULTILINE)


def test_every_workload_family_is_listed() -> None:
    assert all(f"`{family.name}`" in README for family in FAMILIES)


def test_every_named_workload_has_a_row() -> None:
    for spec in WORKLOADS.values():
        if spec.parameters is not None:
            assert re.search(rf"^\| [^|]*`{spec.name}`", README, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", re.search(r"by torchvision's name: (.*) \|", README)[1])) < set(WORKLOADS)  # type: ignore[index]


def test_every_command_is_listed() -> None:
    assert all(re.search(rf"^\| `{name}\b", README, re.MULTILINE) for name in program.commands)


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_example_command_parses(words: list[str]) -> None:
    name, rest = (words[0], words[1:]) if words[0] in program.commands else ("run", words)
    context = program.commands[name].make_context(name, rest)
    if name in (run.name, sweep.name):
        assert parse_request(context.params.pop("workload"), context.params, words).arms
    if name == reproduce.name:
        assert context.params["name"] in (None, *published_names())
    if name == crossover.name:
        assert parse_crossover(context.params["family"], context.params).layers


def test_referenced_files_exist() -> None:
    for path in set(re.findall(r"\b(?:launch|tests)/[\w.]+", README)):
        assert (ROOT / path).exists(), path
    readme = (ROOT / "launch" / "README.md").read_text()
    for path in (ROOT / "launch").iterdir():
        assert path.is_dir() or path.suffix == ".md" or f"`{path.name.removesuffix('.dockerignore')}`" in readme, path


def test_example_report_matches_its_record() -> None:
    """The README block is the piped output of ``ddpbench report`` for the record in its last line."""
    record = "results/h200/resnet18-1gpu-torch-loader.json"
    printed = subprocess.run([sys.executable, "-m", "ddpbench", "report", record], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert printed.returncode == 0, printed.stderr
    assert f"```\n{printed.stdout.rstrip()}\n```" in README


def test_example_diagnosis_matches_its_record() -> None:
    """The block omits lines but changes none."""
    record = "results/diagnosis/slow-reads.json"
    printed = subprocess.run([sys.executable, "-m", "ddpbench", "report", record], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert printed.returncode == 0, printed.stderr
    section = README.partition(f"report {record}`")[2]
    shown = [line for line in section.split("```")[1].splitlines() if line]
    lines = printed.stdout.splitlines()
    assert shown == [line for line in lines if line in shown]
    assert {"remedies,", "use"} <= {line.split()[0] for line in shown}
