"""A field that is a flag, as an option of the command line: how it looks in ``--help``, and what value its text stands for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

import msgspec
import rich_click as click
from msgspec import inspect
from rich.markup import escape
from rich.text import Text
from rich_click.rich_help_rendering import RichPanelRow

from ddpbench.record.errors import UsageError
from ddpbench.record.flags import Field, flags
from ddpbench.record.names import did_you_mean

COLUMNS = ["opt_short", "opt_long_metavar", "help"]
"""What stands in a line of ``--help``."""


class Switch(click.RichOption):
    """An on-off flag that ``--help`` shows as ``--[no-]x``: both spellings in full would leave no room for the help."""

    def get_rich_table_row(
        self, ctx: click.RichContext, formatter: click.RichHelpFormatter, panel: click.RichOptionPanel | None = None
    ) -> RichPanelRow:
        row = super().get_rich_table_row(ctx, formatter, panel)
        spelling = next(spelling for spelling in self.opts if spelling.startswith("--"))
        row[COLUMNS.index("opt_long_metavar")] = Text(spelling.replace("--", "--[no-]", 1), style=formatter.config.style_option)
        return row


@dataclass(frozen=True)
class Option:
    """One flag of a Struct. ``annotation`` bounds its values, ``kind`` tells a person which they are."""

    field: Field
    annotation: Any
    kind: inspect.Type

    @property
    def help(self) -> str:
        """What the flag does, and its choices."""
        return f"{self.field.flag.help}: {_one_of(self.field.choices)}" if self.field.choices else self.field.flag.help

    @property
    def default(self) -> str:
        """What holds without the flag, in words."""
        default = self.field.default
        if isinstance(default, bool):
            return "on" if default else "off"
        return self.field.flag.automatic if default is None else f"{default:g}" if isinstance(default, float) else str(default)

    def as_click(self) -> click.RichOption:
        """The option as click parses it: plain text, or for a switch every way it was given."""
        field, flag = self.field, self.field.flag
        short = [flag.short] if flag.short else []
        help = f"{escape(self.help)} [dim]({escape(self.default)})[/dim]"
        if field.boolean:
            return Switch([*short, f"{field.spelling}/{field.negative}"], panel=flag.group, help=help, multiple=True)
        return click.RichOption([*short, field.spelling], panel=flag.group, help=help, metavar=flag.metavar or self._placeholder())

    def values(self, given: Any) -> list[Any]:
        """One value an arm: the parts of a comma list, or both ways of a switch. Raises UsageError where arms cannot differ, or do not."""
        field, sweep = self.field, self.field.flag.sweep
        if field.boolean:
            ways = list(dict.fromkeys(given))
            return ways if sweep else [self.value(ways)]
        if "," not in given:
            return [self.value(given)]
        if not sweep:
            raise UsageError(f"{field.spelling} takes one value, not the list '{given}'", "every arm of a job shares it")
        parts = given.split(",")
        if "" in parts:
            raise UsageError(f"the list '{given}' of {field.spelling} has an empty place", "put a value on both sides of every comma")
        values = [self.value(text) for text in parts]
        if len(set(values)) < len(values):
            raise UsageError(f"the list '{given}' of {field.spelling} has a value twice", "every arm has a value of its own")
        return values

    def value(self, given: Any) -> Any:
        """The one value that ``given`` stands for; raises UsageError where it is none."""
        field = self.field
        if field.boolean:
            if len(set(given)) > 1:
                raise UsageError(f"{field.spelling} and {field.negative} contradict each other", "give one of them")
            return given[0]
        if not given:
            raise UsageError(f"{field.spelling} cannot be empty", f"give a value, or leave the flag out ({self.default})")
        if isinstance(self.kind, inspect.StrType):
            return given
        try:
            value = msgspec.convert(_without(field.flag.unit, given), self.annotation, strict=False)
        except msgspec.ValidationError:
            value = None  # as for the word "null", which msgspec reads as None
        if value is None or (self._whole and not given.removeprefix("-").isdecimal()) or not _finite(value):
            raise UsageError(f"{field.spelling} cannot be '{given}'", did_you_mean(given, field.choices) or f"it takes {self._range()}")
        return value

    @property
    def _whole(self) -> bool:
        """It takes whole numbers, and takes them in digits: msgspec would read 1e3 and 8.0 as well."""
        return isinstance(self.kind, inspect.IntType)

    def _placeholder(self) -> str:
        return {inspect.IntType: "N", inspect.FloatType: "X"}.get(type(self.kind), "NAME")

    def _range(self) -> str:
        if not isinstance(self.kind, inspect.IntType | inspect.FloatType):
            return _one_of(self.field.choices)
        bounds = {"above": self.kind.gt, "of at least": self.kind.ge, "below": self.kind.lt, "of at most": self.kind.le}
        unit = self.field.flag.unit
        words = " and ".join(f"{word} {bound}{unit}" for word, bound in bounds.items() if bound is not None)
        if self._whole:
            return f"a whole number {words}, in digits"
        return f"a number {words}" + (f", with its {unit}" if unit else "")


def options(struct: type[msgspec.Struct]) -> Iterator[Option]:
    """Every flag of ``struct``, in the order of its fields."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    kinds = {field.name: field.type for field in info.fields}
    annotations = get_type_hints(struct, include_extras=True)
    for field in flags(struct):
        yield Option(field, annotations[field.name], _when_given(kinds[field.name]))


def given_options(struct: type[msgspec.Struct], given: Mapping[str, Any]) -> Iterator[tuple[Option, Any]]:
    """The flags of ``struct`` that were given, each with its text, or with every way that a switch was given."""
    for option in options(struct):
        if (text := given.get(option.field.name)) not in (None, ()):
            yield option, text


def values_given(struct: type[msgspec.Struct], given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``struct`` whose flags were given, each with its one value. Raises UsageError where that is out of range."""
    return {option.field.name: option.value(text) for option, text in given_options(struct, given)}


def _when_given(kind: inspect.Type) -> inspect.Type:
    """The type without ``None``, which stands for a flag that was not given."""
    if isinstance(kind, inspect.UnionType):
        return next(part for part in kind.types if not isinstance(part, inspect.NoneType))
    return kind


def _without(unit: str, given: str) -> str:
    """The number in front of its unit; empty, which is none, where the unit is not there."""
    return given.removesuffix(unit) if given.endswith(unit) else ""


def _finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _one_of(choices: tuple[str, ...]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}"
