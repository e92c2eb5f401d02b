"""Pages use the sample unit of the workload: images, points, rows."""

from __future__ import annotations

import io
import re

import page_jobs
import pytest
import records
import sweeps
from msgspec.structs import replace

from ddpbench.analysis.judge import judge
from ddpbench.record.record import Job, Record
from ddpbench.report.console import make_console
from ddpbench.report.draw import draw_batch_size_plot
from ddpbench.report.markdown import to_markdown
from ddpbench.report.pages.run import render_run
from ddpbench.report.plot_data import batch_size_plots, points_by_workload


def of(item: str, job: Job) -> Job:
    """``job`` with another sample unit, judged again."""
    for record in job.records:
        record.sample_unit = item
        record.config = replace(record.config, image_size=None)
        judge(record)
    return job


def pages(job: Job) -> str:
    stream = io.StringIO()
    for quiet in (False, True):
        render_run(job, make_console(stream), None, verbose=True, quiet=quiet)
    return stream.getvalue() + to_markdown(job)


JOBS = {
    "lone": lambda: page_jobs.single_run(records.data_bound()),
    "straggler": page_jobs.PAGE_JOBS["many-ranks"],
    "arms": page_jobs.PAGE_JOBS["precisions"],
    "many-arms": page_jobs.PAGE_JOBS["many-arms"],
}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("item", ["point", "row"])
def test_pages_use_the_sample_unit_instead_of_images(name: str, item: str) -> None:
    text = pages(of(item, JOBS[name]()))
    assert f"{item}s/s" in text
    assert re.findall(r"images?\b(?!-size)", text.replace("ImageNet", "")) == []
    assert " px" not in text


def test_arms_with_different_sample_units_are_counted_in_samples() -> None:
    job = of("image", page_jobs.PAGE_JOBS["precisions"]())
    job.records[-1].sample_unit = "row"
    text = pages(job)
    assert "samples/s" in text


def test_plot_axis_uses_the_sample_unit() -> None:
    def label(item: str) -> str:
        cells: list[Record] = [sweeps.sweep_point("gemm-mlp", batch=batch, sample_unit=item) for batch in (64, 128)]
        drawn = batch_size_plots("gemm-mlp", points_by_workload([sweeps.job(*cells)])["gemm-mlp"])
        return str(draw_batch_size_plot(drawn[0], with_spread=False).axes[0].get_xlabel())

    assert label("image") == "batch size (images per device per step)"
    assert label("row") == "batch size (rows per device per step)"
