"""Golden pages of kept records, one of each kind; and no quantity has two values on the page of a stored diagnosis.

``DDPBENCH_GOLDEN=write`` rewrites the golden files.
"""

from __future__ import annotations

import io
import os
import re
from functools import cache
from pathlib import Path

import pytest

from ddpbench.bench.journal import load_job
from ddpbench.record.io import load
from ddpbench.report.console import make_console
from ddpbench.report.pages.diagnosis import render_diagnosis
from ddpbench.report.pages.registry import view_of

ROOT = Path(__file__).parents[2]
STORED = [path for path in sorted((ROOT / "results").rglob("*.json")) if b'"kind":"diagnose"' in path.read_bytes()[:4096]]

QUANTITIES = {
    "cores that keep up": (
        r"cores +([\d.,]+) needed per ",
        r"keeping up needs ([\d.,]+) cores? per ",
        r"; ([\d.,]+) cores? would deliver",
        r"([\d.,]+) cores?(?: and [\d,]+ workers?)? per (?:GPU|rank) +[\d.]+x",
        r"--cores-per-gpu ([\d.,]+)",
    ),
    "workers that keep up": (
        r"workers +([\d,]+) needed per ",
        r"and ([\d,]+) workers? per (?:GPU|rank) +[\d.]+x",
        r"\n +([\d,]+) would keep up(?! on these cores)",
    ),
    "workers for these cores": (
        r"these cores can keep ([\d,]+) busy",
        r"; ([\d,]+) workers? instead of [\d,]+ would (?:deliver|keep up on these cores)",
        r"\n {2}([\d,]+) workers +[\d.]+x",
    ),
    "cores there are": (r"\ncores +.*?([\d.,]+) usable", r"the limit of ([\d.,]+) cores?"),
    "what this run reaches": (r"the loader delivers ([\d.,]+) images/s", r"this run +([\d.,]+) "),
    "what the device trains": (r"could train ([\d.,]+)", r"compute only +([\d.,]+) "),
    "what one trainer process receives": (r"for ([\d.,]+) images/s, the most a", r"would deliver ([\d.,]+) images/s, the most a"),
}
"""Patterns of quantities that a page may show in several places."""


GOLDEN = Path(__file__).parent / "golden" / "kept"
KEPT = (
    "h200/resnet50-4gpu-run",
    "h200/resnet50-1gpu-loaders",  # arms, of which one loads nothing
    "h200/resnet50-precisions-torch-dali-gpu",  # a loader that was slower alone than in training
    "roofline/resnet50-512-h200",
    "h200/scale-resnet50-4gpu",
    "h200/reproduce-t4-tensor-cores",
    "h200/reproduce-disc-mlp-cpu-vs-gpu",
    "h200/vgg16-slower-processor-48-trainings",  # accuracies on generated data
    "h200/diagnose-resnet50-2gpu",
    "watch/train-script",
    "watch/train-images-2-h100",  # a diagnosis whose ranks wait for each other's data
)
"""Records in results/, without their suffix."""


@pytest.mark.parametrize(("name", "verbose"), [*((name, False) for name in KEPT), *((name, True) for name in KEPT[-3:])])
def test_page_of_kept_record_matches_golden_file(name: str, verbose: bool) -> None:
    out, path = io.StringIO(), Path("results", f"{name}.json")
    job = load_job(ROOT / path)
    view_of(job).render(job, make_console(out, 80), path, verbose=verbose, quiet=False)
    golden = GOLDEN / f"{path.stem}{'.verbose' if verbose else ''}.txt"
    if os.environ.get("DDPBENCH_GOLDEN") == "write":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(out.getvalue(), encoding="utf-8")
    assert out.getvalue() == golden.read_text(encoding="utf-8")


def test_pages_have_about_25_lines() -> None:
    lines = {path.stem: len(path.read_text(encoding="utf-8").splitlines()) for path in GOLDEN.glob("*.txt") if ".verbose" not in path.name}
    assert sum(number <= 30 for number in lines.values()) >= 0.5 * len(lines), lines
    assert max(lines.values()) <= 42, lines


@cache
def page(path: Path) -> str:
    out = io.StringIO()
    render_diagnosis(load_job(path), make_console(out, 10_000), path, verbose=True)
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
