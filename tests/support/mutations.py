"""Records with one mutated field: dropped, another value, another type, or out of range."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

STEPS = 4
"""Maximum number of steps and rounds of a shortened record."""

Place = tuple[str | int, ...]
"""Path of a field from the root: field names and list indices."""

INTEGERS = (0, -1, 1, 7, 2**31, 10**18, 10**30)
FLOATS = (0.0, -0.5, 0.5, 1e-300, 1e6, 1e18, 1e300, -1e300)
TEXTS = ("", "\n", "fp8", "no-such-name", "--flag", "[red]\u00e9", "a:b")
OTHER_KINDS = (None, True, 1, "text", [], {}, [None])


@dataclass(frozen=True)
class Mutation:
    """One mutation of the JSON of a record."""

    place: Place
    value: Any = None
    drops: bool = False

    @property
    def kind(self) -> tuple[str, str]:
        """Equal for the same mutation of the same field in another round, rank or arm."""
        return ".".join("[]" if isinstance(part, int) else part for part in self.place), "dropped" if self.drops else repr(self.value)[:40]

    def encoded(self, whole: Any) -> bytes:
        """The JSON of ``whole`` with this mutation; ``whole`` is not modified."""
        return msgspec.json.encode(_changed(whole, self.place, self))


def thinned(path: Path) -> Any:
    """The JSON of the record in ``path``, shortened to its first rounds and steps, with totals of all steps."""
    whole = msgspec.json.decode(path.read_bytes())
    for record in whole["records"]:
        del record["rounds"][STEPS:]
        for trace in (trace for timed in record["rounds"] for trace in timed["traces"]):
            phases = trace["phases_ms"]
            trace["totals_ms"] = trace.get("totals_ms") or {phase: sum(durations) for phase, durations in phases.items()}
            a_step = [*phases.values(), *(trace.get(name) for name in ("host_data_ms", "host_lead_ms", "host_issue_ms"))]
            for durations in (each for each in a_step if each):
                del durations[STEPS:]
    return whole


def of_every_kind(whole: Any, seed: int = 0) -> list[Mutation]:
    """One mutation of every kind, shuffled."""
    found = [mutation for place, value in _fields(whole) for mutation in _of(place, value)]
    order = random.Random(seed)
    order.shuffle(found)
    return [*{mutation.kind: mutation for mutation in found}.values()]


def _of(place: Place, value: Any) -> Iterator[Mutation]:
    yield Mutation(place, drops=True)
    others: tuple[Any, ...] = ()
    if isinstance(value, bool):
        others = (not value,)
    elif isinstance(value, int):
        others = (*INTEGERS, 0.5)
    elif isinstance(value, float):
        others = (*FLOATS, 10**18)
    elif isinstance(value, str):
        others = TEXTS
    elif isinstance(value, list) and value:
        others = (value[:-1], value[1:], [*value, value[-1]], value[::-1])
    for other in (*others, *OTHER_KINDS):
        if other != value:
            yield Mutation(place, other)


def _fields(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every field below ``value``; only the first and last item of lists."""
    if place:
        yield place, value
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _fields(each, (*place, name))
    elif isinstance(value, list) and value:
        for at in sorted({0, len(value) - 1}):
            yield from _fields(value[at], (*place, at))


def _changed(whole: Any, place: Place, mutation: Mutation) -> Any:
    if not place:
        return mutation.value
    part, *rest = place
    copied = whole.copy()
    if mutation.drops and not rest:
        del copied[part]
    else:
        copied[part] = _changed(whole[part], tuple(rest), mutation)
    return copied
