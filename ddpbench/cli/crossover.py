"""Flags and parsing of ``crossover``: its two sides, and the models compared on them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from ddpbench.cli.options import given_options
from ddpbench.record.config import MEASURING, RANKS, TRAINING, Positive
from ddpbench.record.errors import UsageError
from ddpbench.record.flags import Flag
from ddpbench.record.names import did_you_mean
from ddpbench.record.request import CrossoverOptions
from ddpbench.workloads.families import FAMILIES

LAYERS_SUFFIX = "-{layers}"
CROSSOVER_FAMILIES = {
    family.name.removesuffix(LAYERS_SUFFIX): family.ranges["layers"] for family in FAMILIES if family.name.endswith(LAYERS_SUFFIX)
}
"""Families whose models differ only in the number of layers, with the allowed numbers."""


class CrossoverFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of ``crossover`` that ``run`` does not have or that have another meaning there."""

    layers: Annotated[
        str | None, Flag(TRAINING, "compare the models with A to B layers", metavar="A-B", automatic="all models", sweep=False)
    ] = None
    device: Annotated[
        Literal["cpu", "cuda"] | None,
        Flag(RANKS, "devices to compare (comma-separated), or the device of both sides", automatic="cpu,cuda; cpu without a GPU"),
    ] = None
    threads: Annotated[
        Annotated[int, Positive] | None,
        Flag(RANKS, "CPU threads; two comma-separated counts are compared", automatic="all cores; 1 and all without a GPU"),
    ] = None
    rounds: Annotated[Annotated[int, Positive] | None, Flag(MEASURING, "training runs per model and side", automatic="3", sweep=False)] = (
        None
    )


def parse_crossover(family: str, given: Mapping[str, Any]) -> CrossoverOptions:
    """Options of a crossover; ``given`` holds the text of every CrossoverFlags flag on the command line.

    Raises UsageError for an unknown family, a value out of range, and models that the family does not have.
    """
    if family not in CROSSOVER_FAMILIES:
        known = " or ".join(f"'{name}'" for name in CROSSOVER_FAMILIES)
        raise UsageError(
            f"unknown family '{family}'", did_you_mean(family, CROSSOVER_FAMILIES) or f"choose {known}, whose models differ only in size"
        )
    requested = {option.field.name: option.parse_values(text) for option, text in given_options(CrossoverFlags, given)}
    [layers] = requested.get("layers", [None])
    return CrossoverOptions(
        family=family,
        layers=_parse_layers(layers, CROSSOVER_FAMILIES[family]) if layers else CROSSOVER_FAMILIES[family],
        devices=requested.get("device", []),
        threads=requested.get("threads", []),
    )


def _parse_layers(text: str, allowed: range) -> range:
    match = re.fullmatch(r"(\d+)-(\d+)", text)
    first, last = map(int, match.groups()) if match else (0, 0)
    if first not in allowed or last not in allowed or first >= last:
        raise UsageError(f"--layers cannot be '{text}'", f"use A-B with A below B, from {allowed[0]} to {allowed[-1]} layers")
    return range(first, last + 1)
