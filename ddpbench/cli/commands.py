"""The table of commands: the first word is one of them, or a workload to ``run``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import rich_click as click
from rich.text import Text

from ddpbench import __version__
from ddpbench.cli.options import COLUMNS, options
from ddpbench.machine.say import refuse
from ddpbench.record.config import TRAINING, Config
from ddpbench.record.errors import BenchError, Exit, UsageError
from ddpbench.record.names import did_you_mean
from ddpbench.record.request import Output

SETTINGS = {
    "token_normalize_func": lambda word: word.replace("_", "-"),
    "rich_help_config": {
        "theme": "default-slim",
        "enable_theme_env_var": False,
        "text_markup": "rich",
        "text_paragraph_linebreaks": "\n\n",
        "padding_helptext_first_line": (0, 0, 1, 0),
        "options_table_column_types": COLUMNS,
        "max_width": 100,
    },
}
helped = click.help_option("-h", "--help", help="print this")
versioned = partial(click.version_option, __version__, message="ddpbench %(version)s", help="print the version")
SPOKEN = ("help", "version")
"""First words that stand for ``--help`` and ``--version``; 'help run' is 'run --help'."""

AMP = click.RichOption(["--amp"], is_flag=True, panel=TRAINING, help="mixed precision: amp-fp16 on CUDA, amp-bf16 on a CPU")
"""The one flag of a run that is no field: it stands for a precision."""

EXAMPLES = """\
Examples:
  ddpbench resnet50 --amp                                      one process
  ddpbench resnet50 --amp --gpus 4                             one rank a GPU
  torchrun --nproc_per_node=4 -m ddpbench resnet50 --amp       the same
  ddpbench resnet50 --precision fp32,amp-fp16                  two arms
  ddpbench report                                              the latest record
"""


class Program(click.RichGroup):
    """The commands in the order of this file, what people come for first, and examples below them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_epilog(self, ctx: click.RichContext, formatter: click.RichHelpFormatter) -> None:  # type: ignore[override]
        formatter.write(Text(EXAMPLES))


@click.group(cls=Program, context_settings=SETTINGS, options_metavar="COMMAND|WORKLOAD", subcommand_metavar="[FLAGS]")
@versioned()
@helped
def program() -> None:
    """How fast your GPUs train, whether to believe it, and what holds them back.

    The first word is a command, or a workload, which is run. 'ddpbench run --help' tells every flag of a run.
    """


@program.command(options_metavar="[FLAGS]")
@click.argument("workload")
@versioned(hidden=True)  # where 'run' is left out, '--version' may stand behind a workload
@helped
@click.pass_context
def run(context: click.RichContext, /, workload: str, **given: Any) -> int:
    """Train WORKLOAD on every rank, measure, record and report.

    A comma list on a flag that changes the training makes arms (-b 64,128), and so does a switch given both ways
    (--channels-last --no-channels-last). Arms take turns in one job, and one table compares them.

    'ddpbench list' shows workloads, precisions, loaders and engines. Underscores work as hyphens.
    """
    from ddpbench.cli import words

    request = words.request(workload, given, context.obj)
    from ddpbench.experiments.run import run as carry_out

    return carry_out(request)


@program.command(options_metavar="[FLAGS]")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@click.option(
    "--format",
    "shape",
    type=click.Choice(["terminal", "json", "csv", "markdown"]),
    default="terminal",
    metavar="NAME",
    help="terminal, json, csv or markdown [dim](terminal)[/dim]",
)
@click.option(
    "-o",
    "--output-dir",
    "folder",
    type=click.Path(path_type=Path),
    default=Output().output_dir,
    metavar="DIR",
    help=f"folder whose latest record is printed [dim]({Output().output_dir})[/dim]",
)
@click.option("-v", "--verbose", is_flag=True, help="print every check and every setting")
@helped
def report(files: Sequence[Path], shape: str, folder: Path, verbose: bool) -> int:
    """Print the report of every record FILE, or of the latest."""
    from ddpbench.record.record import load
    from ddpbench.report import tables, terminal
    from ddpbench.report.console import make_console

    write = {"json": tables.to_json, "csv": tables.to_csv, "markdown": tables.to_markdown}
    console = make_console(sys.stdout)
    for path in files or [_latest(folder)]:
        job = load(path)
        if shape == "terminal":
            terminal.render(job, console, path, verbose=verbose)
        else:
            console.out(write[shape](job))
    return Exit.OK


