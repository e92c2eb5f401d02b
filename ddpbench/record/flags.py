"""Struct fields that are also command-line flags: spelling, help and bounds are defined once, on the field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec


@dataclass(frozen=True)
class Flag:
    """Spelling and help of a field on the command line.

    ``automatic`` describes what an unset field (``None``) becomes. ``sweep`` allows a comma list, one arm per value. ``unit``
    must follow the number: without it, a share of 5 could mean 5% or 500%. ``form`` describes the texts that a pattern accepts.
    """

    group: str
    help: str
    short: str = ""
    automatic: str = ""
    metavar: str = ""
    sweep: bool = True
    unit: str = ""
    form: str = ""


@dataclass(frozen=True)
class FlagField:
    """One field of a Struct that carries a Flag."""

    name: str
    default: Any
    flag: Flag
    choices: tuple[str, ...]
    is_bool: bool

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def negated_option(self) -> str:
        return "--no-" + self.name.replace("_", "-")


@cache  # reading annotations takes milliseconds, and every command that a report suggests needs them
def flag_fields(struct: type[msgspec.Struct]) -> tuple[FlagField, ...]:
    """Every field of ``struct`` that carries a Flag, in the order of their definition."""
    return tuple(_iter_flag_fields(struct))


def _iter_flag_fields(struct: type[msgspec.Struct]) -> Iterator[FlagField]:
    hints = get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        annotation = hints[field.name]
        flag = next((extra for extra in getattr(annotation, "__metadata__", ()) if isinstance(extra, Flag)), None)
        if flag is not None:
            leaves = list(_leaf_types(annotation))
            choices = tuple(choice for leaf in leaves if get_origin(leaf) is Literal for choice in get_args(leaf))
            yield FlagField(field.name, field.default, flag, choices, bool in leaves)


def to_argv(values: msgspec.Struct, fields: Iterable[FlagField]) -> list[str]:
    """Arguments for each of ``fields`` whose value differs from its default."""
    given = ((field, getattr(values, field.name)) for field in fields)
    return [word for field, value in given if value != field.default for word in spelled(field, [value])]


def spelled(field: FlagField, values: Sequence[object]) -> list[str]:
    """Arguments that set ``field`` to ``values``, one arm per value; empty without values."""
    if field.is_bool:
        return [field.option if value else field.negated_option for value in values]
    texts = (str(value).removesuffix(".0") if isinstance(value, float) else str(value) for value in values)
    return [field.option, ",".join(f"{text}{field.flag.unit}" for text in texts)] if values else []


def _leaf_types(annotation: Any) -> Iterator[Any]:
    """The plain types inside ``Annotated`` and unions; a ``Literal`` counts as one."""
    if get_origin(annotation) is Annotated:
        yield from _leaf_types(annotation.__origin__)
    elif get_origin(annotation) is not Literal and get_args(annotation):
        for part in get_args(annotation):
            yield from _leaf_types(part)
    else:
        yield annotation
