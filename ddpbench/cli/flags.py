"""The flags of a command that are fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
import rich_click as click

from ddpbench.cli.options import Option, options


def takes(*given: Iterable[Option | click.RichOption]) -> Callable[[click.RichCommand], click.RichCommand]:
    """Gives a command these flags, in that order."""

    def add(command: click.RichCommand) -> click.RichCommand:
        command.params += [each.as_click() if isinstance(each, Option) else each for group in given for each in group]
        return command

    return add


def only(struct: type[msgspec.Struct], *names: str) -> Iterator[Option]:
    """The flags of these fields of ``struct``."""
    return (option for option in options(struct) if option.field.name in names)


def all_but(struct: type[msgspec.Struct], *names: str) -> Iterator[Option]:
    """The flags of every other field of ``struct``."""
    return (option for option in options(struct) if option.field.name not in names)
