"""Published throughputs of ResNet-50 stand beside a run of it: of the same class of precision, and never beside another thing."""

from __future__ import annotations

import io
from typing import Any

import pytest
import records
from msgspec.structs import replace
from records import RESNET50
from scenes import SCENES, lone

from ddpbench.analysis.judge import judge
from ddpbench.analysis.references import PUBLISHED_AS, beside
from ddpbench.record.published import references
from ddpbench.record.record import Record
from ddpbench.report.console import make_console
from ddpbench.report.terminal import render_run


def judged(made: Record) -> Record:
    judge(made)
    return made


def run(precision: str = "amp-fp16", **settings: Any) -> Record:
    config = replace(RESNET50, precision=precision, **settings)
    return judged(records.record(config=config, attestation=records.attested(precision)))


def page(record: Record, width: int, encoding: str = "utf-8", verbose: bool = True) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict", newline="\n")
    render_run(lone(record), make_console(stream, width), None, verbose=verbose)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def test_every_published_precision_is_of_some_class_here() -> None:
    assert {each.precision for each in references()} == {name for names in PUBLISHED_AS.values() for name in names}


@pytest.mark.parametrize(
    ("precision", "published"),
    [
        *((name, {"AMP", "fp16 mixed"}) for name in ("amp-fp16", "amp-bf16", "o2", "fp16", "bf16")),
        *((name, {"TF32"}) for name in ("tf32", "torch-default")),
        ("fp32", set()),
    ],
)
def test_rows_are_of_the_same_class_of_precision(precision: str, published: set[str]) -> None:
    found = beside(run(precision))
    assert {each.reference.precision for each in found} == published
    assert len(found) == sum(each.precision in published for each in references())


def test_a_ratio_is_of_one_gpu_over_one_gpu() -> None:
    record = run()
    assert record.headline is not None
    ratios = {(each.reference.gpu, each.reference.gpus, each.reference.stack[:7]): each.ratio for each in beside(record)}
    assert record.world_size == 4
    assert ratios["H200 SXM", 8, "MLPerf "] == pytest.approx(record.headline.images_per_s / 4 / (63601 / 8))
    assert ratios["A100-80", 1, "NVIDIA "] < ratios["A100-80", 8, "NVIDIA "], "eight published GPUs give less each than one alone"


@pytest.mark.parametrize(
    "record",
    [
        run(workload="resnet18"),
        run(image_size=160),
        replace(run(), environment=records.environment(4, device="Some CPU")),
        judged(records.record(status="invalid", rounds=[])),
    ],
    ids=["another model", "another size", "processors", "no figure"],
)
def test_nothing_stands_beside_what_is_no_such_run(record: Record) -> None:
    assert (record.headline is None) == (record.status == "invalid")
    assert beside(record) == []
    assert "published" not in page(record, 80)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("width", [60, 80])
def test_the_table_fits_the_page_and_says_whose_figures_they_are(width: int, encoding: str) -> None:
    text = page(run(), width, encoding)
    assert [line for line in text.splitlines() if len(line) > width] == []
    table = text[text.index("published, ResNet-50 v1.5") :].split("\n\n")[0]
    assert table.isascii()
    shown = table.splitlines()
    assert all(f"{each.reference.stack}; {each.reference.data}" in shown for each in beside(run()))
    assert "3,410.5" in table
    assert "data, batch and stack differ" in table


def test_it_is_shown_where_it_is_asked_for() -> None:
    assert "published" not in page(run(), 80, verbose=False)
    assert "published" not in page(SCENES["lone-cpu"]().records[0], 80)
