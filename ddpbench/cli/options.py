"""Command-line options built from Struct fields: help, parsing, and groups of flags."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, get_type_hints

import msgspec
import rich_click as click
from click.shell_completion import CompletionItem
from msgspec import inspect
from rich.markup import escape
from rich.text import Text
from rich_click.rich_help_rendering import RichPanelRow

from ddpbench import __version__
from ddpbench.record.errors import UsageError
from ddpbench.record.flags import FlagField, flag_fields
from ddpbench.record.loaders import LOADERS
from ddpbench.record.names import did_you_mean
from ddpbench.record.registry import ENGINES, PRECISIONS

HELP_COLUMNS = ["opt_short", "opt_long_metavar", "help"]
"""Columns of a flag in ``--help``."""


MOST_USED = "Most used"
"""Panel of ``--help`` that precedes the groups of flags."""

MAX_HELP_FLAGS = 25
"""Flags that ``--help`` shows of a command."""

REGISTRIES: Mapping[str, Iterable[str]] = {"precision": PRECISIONS, "loader": LOADERS, "engine": ENGINES}
"""Names that a flag accepts besides ``package.module:name``, by field."""

PATH_TYPES = {"DIR": "dir", "PATH": "file"}
"""What the shell completes for a flag, by its metavar."""


class FieldOption(click.RichOption):
    """A flag of a Struct in ``--help`` and in the shell."""

    def __init__(self, *spellings: Any, flag: FlagOption, **settings: Any) -> None:
        super().__init__(*spellings, **settings)
        self.flag = flag

    @property
    def spelling(self) -> str:
        """``--x``, or ``--[no-]x`` for a switch."""
        return self.flag.field.option

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The names or choices that start with the last item of a comma list, or files."""
        field = self.flag.field
        if path_type := PATH_TYPES.get(field.flag.metavar):
            return [CompletionItem(incomplete, type=path_type)]
        return complete_names(field.choices or REGISTRIES.get(field.name, ()), incomplete)


class SwitchOption(FieldOption):
    """An on-off flag, shown as ``--[no-]x`` in ``--help``: both full spellings would leave no room for the help."""

    @property
    def spelling(self) -> str:
        return self.flag.field.option.replace("--", "--[no-]", 1)

    def get_rich_table_row(
        self, ctx: click.RichContext, formatter: click.RichHelpFormatter, panel: click.RichOptionPanel | None = None
    ) -> RichPanelRow:
        row = super().get_rich_table_row(ctx, formatter, panel)
        row[HELP_COLUMNS.index("opt_long_metavar")] = Text(self.spelling, style=formatter.config.style_option)
        return row


