"""``--help`` and ``--version``: flags that print a text, and end the command there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import rich_click as click

from ddpbench import __version__

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., object])


def print_and_exit_flag(
    *spellings: str, text: Callable[[click.Context], str], help: str, hidden: bool = False
) -> Callable[[CommandFunction], CommandFunction]:
    """Gives a command a flag that prints ``text`` and ends it, with 1 where not all of it could be written."""

    def tell(context: click.Context, _: click.Parameter, given: bool) -> None:
        if given and not context.resilient_parsing:
            from ddpbench.report.console import finish_output, make_console

            console = make_console(sys.stdout)
            console.out(text(context))
            context.exit(finish_output(console))

    return click.option(*spellings, is_flag=True, is_eager=True, expose_value=False, help=help, hidden=hidden, callback=tell)


def version_flag(hidden: bool = False) -> Callable[[CommandFunction], CommandFunction]:
    return print_and_exit_flag("--version", text=lambda _: f"ddpbench {__version__}", help="print the version", hidden=hidden)


help_flag = print_and_exit_flag("-h", "--help", text=lambda context: context.get_help(), help="print this")
