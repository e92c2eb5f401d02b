"""The command ``watch``: its flags, then a script with arguments that are the script's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import rich_click as click

from ddpbench.cli import parse
from ddpbench.cli.options import FlagOption, add_flags, flag_options, help_flag, parse_given
from ddpbench.machine.gpu import gpu_names
from ddpbench.record.config import Config
from ddpbench.record.errors import UsageError
from ddpbench.record.flags import flag_fields, to_argv
from ddpbench.record.packages import refuse_old_torch, require_torch
from ddpbench.record.request import OutputOptions, Request, WatchOptions

if TYPE_CHECKING:
    from ddpbench.distributed.exit_status import ExitStatus
    from ddpbench.script.run_script import Program


def script_command(
    *flags: Iterable[FlagOption | click.RichOption], name: str | None = None
) -> Callable[[Callable[..., int]], click.Command]:
    """Makes a function the command ``name``, by default its own: ``flags``, then a script with arguments that are the script's own."""
    module = click.option("-m", "--module", "is_module", is_flag=True, help="run SCRIPT as 'python -m SCRIPT' would")
    words = click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENT]...")
    command = click.command(name, options_metavar="[FLAGS]", context_settings={"allow_interspersed_args": False})

    def make(function: Callable[..., int]) -> click.Command:
        return add_flags(*flags)(command(module(words(help_flag(click.pass_context(function))))))

    return make


@script_command(flag_options(WatchOptions), flag_options(OutputOptions))
def watch(context: click.RichContext, /, words: tuple[str, ...], is_module: bool, **given: Any) -> int:
    """Run your own training script, and report where its steps spend their time.

    Examples:
        torchrun --nproc_per_node=4 -m ddpbench watch train.py --epochs 3
        ddpbench watch --gpus 4 -o results/runs train.py --epochs 3
        ddpbench watch --steps 500 train.py
        accelerate launch -m ddpbench watch -m my_package.train --config x.yaml

    The script runs to its end, or to that of --steps, and nothing in it changes. Flags of ddpbench come before the script;
    everything after it belongs to the script. The report goes to stderr.
    """
    program, request = parse_script(words, is_module, given, context.obj)
    options = WatchOptions(**parse_given(WatchOptions, given))
    if request.output.gpus:
        return launch_script(program, request, ["watch", *to_argv(options, flag_fields(WatchOptions))]).exit_code
    from ddpbench.script.patched_sources import side_of_environment
    from ddpbench.script.watch import watch as watch_script

    if side := side_of_environment():
        from ddpbench.script.ab.side import run_side

        run_side(program, request, options, side)

    watch_script(program, request, options)


def parse_script(words: Sequence[str], is_module: bool, given: Mapping[str, Any], argv: Sequence[str]) -> tuple[Program, Request]:
    """The script, given by ``words``, and a request with the output flags and the settings of Config that are given."""
    from ddpbench.script.run_script import Program

    program, output = Program(words[0], tuple(words[1:]), is_module), parse.parse_output(given)
    if output.gpus:
        require_torch("--gpus")
    refuse_old_torch()
    if output.json == "-":
        raise UsageError("--json cannot be '-': stdout belongs to the script", "give a file: --json PATH")
    device: Literal["auto", "cpu"] = "auto" if not output.gpus or gpu_names() else "cpu"  # without GPUs, CPU ranks
    config = Config(workload=program.name, device=device, **parse_given(Config, given))
    return program, Request(arms=[config], output=output, command=parse.typed_command(argv))


def launch_script(program: Program, request: Request, command: Sequence[str]) -> ExitStatus:
    """Start ``--gpus`` ranks of ``command``, with its own flags, on the script; returns exit code and record path."""
    from ddpbench.bench.launch import launch_script as launch
    from ddpbench.script.run_script import check_program

    check_program(program)
    return launch(request, command, program.argv)