@dataclass(frozen=True)
class FlagOption:
    """One flag of a Struct. ``annotation`` validates its values; ``kind`` is used to describe them in messages."""

    field: FlagField
    annotation: Any
    kind: inspect.Type

    @property
    def help(self) -> str:
        """The flag's help, and its choices."""
        return f"{self.field.flag.help}: {_join_with_or(self.field.choices)}" if self.field.choices else self.field.flag.help

    @property
    def default(self) -> str:
        """The default as text."""
        default = self.field.default
        if isinstance(default, bool):
            return "on" if default else "off"
        return self.field.flag.automatic if default is None else f"{default:g}" if isinstance(default, float) else str(default)

    def to_click(self) -> FieldOption:
        """The click option, whose value is the flag's text, or a list of booleans for a switch."""
        field, flag = self.field, self.field.flag
        short = [flag.short] if flag.short else []
        help = f"{escape(self.help)} [dim]({escape(self.default)})[/dim]"
        if field.is_bool:
            return SwitchOption([*short, f"{field.option}/{field.negated_option}"], flag=self, panel=flag.group, help=help, multiple=True)
        metavar = flag.metavar or self._placeholder()
        return FieldOption([*short, field.option], flag=self, panel=flag.group, help=help, metavar=metavar)

    def parse_values(self, raw: Any) -> list[Any]:
        """One value per arm: the items of a comma list, or both values of a switch.

        Raises UsageError for an invalid, empty or duplicate value, and for a list if the flag takes one value.
        """
        field, sweep = self.field, self.field.flag.sweep
        if field.is_bool:
            values = list(dict.fromkeys(raw))
            return values if sweep else [self.parse_value(values)]
        if "," not in raw:
            return [self.parse_value(raw)]
        if not sweep:
            raise UsageError(f"{field.option} takes one value, not the list '{raw}'", "all arms of a job share it")
        parts = raw.split(",")
        if "" in parts:
            raise UsageError(f"the list '{raw}' of {field.option} has an empty item", "put a value on both sides of every comma")
        values = [self.parse_value(text) for text in parts]
        if len(set(values)) < len(values):
            raise UsageError(f"the list '{raw}' of {field.option} has a duplicate value", "give every arm a different value")
        return values

    def parse_value(self, raw: Any) -> Any:
        """``raw`` as a single value. Raises UsageError if it is invalid."""
        field = self.field
        if field.is_bool:
            if len(set(raw)) > 1:
                raise UsageError(f"{field.option} and {field.negated_option} contradict each other", "use one of them")
            return raw[0]
        if not raw:
            raise UsageError(f"{field.option} cannot be empty", f"give a value, or omit the flag ({self.default})")
        if isinstance(self.kind, inspect.StrType) and not self.kind.pattern:
            return raw
        try:
            value = msgspec.convert(_strip_unit(field.flag.unit, raw), self.annotation, strict=False)
        except msgspec.ValidationError:
            value = None  # the same as for "null", which msgspec reads as None
        if value is None or (self._is_integer and not raw.removeprefix("-").isdecimal()) or not _is_finite(value):
            raise UsageError(f"{field.option} cannot be '{raw}'", did_you_mean(raw, field.choices) or f"use {self._allowed_values()}")
        return value

    @property
    def _is_integer(self) -> bool:
        """Whether the flag takes integers. They must be digits: msgspec would accept 1e3 and 8.0 as well."""
        return isinstance(self.kind, inspect.IntType)

    def _placeholder(self) -> str:
        return {inspect.IntType: "N", inspect.FloatType: "X"}.get(type(self.kind), "NAME")

    def _allowed_values(self) -> str:
        if self.field.flag.form:
            return self.field.flag.form
        if not isinstance(self.kind, inspect.IntType | inspect.FloatType):
            return _join_with_or(self.field.choices)
        bounds = {"above": self.kind.gt, "of at least": self.kind.ge, "below": self.kind.lt, "of at most": self.kind.le}
        unit = self.field.flag.unit
        limits = " and ".join(f"{preposition} {bound}{unit}" for preposition, bound in bounds.items() if bound is not None)
        if self._is_integer:
            return f"an integer {limits}, in digits"
        return f"a number {limits}" + (f", with the {unit} sign" if unit else "")


@cache  # reading annotations takes milliseconds, and every command that trains has these flags
def flag_options(struct: type[msgspec.Struct]) -> tuple[FlagOption, ...]:
    """Every flag of ``struct``, in the order of its fields."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    kinds = {field.name: field.type for field in info.fields}
    annotations = get_type_hints(struct, include_extras=True)
    return tuple(FlagOption(field, annotations[field.name], _without_none(kinds[field.name])) for field in flag_fields(struct))


def given_options(struct: type[msgspec.Struct], given: Mapping[str, Any]) -> Iterator[tuple[FlagOption, Any]]:
    """The flags of ``struct`` on the command line, each with its text, or with all values of a switch."""
    for option in flag_options(struct):
        if (text := given.get(option.field.name)) not in (None, ()):
            yield option, text


def parse_given(struct: type[msgspec.Struct], given: Mapping[str, Any]) -> dict[str, Any]:
    """Field name -> value for each flag of ``struct`` on the command line. Raises UsageError for an invalid value."""
    return {option.field.name: option.parse_value(text) for option, text in given_options(struct, given)}


def _without_none(kind: inspect.Type) -> inspect.Type:
    """``kind`` without ``None``, which means that a flag was not given."""
    if isinstance(kind, inspect.UnionType):
        return next(part for part in kind.types if not isinstance(part, inspect.NoneType))
    return kind


def _strip_unit(unit: str, text: str) -> str:
    """``text`` without its unit; empty, hence invalid, if the unit is missing."""
    return text.removesuffix(unit) if text.endswith(unit) else ""


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _join_with_or(choices: tuple[str, ...]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


def complete_names(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Items that complete the last name of a comma list."""
    listed, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{listed}{comma}{name}") for name in names if name.startswith(last)]