@program.command("list")
@helped
def list_() -> int:
    """Show workloads, precisions, loaders and engines, a line each."""
    from ddpbench.cli.listing import print_choices
    from ddpbench.report.console import make_console

    print_choices(make_console(sys.stdout))
    return Exit.OK


@program.command()
@helped
def env() -> int:
    """Show machine and software, what is missing, and how to get it."""
    from ddpbench.cli.listing import print_fingerprint
    from ddpbench.machine.fingerprint import describe
    from ddpbench.report.console import make_console

    print_fingerprint(make_console(sys.stdout), describe())
    return Exit.OK


def main(words: Sequence[str] | None = None) -> int:
    """Carries out one command; returns its exit code. An error that is the user's ends the process with one line and a hint."""
    words = list(sys.argv[1:] if words is None else words)
    try:
        command, *_ = full = _with_command(words)
        return int(program.main(full, prog_name="ddpbench", standalone_mode=False, obj=words) or Exit.OK)
    except BenchError as problem:
        refuse(problem)
    except click.UsageError as problem:
        refuse(_as_usage_error(problem, command))
    except click.Abort:
        return Exit.INTERRUPTED


def _with_command(words: list[str]) -> list[str]:
    """The words with a command or the program's own flag in front. Raises UsageError where the first word is nothing known."""
    if not words:
        return ["--help"]
    first, *rest = words
    if first in SPOKEN:
        return _with_command([*rest, f"--{first}"])
    if first in program.commands or first in ("-h", "--help", "--version"):
        return words
    from ddpbench.workloads.catalogue import WORKLOADS

    if not first.startswith("-") and ":" not in first and first not in WORKLOADS:
        near = did_you_mean(first, [*program.commands, *SPOKEN, *WORKLOADS])
        hint = near or "'ddpbench list' shows the workloads, 'ddpbench --help' the commands"
        raise UsageError(f"unknown command or workload '{first}'", hint)
    return ["run", *words]


def _as_usage_error(problem: click.UsageError, first: str) -> UsageError:
    """What click found wrong behind the word ``first``, in the words of every other error."""
    command = program.commands.get(first, program)
    path = "ddpbench" if command is program else f"ddpbench {first}"
    if isinstance(problem, click.NoSuchOption):
        known = [spelling for option in command.params for spelling in (*option.opts, *option.secondary_opts)]
        hint = did_you_mean(problem.option_name, known) or f"'{path} --help' shows every flag"
        return UsageError(f"unknown flag '{problem.option_name}'", hint)
    message = problem.format_message().rstrip(".")
    if isinstance(problem, click.BadOptionUsage):
        message = message.replace("Option", "flag", 1).replace("requires an argument", "needs a value")
    return UsageError(message[:1].lower() + message[1:], f"'{path} --help' shows what it takes")


def _latest(folder: Path) -> Path:
    """The newest record in ``folder``: names begin with the time, and a profiler's trace is none. Raises UsageError when there is none."""
    records = [path for path in folder.glob("*Z-*.json") if ".trace" not in path.suffixes and path.stat().st_size]
    if not records:
        raise UsageError(f"no record in '{folder}'", "name a FILE, or a folder with -o DIR; 'ddpbench WORKLOAD' writes one")
    return max(records, key=lambda path: path.stem)


def _add_flags(command: click.RichCommand) -> None:
    """The flags of a run, as they stand on the fields; ``--amp`` follows the precision that it names."""
    for option in (*options(Config), *options(Output)):
        command.params.append(option.as_click())
        if option.field.name == "precision":
            command.params.append(AMP)


_add_flags(run)
