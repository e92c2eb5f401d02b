"""The flags of a command that are fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
import rich_click as click

from ddpbench.cli.options import FlagOption, flag_options


def add_flags(*given: Iterable[FlagOption | click.RichOption]) -> Callable[[click.RichCommand], click.RichCommand]:
    """Gives a command these flags, in that order."""

    def add(command: click.RichCommand) -> click.RichCommand:
        command.params += [each.to_click() if isinstance(each, FlagOption) else each for group in given for each in group]
        return command

    return add


def flags_named(struct: type[msgspec.Struct], *names: str) -> Iterator[FlagOption]:
    """The flags of these fields of ``struct``."""
    return (option for option in flag_options(struct) if option.field.name in names)


def flags_except(struct: type[msgspec.Struct], *names: str) -> Iterator[FlagOption]:
    """The flags of every other field of ``struct``."""
    return (option for option in flag_options(struct) if option.field.name not in names)