def add_flags(
    *given: Iterable[FlagOption | click.RichOption], most_used: Sequence[str] = ()
) -> Callable[[click.RichCommand], click.RichCommand]:
    """Decorator that adds flags to a command: those named in ``most_used`` first, in that order and in a panel of their own."""

    def add(command: click.RichCommand) -> click.RichCommand:
        options = {
            option.name: option
            for group in given
            for option in (flag.to_click() if isinstance(flag, FlagOption) else flag for flag in group)
        }
        first = [options.pop(name) for name in most_used]
        for option in first:
            option.panel = MOST_USED
        command.params += [*first, *options.values()]
        return command

    return add


def flags_named(struct: type[msgspec.Struct], *names: str) -> Iterator[FlagOption]:
    """The flags of the named fields of ``struct``."""
    return (option for option in flag_options(struct) if option.field.name in names)


def flags_except(struct: type[msgspec.Struct], *names: str) -> Iterator[FlagOption]:
    """The flags of all but the named fields of ``struct``."""
    return (option for option in flag_options(struct) if option.field.name not in names)


CommandFunction = TypeVar("CommandFunction", bound=Callable[..., object])


def print_and_exit_flag(
    *spellings: str, text: Callable[[click.Context], str], help: str, hidden: bool = False
) -> Callable[[CommandFunction], CommandFunction]:
    """Decorator that adds a flag which prints ``text`` and exits, with 1 if the output cannot be written completely."""

    def print_and_exit(context: click.Context, _: click.Parameter, given: bool) -> None:
        if given and not context.resilient_parsing:
            from ddpbench.report.console import finish_output, make_console

            console = make_console(sys.stdout)
            console.out(text(context))
            context.exit(finish_output(console))

    return click.option(*spellings, is_flag=True, is_eager=True, expose_value=False, help=help, hidden=hidden, callback=print_and_exit)


def version_flag(hidden: bool = False) -> Callable[[CommandFunction], CommandFunction]:
    return print_and_exit_flag("--version", text=lambda _: f"ddpbench {__version__}", help="show the version and exit", hidden=hidden)


def help_flag(command: CommandFunction) -> CommandFunction:
    """Decorator that adds ``--help``, and ``--help-all`` for commands with many flags."""
    show_all = print_and_exit_flag("--help-all", text=lambda context: context.get_help(), help="show all flags and exit", hidden=True)
    return print_and_exit_flag("-h", "--help", text=short_help, help="show this message and exit")(show_all(command))


def short_help(context: click.Context) -> str:
    """The help of a command; of one with more than ``MAX_HELP_FLAGS`` flags, those most used, and how to see all."""
    flags = [each for each in context.command.params if isinstance(each, click.RichOption) and not each.hidden]
    if len(flags) <= MAX_HELP_FLAGS:
        return context.get_help()
    left_out = [each for each in flags if each.panel != MOST_USED and not each.is_eager]
    for each in left_out:
        each.hidden = True
    try:
        return f"{context.get_help().rstrip()}\n\n{len(left_out)} more flags: {context.command_path} --help-all"
    finally:
        for each in left_out:
            each.hidden = False
