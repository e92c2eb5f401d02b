"""The ``ddpbench`` program: the list of commands, and dispatch by the first argument, a command or a workload to run."""

from __future__ import annotations

import os
import sys

import rich_click as click
from click.shell_completion import CompletionItem
from rich.text import Text

from ddpbench.cli.ab import ab
from ddpbench.cli.diagnose_script import diagnose_script, names_script
from ddpbench.cli.make_data import make_data
from ddpbench.cli.options import HELP_COLUMNS, complete_names, help_flag, version_flag
from ddpbench.cli.report import env, list_, plot, report
from ddpbench.cli.train import crossover, diagnose, reproduce, run, scale, sweep
from ddpbench.cli.watch import watch
from ddpbench.cli.whatif import whatif
from ddpbench.distributed.exit_status import exit_with_error
from ddpbench.record.errors import BenchError, ExitCode, UsageError
from ddpbench.record.names import did_you_mean
from ddpbench.workloads.registry import WORKLOADS, is_workload

CONTEXT_SETTINGS = {
    "token_normalize_func": lambda word: word.replace("_", "-"),
    "rich_help_config": {
        "theme": "default-slim",
        "enable_theme_env_var": False,
        "text_markup": "rich",
        "text_paragraph_linebreaks": "\n\n",
        "padding_helptext_first_line": (0, 0, 1, 0),
        "options_table_column_types": HELP_COLUMNS,
        "commands_before_options": True,
        "max_width": 100,
    },
}
WORDS_FOR_FLAGS = ("help", "version")
"""First arguments that mean ``--help`` and ``--version``; 'help run' is 'run --help'."""

COMMAND_HINTS = {
    **dict.fromkeys(("bert", "gpt2", "llama"), "workloads are image models and MLPs; any other training: 'ddpbench diagnose train.py'"),
    "compare": "'ddpbench resnet50 --precision fp32,amp-fp16' compares in one run, 'ddpbench report A.json B.json' shows two records",
}
"""For words that are often tried first."""

RANKS_HINT = "use --gpus N, or torchrun --nproc_per_node=N -m ddpbench ..."
PRECISION_HINT = "use --precision NAME, or --amp for mixed precision"
FLAG_HINTS = {
    "--nproc-per-node": RANKS_HINT,
    "--num-processes": RANKS_HINT,
    "--nnodes": "start the ranks of several nodes with torchrun --nnodes=N ... -m ddpbench ..., or with launch/slurm_multi_node.sbatch",
    "--dtype": PRECISION_HINT,
    "--mixed-precision": PRECISION_HINT,
}
"""For flags that other programs have."""

EXAMPLES = """\
Examples:
  ddpbench diagnose train.py --epochs 3                        your own script
  ddpbench ab --diff faster.diff train.py --epochs 3           proof of a change
  ddpbench watch --gpus 4 train.py --epochs 3                  to its own end
  ddpbench resnet50 --amp                                      one process
  ddpbench resnet50 --amp --gpus 4                             one rank per GPU
  torchrun --nproc_per_node=4 -m ddpbench resnet50 --amp       the same
  ddpbench resnet50 --precision fp32,amp-fp16                  two arms
  ddpbench diagnose resnet50 --amp --data-dir DIR --gpus 4     the bottleneck
  ddpbench whatif RECORD --workers 16 --cores-per-gpu 8        a prediction
  ddpbench sweep vgg16-cifar10 --precision fp32,o2 -b 128,256  four arms
  ddpbench report                                              the latest run
"""


