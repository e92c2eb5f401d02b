"""Pages of sweeps, reproductions and crossovers: contents and widths."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import sweeps
from msgspec.structs import replace
from rich.console import Console

from ddpbench.analysis.judge import judge_all
from ddpbench.published.crossing import crossing_of
from ddpbench.published.crossover_page import render_crossover
from ddpbench.published.publications import load_publication, published_names
from ddpbench.published.reproduction_page import render_published, render_reproduction
from ddpbench.record.record import DatasetInfo, Job
from ddpbench.record.request import SweepShard
from ddpbench.report.console import make_console
from ddpbench.report.pages.sweep import render_sweep

Page = Callable[[Console], None]


def reproduced(name: str, job: Job, verbose: bool = True) -> Page:
    """The page of ``job`` as a reproduction."""
    return lambda console: render_reproduction(sweeps.reproducing(name, job), console, None, verbose=verbose)


PAGES: dict[str, Page] = {
    "sweep": lambda console: render_sweep(sweeps.sweep(), console, Path("results/h200/sweep.json")),
    "t4": reproduced("t4-tensor-cores", sweeps.t4()),
    "wrn": reproduced("wrn-cifar10-apex-levels", sweeps.wrn()),
    "vgg": reproduced("vgg16-cifar10-batch-sweep", sweeps.published_vgg("V100")),
    "disc": reproduced("disc-mlp-cpu-vs-gpu", sweeps.crossing_disc()),
    "imagenet": reproduced("imagenet-resnet-slurm-vs-container", sweeps.imagenet()),
    "short": reproduced("vgg16-cifar10-batch-sweep", sweeps.published_vgg("V100"), verbose=False),
    "crossover": lambda console: render_crossover(sweeps.crossing_disc(), console, None),
    "published": render_published,
}


@pytest.fixture(autouse=True)
def default_terminal_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def printed(page: Page, width: int = 80, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict", newline="\n")
    page(make_console(stream, width))
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def sweep_page(job: Job) -> str:
    return printed(lambda console: render_sweep(job, console, None))


def table(text: str, title: str) -> list[list[str]]:
    """Cells of the table under ``title``, split at two blanks."""
    lines = text.split("\n")
    start = next(at for at, line in enumerate(lines) if line.startswith(title))
    body = [line for line in lines[start + 1 : lines.index("", start)] if line]
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in body]


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_every_page_fits_80_columns(name: str, encoding: str) -> None:
    text = printed(PAGES[name], encoding=encoding)
    assert text.strip()
    assert [line for line in text.split("\n") if len(line) > 80] == []


def test_sweep_table_has_batch_rows_and_precision_columns() -> None:
    text = printed(PAGES["sweep"])
    seconds = table(text, "time of a training (s), median (95% interval of the mean)")
    assert [[cell.partition(" ")[0] for cell in row] for row in seconds] == [
        ["batch-size", "fp32", "o2"],
        ["128", "0.920", "invalid"],
        ["256", "1.310", "0.799"],
        ["512", "2.240", "1.366"],
        ["batch-size", "amp-fp16"],
        ["128", "0.607"],
        ["256", "0.865"],
        ["512", "OOM"],
    ]
    assert text.count("time of a training (s)") == 1, "each metric has one table"


def test_sweep_names_its_fastest_arm() -> None:
    job = sweeps.job(*(sweeps.sweep_point(name=name, seconds=[seconds] * 5) for name, seconds in (("fp32", 5.0), ("o2", 4.0))))
    judge_all(job)
    assert "\nFASTEST   o2 batch-size 128: 1.250 times fp32 batch-size 128\n  next  ddpbench " in sweep_page(job)


def test_runs_of_different_length_are_tabulated_by_throughput() -> None:
    cells = [sweeps.sweep_point(batch=batch, seconds=[5.0] * 3, steps=steps) for batch, steps in ((128, 100), (256, 10))]
    unlike = sweep_page(sweeps.job(*cells))
    assert "5 rounds each, trainings of different length, interleaved" in " ".join(unlike.split())
    assert table(unlike, "speed (images/s)") == [["batch-size", "fp32"], ["128", "2,560 (0)"], ["256", "512.0 (0.0)"]]
    assert "time of a training" not in unlike
    for cell in cells:
        cell.config = replace(cell.config, epochs=2, steps=None)
    alike = sweep_page(sweeps.job(*cells))
    assert "different length" not in alike, "two epochs have the same number of samples"
    assert "time of a training (s)" in alike


def test_out_of_memory_point_states_required_memory() -> None:
    text = " ".join(printed(PAGES["sweep"]).split())
    assert "amp-fp16 batch-size 512 failed: out of memory at batch 512: peak 138.9 of 139.8 GiB, 13.4 GiB more requested" in text


def test_medians_have_intervals_if_rounds_differ() -> None:
    text = printed(PAGES["sweep"])
    assert "time of a training (s), median (95% interval of the mean)" in text
    assert "GPU memory of the process, by NVML (MiB), median" not in text, "peak memory does not vary between rounds"
    alone = sweep_page(sweeps.job(sweeps.sweep_point(seconds=(5.0,)), sweeps.sweep_point(name="o2", seconds=(4.0,))))
    assert "median" not in alone
    assert "standard deviation" not in alone


def test_too_few_rounds_have_no_interval() -> None:
    job = sweeps.published_vgg("V100")
    for record in job.records:
        record.rounds = record.rounds[:2]
    assert "median" not in sweep_page(job)
    job.records[0].rounds = sweeps.published_vgg("V100").records[0].rounds
    rows = table(sweep_page(job), "time of a training (s), median (95% interval of the mean)")
    assert rows[1] == ["128", "3.93 (3.32 to 4.59)", "3.07", "4.05"]


def test_header_states_the_number_of_rounds() -> None:
    job = sweeps.published_vgg("V100")
    assert "5 rounds of 20 steps each" in " ".join(sweep_page(job).split())
    for record in job.records:
        record.rounds = record.rounds[:3]
    assert "3 of 5 rounds" in sweep_page(job)
    job.records[0].rounds = job.records[0].rounds[:2]
    assert "2 to 3 of 5 rounds" in sweep_page(job)


def test_range_among_intervals_is_labelled() -> None:
    job = sweeps.crossing_threads(rounds=5)
    rows = table(printed(lambda console: render_crossover(job, console, None)), "time of a training")
    assert not any("rounds:" in cell for row in rows for cell in row)
    job.records[0].rounds = job.records[0].rounds[:2]
    cells = [cell for row in table(printed(lambda console: render_crossover(job, console, None)), "time of a training") for cell in row]
    assert [cell.partition(":")[0] for cell in cells if "rounds:" in cell] == ["0.9096 (2 rounds"]


def test_accuracy_interval_is_capped_at_100_percent() -> None:
    job = sweeps.job(*(sweeps.sweep_point(name=name, accuracy=[0.97, 0.99, 1.0, 1.0, 0.98]) for name in ("fp32", "o2")))
    rows = table(sweep_page(job), "accuracy on held-out data (%), median (95% interval of the mean)")
    assert rows[1] == ["128", "99.0 (97.2 to 100.0)", "99.0 (97.2 to 100.0)"]


def test_invalid_point_keeps_accuracy_and_has_no_throughput() -> None:
    dead = sweeps.sweep_point(name="o2", seconds=(3.3,), accuracy=[0.1], status="invalid")
    text = sweep_page(sweeps.job(sweeps.sweep_point(accuracy=[0.4] * 5), dead))
    assert table(text, "accuracy on held-out data")[1] == ["128", "40.00 (0.00)", "10.00"]
    assert table(text, "time of a training")[1] == ["128", "5.000 (4.902 to 5.099)", "invalid"]


def test_page_ends_with_the_record_path() -> None:
    for page in (
        lambda console: render_sweep(sweeps.sweep(), console, Path("results/h200/x.json")),
        lambda console: render_reproduction(sweeps.reproducing("t4-tensor-cores", sweeps.t4()), console, Path("results/h200/x.json")),
        lambda console: render_crossover(sweeps.crossing_disc(), console, Path("results/h200/x.json")),
    ):
        assert printed(page).endswith("\nmore     ddpbench report -v results/h200/x.json\n")


@pytest.mark.parametrize("name", sweeps.PUBLISHED)
def test_unfinished_reproduction_has_a_page(name: str) -> None:
    for job in [*sweeps.unfinished(sweeps.PUBLISHED[name])][::5]:
        text = printed(reproduced(name, job))
        assert text.count("\nclaimed  ") == len(load_publication(name).claims)
        assert [line for line in text.split("\n") if len(line) > 80] == []


def test_unfinished_sweep_and_crossover_have_pages() -> None:
    for job in [*sweeps.unfinished(lambda: sweeps.published_vgg("V100"))][1::7]:
        text = sweep_page(job)
        assert [line for line in text.split("\n") if len(line) > 80] == []
        assert {record.status for record in job.records} <= {"ok", *re.findall("interrupted|failed", text)}
        lacking = sum(record.config.rounds - len(record.rounds) for record in job.records)
        assert (f"the same command resumes with the {lacking} missing round" in " ".join(text.split())) == (lacking > 0)
    assert "not whole" not in sweep_page(sweeps.published_vgg("V100"))
    for job in [*sweeps.unfinished(sweeps.crossing_threads)][1::7]:
        text = printed(lambda console, job=job: render_crossover(job, console, None))
        assert ("faster than" if crossing_of(job) else "no crossing: no model was timed on two devices") in text


def test_other_swept_fields_name_rows() -> None:
    cells = [sweeps.sweep_point(name=name, settings={"loader": loader}) for name in ("fp32", "o2") for loader in ("tensor", "torch")]
    rows = table(sweep_page(sweeps.job(*cells, swept=("precision", "loader"))), "time of a training")
    assert [row[0] for row in rows] == ["loader", "tensor", "torch"]


def test_wide_table_is_split_and_repeats_row_names() -> None:
    names = ("fp32", "tf32", "amp-fp16", "amp-bf16", "o2", "fp16", "bf16")
    text = sweep_page(sweeps.job(*(sweeps.sweep_point(name=name, batch=batch) for name in names for batch in (128, 256))))
    rows = table(text, "time of a training (s), median (95% interval of the mean)")
    assert [row[0] for row in rows] == ["batch-size", "128", "256"] * 4
    assert [name for row in rows if row[0] == "batch-size" for name in row[1:]] == [*names]
    assert max(map(len, text.splitlines())) <= 80


def test_published_figures_are_printed_unchanged() -> None:
    text = printed(PAGES["t4"])
    assert "1,350,681,600" in text
    assert "107.228" in text
    assert "amp-fp16, clean" in text
    vgg = printed(PAGES["vgg"])
    assert "1024  V100     25.11 (1.83)   1.00" in vgg
    assert "the published FP16 is o2 here" in vgg


def test_o3_row_reports_non_convergence() -> None:
    text = printed(PAGES["wrn"], 100)
    row = next(line for line in text.split("\n") if line.startswith("Tesla T4, Colab"))
    assert row.endswith("did not converge")
    assert "invalid" in next(line for line in text.split("\n") if line.startswith("here") and "301.0" in line)


def test_claims_state_whether_they_hold() -> None:
    text = printed(PAGES["imagenet"])
    assert "\nholds      here resnet18" in text
    assert "\nopen       a record covers one environment" in text
    assert "words      holds: the whole interval shows the published effect" in text
    assert "\nnot here   the loader is the reason" in text


def test_reproduction_is_its_claims_with_their_ratios_unless_verbose() -> None:
    text = printed(PAGES["short"])
    assert re.search(r"^(?:holds   |same way)   V100: FP16 up to 1\.32x faster", text, re.MULTILINE)
    assert re.search(r"^           o2's speed over fp32's, V100 1\.32 -> [\d.]+ \([\d.]+ to [\d.]+\)$", text, re.MULTILINE)
    assert "protocol" not in text
    assert len(text.splitlines()) <= 28


def test_accuracy_on_generated_data_is_compared_with_nothing() -> None:
    texts = []
    for generated in (False, True):
        job = sweeps.published_vgg("V100")
        for record in job.records:
            record.data = replace(record.data or DatasetInfo(loader="tensor"), generated=generated)
        accuracies = printed(reproduced("vgg16-cifar10-batch-sweep", job)).partition(": accuracy")[2].partition("\n\n")[0]
        texts.append("ratio" in accuracies)
    assert texts == [True, False]


def test_quick_reproduction_prints_no_ratios() -> None:
    cells = [sweeps.sweep_point(name=name, batch=batch) for name in ("fp32", "o2", "amp-fp16") for batch in (4, 8)]
    quick = sweeps.job(*cells, command="reproduce vgg16-cifar10-batch-sweep --quick")
    text = printed(reproduced("vgg16-cifar10-batch-sweep", quick))
    assert "ratio:" not in text
    assert "but        quick" in text
    assert [line.split()[0] for line in text.split("\n") if "  here  " in line][:3] == ["4", "8", "512"]


def test_crossover_is_printed_with_the_published_one() -> None:
    text = " ".join(printed(PAGES["crossover"]).split())
    assert "GPU is faster than CPU from 602,000 parameters (" in text
    assert "published: GPU is faster than CPU from 700,000 parameters on, 10 layers" in text


def test_missing_crossover_is_reported() -> None:
    never = sweeps.disc([1.0, 2.0], [1.5, 2.5], [9, 10])
    text = " ".join(printed(lambda console: render_crossover(never, console, None)).split())
    assert "no crossing: CPU is faster than GPU at every model, 176,806 to 703,142 parameters" in text
    one = sweeps.disc([1.0], [1.5], [9])
    assert "faster than GPU at every model, 176,806 parameters" in " ".join(
        printed(lambda console: render_crossover(one, console, None)).split()
    )
    alone = sweeps.job(sweeps.sweep_point("disc-mlp-3", batch=100))
    assert "no crossing: no model was timed on two devices" in printed(lambda console: render_crossover(alone, console, None))


def test_crossover_between_thread_counts_of_one_cpu() -> None:
    text = printed(lambda console: render_crossover(sweeps.crossing_threads(), console, None))
    assert "CPU with 2 threads is faster than CPU with 1 thread from 13,600 parameters\n(10,800 to 16,000) on, 7.1 layers" in text
    assert "times as fast as the first (95% interval)" in text
    assert "layers  parameters  CPU, 1 thread  CPU, 2 threads" in text


def test_crossover_of_two_rounds_has_a_range() -> None:
    text = " ".join(printed(lambda console: render_crossover(sweeps.crossing_threads(2), console, None)).split())
    assert "parameters (range of the rounds: " in text
    assert "as the first (range of the rounds)" in text
    text = printed(lambda console: render_crossover(sweeps.crossing_threads(1), console, None))
    assert "range" not in text


def test_models_without_a_difference_are_listed() -> None:
    even = sweeps.disc([1.0, 1.0, 2.0], [1.2, 1.001, 2.5], [5, 6, 7], sd=0.02)
    text = " ".join(printed(lambda console: render_crossover(even, console, None)).split())
    assert "no crossing: CPU looks faster than GPU at every model, 806 to 11,430 parameters, " in text
    assert ", but the difference is within the noise at 6 layers" in text


def test_quiet_pages_are_tables_or_conclusion() -> None:
    tables = printed(lambda console: render_sweep(sweeps.sweep(), console, Path("x.json"), quiet=True))
    assert tables.startswith("accuracy on held-out data (%)")
    assert "x.json" not in tables
    conclusion = printed(lambda console: render_crossover(sweeps.crossing_disc(), console, None, quiet=True), 100)
    assert conclusion.startswith("GPU is faster than CPU from 602,000")
    assert conclusion.count("\n") == 1
    page = printed(lambda console: render_reproduction(sweeps.reproducing("t4-tensor-cores", sweeps.t4()), console, None, quiet=True))
    assert page.startswith("same way   GEMM workload: AMP is 2.78 times faster\n           AMP's speed over fp32's ")
    assert "protocol" not in page


def test_verbose_page_lists_passed_checks() -> None:
    def passed(verbose: bool) -> bool:
        return "passed" in printed(lambda console: render_sweep(sweeps.published_vgg("V100"), console, None, verbose=verbose))

    assert passed(True)
    assert not passed(False)


def test_published_list_names_every_experiment() -> None:
    text = printed(PAGES["published"])
    assert all(name in text for name in published_names())


@pytest.mark.parametrize(("parts", "order"), [([1], "interleaved"), ([1, 2], "parts in separate jobs")])
def test_parts_of_a_sweep_are_not_called_interleaved(parts: list[int], order: str) -> None:
    job = sweeps.job(*(sweeps.sweep_point(batch=batch, seconds=[5.0] * 3) for batch in (128, 256)[: len(parts)]))
    job.sweep_shard = SweepShard(parts=parts, num_parts=2, num_sweep_points=2, sweep_id="0")
    assert f", {order} " in " ".join(sweep_page(job).split())
