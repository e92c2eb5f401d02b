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
        r"cores +([\d.,]+) needed per ",
        r"keeping up needs ([\d.,]+) cores? per ",
        r"; ([\d.,]+) cores? would deliver",
        r"([\d.,]+) cores?(?: and [\d,]+ workers?)? per (?:GPU|rank): ",
        r"--cores-per-gpu ([\d.,]+)",
    ),
    "workers that keep up": (
        r"workers +([\d,]+) needed per ",
        r"and ([\d,]+) workers? per (?:GPU|rank): ",
        r"; ([\d,]+) would keep up(?! on these cores)",
    ),
    "workers for these cores": (
        r"these cores can keep ([\d,]+) busy",
        r"; ([\d,]+) would (?:deliver|keep up on these cores)",
        r" {2}([\d,]+) workers: predicted",
    ),
    "cores there are": (r"\ncores +.*?([\d.,]+) usable", r"the limit of ([\d.,]+) cores?"),
    "what this run reaches": (r"the loader delivers ([\d.,]+) images/s", r"this run +([\d.,]+) "),
    "what the device trains": (r"could train ([\d.,]+)", r"compute only +([\d.,]+) "),
    "what one trainer process receives": (r"for ([\d.,]+) images/s, the most a", r"would deliver ([\d.,]+) images/s, the most a"),
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
