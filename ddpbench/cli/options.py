"""Config fields as command-line options: help, parsing, and groups of flags."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

import msgspec
import rich_click as click
from msgspec import inspect
from rich.markup import escape
from rich.text import Text
from rich_click.rich_help_rendering import RichPanelRow

from ddpbench import __version__
from ddpbench.record.errors import UsageError
from ddpbench.record.flags import FlagField, flag_fields
from ddpbench.record.names import did_you_mean

HELP_COLUMNS = ["opt_short", "opt_long_metavar", "help"]
"""What stands in a line of ``--help``."""


class SwitchOption(click.RichOption):
    """An on-off flag that ``--help`` shows as ``--[no-]x``: both spellings in full would leave no room for the help."""

    def get_rich_table_row(
        self, ctx: click.RichContext, formatter: click.RichHelpFormatter, panel: click.RichOptionPanel | None = None
    ) -> RichPanelRow:
        row = super().get_rich_table_row(ctx, formatter, panel)
        spelling = next(spelling for spelling in self.opts if spelling.startswith("--"))
        row[HELP_COLUMNS.index("opt_long_metavar")] = Text(spelling.replace("--", "--[no-]", 1), style=formatter.config.style_option)
        return row


@dataclass(frozen=True)
class FlagOption:
    """One flag of a Struct. ``annotation`` bounds its values, ``kind`` tells a person which they are."""

    field: FlagField
    annotation: Any
    kind: inspect.Type

    @property
    def help(self) -> str:
        """What the flag does, and its choices."""
        return f"{self.field.flag.help}: {_join_with_or(self.field.choices)}" if self.field.choices else self.field.flag.help

    @property
    def default(self) -> str:
        """What holds without the flag, in words."""
        default = self.field.default
        if isinstance(default, bool):
            return "on" if default else "off"
        return self.field.flag.automatic if default is None else f"{default:g}" if isinstance(default, float) else str(default)

    def to_click(self) -> click.RichOption:
        """The option as click parses it: plain text, or for a switch every way it was given."""
        field, flag = self.field, self.field.flag
        short = [flag.short] if flag.short else []
        help = f"{escape(self.help)} [dim]({escape(self.default)})[/dim]"
        if field.is_bool:
            return SwitchOption([*short, f"{field.option}/{field.negated_option}"], panel=flag.group, help=help, multiple=True)
        return click.RichOption([*short, field.option], panel=flag.group, help=help, metavar=flag.metavar or self._placeholder())

    def parse_values(self, raw: Any) -> list[Any]:
        """One value an arm: the parts of a comma list, or both ways of a switch. Raises UsageError where arms cannot differ, or do not."""
        field, sweep = self.field, self.field.flag.sweep
        if field.is_bool:
            ways = list(dict.fromkeys(raw))
            return ways if sweep else [self.parse_value(ways)]
        if "," not in raw:
            return [self.parse_value(raw)]
        if not sweep:
            raise UsageError(f"{field.option} takes one value, not the list '{raw}'", "every arm of a job shares it")
        parts = raw.split(",")
        if "" in parts:
            raise UsageError(f"the list '{raw}' of {field.option} has an empty place", "put a value on both sides of every comma")
        values = [self.parse_value(text) for text in parts]
        if len(set(values)) < len(values):
            raise UsageError(f"the list '{raw}' of {field.option} has a value twice", "every arm has a value of its own")
        return values

    def parse_value(self, raw: Any) -> Any:
        """The one value that ``raw`` stands for; raises UsageError where it is none."""
        field = self.field
        if field.is_bool:
            if len(set(raw)) > 1:
                raise UsageError(f"{field.option} and {field.negated_option} contradict each other", "give one of them")
            return raw[0]
        if not raw:
            raise UsageError(f"{field.option} cannot be empty", f"give a value, or leave the flag out ({self.default})")
        if isinstance(self.kind, inspect.StrType):
            return raw
        try:
            value = msgspec.convert(_strip_unit(field.flag.unit, raw), self.annotation, strict=False)
        except msgspec.ValidationError:
            value = None  # as for the word "null", which msgspec reads as None
        if value is None or (self._is_integer and not raw.removeprefix("-").isdecimal()) or not _is_finite(value):
            raise UsageError(f"{field.option} cannot be '{raw}'", did_you_mean(raw, field.choices) or f"it takes {self._allowed_values()}")
        return value

    @property
    def _is_integer(self) -> bool:
        """It takes whole numbers, and takes them in digits: msgspec would read 1e3 and 8.0 as well."""
        return isinstance(self.kind, inspect.IntType)

    def _placeholder(self) -> str:
        return {inspect.IntType: "N", inspect.FloatType: "X"}.get(type(self.kind), "NAME")

    def _allowed_values(self) -> str:
        if not isinstance(self.kind, inspect.IntType | inspect.FloatType):
            return _join_with_or(self.field.choices)
        bounds = {"above": self.kind.gt, "of at least": self.kind.ge, "below": self.kind.lt, "of at most": self.kind.le}
        unit = self.field.flag.unit
        words = " and ".join(f"{word} {bound}{unit}" for word, bound in bounds.items() if bound is not None)
        if self._is_integer:
            return f"a whole number {words}, in digits"
        return f"a number {words}" + (f", with its {unit}" if unit else "")


def flag_options(struct: type[msgspec.Struct]) -> Iterator[FlagOption]:
    """Every flag of ``struct``, in the order of its fields."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    kinds = {field.name: field.type for field in info.fields}
    annotations = get_type_hints(struct, include_extras=True)
    for field in flag_fields(struct):
        yield FlagOption(field, annotations[field.name], _without_none(kinds[field.name]))


def given_options(struct: type[msgspec.Struct], given: Mapping[str, Any]) -> Iterator[tuple[FlagOption, Any]]:
    """The flags of ``struct`` that were given, each with its text, or with every way that a switch was given."""
    for option in flag_options(struct):
        if (text := given.get(option.field.name)) not in (None, ()):
            yield option, text


def parse_given(struct: type[msgspec.Struct], given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``struct`` whose flags were given, each with its one value. Raises UsageError where that is out of range."""
    return {option.field.name: option.parse_value(text) for option, text in given_options(struct, given)}


def _without_none(kind: inspect.Type) -> inspect.Type:
    """The type without ``None``, which stands for a flag that was not given."""
    if isinstance(kind, inspect.UnionType):
        return next(part for part in kind.types if not isinstance(part, inspect.NoneType))
    return kind


def _strip_unit(unit: str, text: str) -> str:
    """The number in front of its unit; empty, which is none, where the unit is not there."""
    return text.removesuffix(unit) if text.endswith(unit) else ""


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _join_with_or(choices: tuple[str, ...]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


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
