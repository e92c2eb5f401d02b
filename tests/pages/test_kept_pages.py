"""No quantity has two values on the page of a stored diagnosis."""

from __future__ import annotations

import io
import re
from functools import cache
from pathlib import Path

import pytest

from ddpbench.record.io import load
from ddpbench.report.console import make_console
from ddpbench.report.pages.diagnosis import render_diagnosis

ROOT = Path(__file__).parents[2]
STORED = [path for path in sorted((ROOT / "results").rglob("*.json")) if b'"kind":"diagnose"' in path.read_bytes()[:4096]]

QUANTITIES = {
    "cores that keep up": (
        r"cores +needed ([\d.,]+) a ",
        r"keeping up takes ([\d.,]+) cores? a ",
        r"with ([\d.,]+) cores? one trainer process",
        r"([\d.,]+) cores?(?: and [\d,]+ workers?)? a (?:GPU|rank): ",
        r"--cores-per-gpu ([\d.,]+)",
    ),
    "workers that keep up": (r"workers +needed ([\d,]+) a ", r"and ([\d,]+) workers? a (?:GPU|rank): "),
    "workers for these cores": (
        r"these cores can keep ([\d,]+) busy",
        r"; ([\d,]+) would (?:give|keep)",
        r" {2}([\d,]+) workers: predicted",
    ),
    "cores there are": (r"cores .*?there are ([\d.,]+)", r"can be had from ([\d.,]+) cores?"),
    "what this run reaches": (r"the loader gives ([\d.,]+) images/s", r"this run +([\d.,]+) "),
    "what the device trains": (r"could train ([\d.,]+)", r"batches on it +([\d.,]+) "),
    "what one trainer process hands over": (r"for ([\d.,]+) images/s: one trainer", r"one trainer process hands over ([\d.,]+) images"),
}
"""Patterns of quantities that a page may show in several places."""


@cache
def page(path: Path) -> str:
    out = io.StringIO()
    render_diagnosis(load(path), make_console(out, 10_000), path)
    return out.getvalue()


def test_stored_diagnoses_exist() -> None:
    assert len(STORED) >= 8


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_no_quantity_has_two_values(path: Path) -> None:
    shown = page(path)
    ranks = load(path).records[0].world_size
    for quantity, patterns in QUANTITIES.items():
        values = {value.rstrip(".,") for pattern in patterns for value in re.findall(pattern, shown)}
        if quantity == "cores there are" and ranks > 1:
            continue  # on the node in one place, per rank in the other
        assert len(values) < 2, f"{quantity}: {sorted(values)}"


def test_stored_pages_contain_every_quantity() -> None:
    shown = "\n".join(map(page, STORED))
    unseen = [pattern for patterns in QUANTITIES.values() for pattern in patterns if not re.search(pattern, shown)]
    assert len(unseen) <= 3, f"patterns that match no page guard nothing: {unseen}"