class CommandGroup(click.RichGroup):
    """Group that lists commands in the order given below, most used first, followed by examples."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that ``args`` start with; ``diagnose`` has one for workloads, and one for scripts.

        While the shell completes, a workload means ``run``, which is not added yet.
        """
        if args[0] == diagnose.name and names_script(args[1:]):
            return args[0], diagnose_script, args[1:]
        return super().resolve_command(ctx, ["run", *args] if ctx.resilient_parsing and args[0] not in self.commands else args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Flags or commands, then workloads."""
        return [*super().shell_complete(ctx, incomplete), *complete_names(WORKLOADS, incomplete)]

    def format_epilog(self, ctx: click.RichContext, formatter: click.RichHelpFormatter) -> None:  # type: ignore[override]
        formatter.write(Text(EXAMPLES))


FIRST_COMMANDS = [diagnose, ab, run, watch, report]
OTHER_COMMANDS = [whatif, scale, sweep, reproduce, crossover, make_data, plot, list_, env]


@click.command_panel("More", commands=[str(each.name) for each in OTHER_COMMANDS])
@click.command_panel("Commands", commands=[str(each.name) for each in FIRST_COMMANDS])
@click.group(
    cls=CommandGroup,
    commands=[*FIRST_COMMANDS, *OTHER_COMMANDS],
    context_settings=CONTEXT_SETTINGS,
    options_metavar="COMMAND|WORKLOAD",
    subcommand_metavar="[FLAGS]",
)
@version_flag()
@help_flag
def program() -> None:
    """Find what a PyTorch training waits for, and prove what a change gains.

    The first argument is a command or a workload: 'ddpbench resnet50' means 'ddpbench run resnet50'.
    """


def run_command(argv: list[str]) -> int:
    """Run one command and return its exit code. A usage error ends the process with one line and a hint."""
    if not getattr(sys.flags, "safe_path", False) and "" not in sys.path:
        sys.path.append("")  # as 'python -m' does: user-defined loaders and workloads are in the working directory
    try:
        _require_working_folder()
        command, *_ = full = _add_default_command(argv)
        return int(program.main(full, prog_name="ddpbench", standalone_mode=False, obj=argv) or ExitCode.OK)
    except BenchError as problem:
        exit_with_error(problem)
    except click.UsageError as problem:
        exit_with_error(_to_usage_error(problem, command))


def _require_working_folder() -> None:
    """Raises UsageError if the working folder has been deleted: paths and imports would fail anywhere."""
    try:
        os.getcwd()
    except OSError as problem:
        raise UsageError(f"the working folder is gone: {problem.strerror}", "change to another folder: cd") from problem


def _add_default_command(argv: list[str]) -> list[str]:
    """``argv`` starting with a command or a program flag; ``run`` is added before a workload.

    Raises UsageError if the first argument is unknown.
    """
    if not argv:
        return ["--help"]
    first, *rest = argv
    if first in WORDS_FOR_FLAGS:
        return _add_default_command([*rest, f"--{first}"])
    if first in program.commands or first in ("-h", "--help", "--version"):
        return argv
    if not first.startswith("-") and ":" not in first and not is_workload(first):
        if first.endswith(".py"):
            raise UsageError(
                f"'{first}' is a script, not a command",
                f"'ddpbench diagnose {first}' finds what makes it faster, 'ddpbench watch {first}' lets it run to its end",
            )
        near = did_you_mean(first, [*program.commands, *WORDS_FOR_FLAGS, *WORKLOADS])
        hint = COMMAND_HINTS.get(first) or near or "'ddpbench list' shows the workloads; any other training: 'ddpbench diagnose train.py'"
        raise UsageError(f"unknown command or workload '{first}'", hint)
    return ["run", *argv]


def _to_usage_error(problem: click.UsageError, first: str) -> UsageError:
    """click's error about the command ``first``, in the format of ddpbench's errors."""
    command = program.commands.get(first, program)
    path = "ddpbench" if command is program else f"ddpbench {first}"
    if isinstance(problem, click.NoSuchOption):
        return _unknown_flag(problem.option_name, command, path)
    message = problem.format_message().rstrip(".")
    if isinstance(problem, click.BadOptionUsage):
        message = message.replace("Option", "flag", 1).replace("requires an argument", "requires a value")
    return UsageError(message[:1].lower() + message[1:], f"'{path} --help' shows the usage")


def _unknown_flag(flag: str, command: click.Command, path: str) -> UsageError:
    """The error for a flag that ``command`` does not have: one of ``run`` only, or an unknown one."""
    if hint := FLAG_HINTS.get(flag.replace("_", "-")):
        return UsageError(f"unknown flag '{flag}'", hint)
    if command is not program and flag in _spellings(run):
        return UsageError(f"'{path}' has no flag {flag}", f"'{path} --help-all' shows all flags")
    return UsageError(f"unknown flag '{flag}'", did_you_mean(flag, _spellings(command)) or f"'{path} --help-all' shows all flags")


def _spellings(command: click.Command) -> list[str]:
    return [spelling for option in command.params for spelling in (*option.opts, *option.secondary_opts)]
