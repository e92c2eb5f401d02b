"""Plots: their contents, no overlapping texts, and matplotlib is imported only for drawing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import page_jobs
import pytest
import scaling_jobs
import sweeps
from diagnoses import diagnosis
from msgspec.structs import replace

from ddpbench.published.crossover_page import crossover_plots
from ddpbench.record.record import Job
from ddpbench.report.draw import draw_batch_size_plot, draw_crossover_plots
from ddpbench.report.draw_roofline import draw_roofline
from ddpbench.report.draw_speedup import draw_speedup_plots
from ddpbench.report.messages.roofline import ABOVE_ROOF
from ddpbench.report.plot_data import batch_size_plots, outdated_points, points_by_workload
from ddpbench.report.plots import draw_plots, left_out_reasons, split_speedup_plots
from ddpbench.report.speedup_data import speedup_plots

GPUS = ("1080 Ti", "TITAN X", "V100")
METRICS = ("time", "memory", "speed-up")


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def three_gpus() -> list[Job]:
    return [sweeps.published_vgg(gpu) for gpu in GPUS]


def short_of_memory(gpu: str, *lacking: tuple[str, int]) -> Job:
    """The published sweep of a GPU on which these precisions and batch sizes ran out of memory."""
    job = sweeps.published_vgg(gpu)
    for place, record in enumerate(job.records):
        if (cell := (record.config.precision, record.config.batch_size or 0)) in lacking:
            job.records[place] = replace(sweeps.no_memory(*cell), environment=record.environment)
    return job


def short_gpus() -> list[Job]:
    """Out of memory: never; fp32 and o2 at the largest batches; one precision at every batch."""
    amp = [("amp-fp16", batch) for batch in (128, 256, 512, 1024, 2048)]
    return [
        short_of_memory("1080 Ti"),
        short_of_memory("TITAN X", ("fp32", 1024), ("fp32", 2048), ("o2", 2048)),
        short_of_memory("V100", *amp),
    ]


def vgg(jobs: list[Job]) -> Any:
    return points_by_workload(jobs)["vgg16-cifar10"]


def many_settings() -> Job:
    """Nine learning rates at two batch sizes; the last only at one of them, plus a third batch size without the base."""
    cells = [
        sweeps.sweep_point(batch=batch, seconds=[5.0 / (1 + at)] * 3, process=1, settings={"lr": 0.01 * (1 + at)})
        for at in range(9)
        for batch in (64, 128)
    ]
    lone = sweeps.sweep_point(batch=256, seconds=[1.0] * 3, process=1, settings={"lr": 0.09})
    return sweeps.job(*cells[:-1], lone, swept=("lr", "batch_size"))


def two_jobs() -> list[Job]:
    """Two jobs of one device; the second has another loader and is half as fast."""
    later = sweeps.published_vgg("V100")
    later.started = "2026-11-22T00:00:00Z"
    for record in later.records:
        record.config = replace(record.config, loader="torch")
        record.rounds = [replace(timed, wall_s=2 * timed.wall_s) for timed in record.rounds]
    return [sweeps.published_vgg("V100"), later]


def early_crossing() -> Job:
    """A crossover of models that are all smaller than the published crossover."""
    return sweeps.disc([1.0, 2.0, 4.0], [1.5, 1.6, 1.7], [4, 6, 8])


def long_names() -> Job:
    """Arms whose names are longer than a legend of three columns, at one batch size."""
    settings = [{"broadcast_buffers": on, "bucket_cap_mb": size, "cuda_graph": on} for on in (True, False) for size in (25.0, 100.0)]
    arms = [sweeps.sweep_point(seconds=[5.0 / (1 + at)] * 3, settings={"loader": "synthetic", **each}) for at, each in enumerate(settings)]
    return sweeps.job(*arms, swept=("broadcast_buffers", "bucket_cap_mb", "cuda_graph"))


def other_settings() -> list[Job]:
    """Two jobs of one device that vary the same fields, with other values and references."""
    return [
        sweeps.job(
            *(sweeps.sweep_point(seconds=[5.0 / lr], settings={"lr": lr, "momentum": 0.5}) for lr in values), swept=("lr", "momentum")
        )
        for values in ([0.1, 0.2], [0.3, 0.4])
    ]


def roofline_figure(speedup: float = 1.0) -> Any:
    """A roofline of which every layer takes 1 / ``speedup`` of its time."""
    (record,) = page_jobs.roofline().records
    assert record.roofline
    layers = [
        replace(
            layer,
            **{name: replace(work, ms=work.ms / speedup) for name, work in (("forward", layer.forward), ("backward", layer.backward))},
        )
        for layer in record.roofline.layers
    ]
    return draw_roofline(record, replace(record.roofline, layers=layers))


FIGURES: dict[str, Callable[[], Any]] = {
    "roofline": roofline_figure,
    "roofline-above": lambda: roofline_figure(10.0),
    "long-names": lambda: draw_speedup_plots("vgg16-cifar10, synthetic data", speedup_plots(vgg([long_names()]))),
    "other-references": lambda: draw_speedup_plots("vgg16-cifar10", speedup_plots(vgg(other_settings()))),
    "time": lambda: draw_batch_size_plot(batch_size_plots("vgg16-cifar10", vgg(three_gpus()))[0], with_spread=False),
    "time-spread": lambda: draw_batch_size_plot(batch_size_plots("vgg16-cifar10", vgg(three_gpus()))[0], with_spread=True),
    "memory-spread": lambda: draw_batch_size_plot(batch_size_plots("vgg16-cifar10", vgg(three_gpus()))[1], with_spread=True),
    "broken-cells": lambda: draw_batch_size_plot(batch_size_plots("vgg16-cifar10", vgg([sweeps.sweep()]))[0], with_spread=True),
    "no-memory": lambda: draw_batch_size_plot(batch_size_plots("vgg16-cifar10", vgg(short_gpus()))[0], with_spread=False),
    "speed-up-no-memory": lambda: draw_speedup_plots("vgg16-cifar10", speedup_plots(vgg(short_gpus()), "fp32")),
    "speed-up": lambda: draw_speedup_plots("vgg16-cifar10", speedup_plots(vgg(three_gpus()))),
    "two-jobs-speed-up": lambda: draw_speedup_plots("vgg16-cifar10", speedup_plots(vgg(two_jobs()))),
    "two-jobs": lambda: draw_batch_size_plot(batch_size_plots("vgg16-cifar10", vgg(two_jobs()))[0], with_spread=False),
    "empty-group": lambda: draw_speedup_plots("vgg16-cifar10", next(split_speedup_plots(speedup_plots(vgg([many_settings()]))))),
    "early-crossover": lambda: draw_crossover_plots(
        "disc-mlp", crossover_plots([early_crossing()]), (700_000, "published: 700,000 parameters, 10 layers")
    ),
    "leftovers": lambda: draw_speedup_plots("gemm-mlp", speedup_plots(points_by_workload([sweeps.t4()])["gemm-mlp"])),
    "crossover": lambda: draw_crossover_plots(
        "disc-mlp", crossover_plots([sweeps.crossing_disc()]), (700_000, "published: 700,000 parameters, 10 layers")
    ),
    "threads": lambda: draw_crossover_plots(
        "disc-mlp", crossover_plots([sweeps.crossing_threads()]), (700_000, "published: 700,000 parameters, 10 layers")
    ),
    "two-crossovers": lambda: draw_crossover_plots(
        "disc-mlp", crossover_plots([sweeps.crossing_disc("V100"), sweeps.disc([1, 2, 4], [3, 3, 3], [6, 8, 9])]), (700_000, "published")
    ),
}


def test_sweep_writes_png_and_svg_of_time_memory_and_speedup(tmp_path: Path) -> None:
    paths = draw_plots(three_gpus(), tmp_path / "new")
    start, varied = "vgg16-cifar10-1080-ti-titan-x-v100", "by-batch-size-and-precision"
    stems = (f"time-{varied}", f"time-{varied}-spread", f"memory-{varied}", f"memory-{varied}-spread", f"speed-up-{varied}")
    assert names(paths) == [f"{start}-{stem}.{kind}" for stem in stems for kind in ("png", "svg")]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths[::2])
    assert all(b"<svg" in path.read_bytes() for path in paths[1::2])


def test_plots_are_deterministic(tmp_path: Path) -> None:
    first, second = (draw_plots([sweeps.crossing_disc()], tmp_path / name) for name in ("one", "two"))
    assert names(first) == [f"disc-mlp-cpu-vs-h200-time-by-model-size.{kind}" for kind in ("png", "svg")]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_roofline_is_drawn_once_per_record(tmp_path: Path) -> None:
    paths = draw_plots([page_jobs.roofline(), page_jobs.roofline(), page_jobs.compute_bound()], tmp_path)
    assert names(paths) == [
        f"resnet50-4x-h200-roofline-amp-fp16-batch-256{number}.{kind}" for number in ("", "-2") for kind in ("png", "svg")
    ]


def test_roofline_shows_layers_with_flops_and_the_time_of_all() -> None:
    above, below = roofline_figure().axes
    assert [line.get_label() for line in above.lines] == ["Conv2d", "Linear", "step", "4,210 GB/s, 742 TFLOP/s"]
    assert [len(line.get_xdata()) for line in above.lines] == [2, 1, 1, 3]
    assert [label.get_text() for label in below.get_yticklabels()] == ["2 BatchNorm2d", "2 Conv2d", "(optimizer)", "Linear"]


def test_layers_above_the_roof_are_explained_in_the_picture() -> None:
    def notes(figure: Any) -> list[str]:
        return [" ".join(text.get_text().split()) for text in figure.texts if "cache" in text.get_text()]

    assert notes(roofline_figure(0.5)) == []
    assert notes(roofline_figure(10.0)) == [ABOVE_ROOF]


def test_job_with_one_sweep_point_has_no_plot(tmp_path: Path) -> None:
    assert draw_plots([sweeps.job(sweeps.sweep_point())], tmp_path) == []


@pytest.mark.parametrize("job", [scaling_jobs.strong(), diagnosis(1000.0)], ids=["scale", "diagnose"])
def test_scale_and_diagnose_jobs_have_no_plots(job: Job, tmp_path: Path) -> None:
    assert draw_plots([job], tmp_path) == []
    assert left_out_reasons([job]) == [f"{job.kind} of resnet50, started {job.started}: control runs of a single setting"]


def test_single_batch_size_is_plotted_as_bars_only(tmp_path: Path) -> None:
    gemm = [path for path in names(draw_plots([sweeps.t4()], tmp_path)) if path.startswith("gemm")]
    assert gemm == [f"gemm-mlp-h200-synthetic-speed-up-by-precision.{kind}" for kind in ("png", "svg")]


def test_single_rounds_have_no_spread_plot(tmp_path: Path) -> None:
    job = sweeps.published_vgg("V100")
    for record in job.records:
        record.rounds = record.rounds[:1]
    stems = ("time", "memory", "speed-up")
    assert names(draw_plots([job], tmp_path))[::2] == [f"vgg16-cifar10-v100-{stem}-by-batch-size-and-precision.png" for stem in stems]


def test_runs_of_different_length_do_not_share_a_curve() -> None:
    job = sweeps.wrn()
    for record in job.records:
        if record.config.batch_size == 512:
            record.config = replace(record.config, epochs=None, steps=40)
    job.swept += ["epochs", "steps", "loader", "workers"]
    cells = points_by_workload([job])["wrn28x10-cifar10"]
    assert {cell.setting for cell in cells} == {"fp32", "amp-fp16", "o2", "fp16"}
    assert batch_size_plots("wrn28x10-cifar10", cells) == []
    (panel,) = speedup_plots(cells)
    assert (panel.reference, panel.batches) == ("fp32", [128, 512])
    assert all(each is not None for each in (*panel.speedups["amp-fp16"], *panel.speedups["o2"]))


def test_speedup_of_non_converging_run_is_labelled() -> None:
    reached = {"fp32": [0.9, 0.8], "o2": [0.9, 0.5], "fp16": [0.1, 0.2], "amp-fp16": [0.9, 0.1]}
    cells = [
        sweeps.sweep_point(name=name, batch=64 * (at + 1), accuracy=[one] * 5)
        for name, each in reached.items()
        for at, one in enumerate(each)
    ]
    (panel,) = speedup_plots(vgg([sweeps.job(*cells)]))
    assert list(panel.speedups) == ["o2", "fp16, not converging", "amp-fp16"], "the last one converges at one of its batch sizes"


def test_settings_not_on_an_axis_are_part_of_the_curve_name() -> None:
    cells = [sweeps.sweep_point(batch=batch, settings={"loader": loader}) for batch in (64, 128) for loader in ("tensor", "torch")]
    job = sweeps.job(*cells, swept=("batch_size", "loader"))
    time, *_ = batch_size_plots("vgg16-cifar10", points_by_workload([job])["vgg16-cifar10"])
    assert [(curve.setting, curve.x) for curve in time.curves] == [("fp32, tensor", [64, 128]), ("fp32, torch", [64, 128])]


def test_runs_of_different_length_are_compared_by_throughput() -> None:
    lengths = {("fp32", 64): 100, ("fp32", 128): 50, ("o2", 64): 600, ("o2", 128): 300}
    job = sweeps.job(*(sweeps.sweep_point(name=name, batch=batch, steps=steps) for (name, batch), steps in lengths.items()))
    (panel,) = speedup_plots(vgg([job]))
    assert [found and found.center for found in panel.speedups["o2"]] == pytest.approx([6, 6]), "the same time for six times the steps"
    (speed,) = batch_size_plots("vgg16-cifar10", vgg([job]))
    assert (speed.name, speed.y_label) == ("speed", "speed (images/s)")
    assert all(curve.y == pytest.approx([curve.y[0], curve.y[0]]) for curve in speed.curves)


def test_speedup_bars_compare_within_one_job() -> None:
    first, second = speedup_plots(vgg(two_jobs()))
    assert [(each.device, each.date) for each in (first, second)] == [("V100", ", 2026-11-21 01:29"), ("V100", ", 2026-11-22 00:00")]
    for one, other in zip(first.speedups["o2"], second.speedups["o2"], strict=True):
        assert one is not None
        assert other is not None
        assert one.center == pytest.approx(other.center), "each relative to the fp32 of its job"
    assert outdated_points(vgg(two_jobs())) == [], "another loader is another setting"
    time, _ = batch_size_plots("vgg16-cifar10", vgg(two_jobs()))
    assert [curve.setting for curve in time.curves[:4:3]] == ["fp32, tensor", "fp32, torch"]


def test_more_settings_than_markers_continue_in_another_plot(tmp_path: Path) -> None:
    drawn = names(draw_plots([many_settings()], tmp_path))
    expected = [f"vgg16-cifar10-h200-{name}-by-batch-size-and-lr{number}.png" for name in METRICS for number in ("", "-2")]
    assert drawn[::2] == expected
    first, second = split_speedup_plots(speedup_plots(vgg([many_settings()])))
    assert [len(panel.speedups) for panel in (*first, *second)] == [7, 1]
    for page in (first, second):
        patches = draw_speedup_plots("vgg16", page).legends[0].get_patches()
        assert len({(patch.get_hatch(), patch.get_facecolor()) for patch in patches}) == len(patches)


def test_bars_are_centered_on_their_batch_and_empty_groups_have_a_reason() -> None:
    page, rest = split_speedup_plots(speedup_plots(vgg([many_settings()])))
    assert page[0].batches == [64, 128, 256]
    assert page[0].empty_reasons == {256: "no fp32, lr 0.01"}
    assert rest[0].empty_reasons == {128: "no result", 256: "no fp32, lr 0.01"}
    figure = draw_speedup_plots("vgg16", speedup_plots(vgg([sweeps.sweep()])))
    middles = [bar.get_x() + bar.get_width() / 2 for bar in figure.axes[0].patches]
    assert middles[0] == pytest.approx(0), "o2 is invalid at this batch size, so AMP is the only bar"
    assert FIGURES["empty-group"]().axes[0].texts[-1].get_text() == "no fp32, lr 0.01"


def test_published_crossover_is_drawn_only_for_gpus_within_axis_limits() -> None:
    def published(figure: Any) -> list[Any]:
        return [line for line in figure.axes[0].lines if str(line.get_label()).startswith("published")]

    assert published(FIGURES["threads"]()) == []
    (line,) = published(FIGURES["crossover"]())
    assert list(line.get_xdata()) == [700_000, 700_000]
    figure = FIGURES["early-crossover"]()
    (arrow,) = published(figure)
    assert arrow.get_marker() == ">"
    assert figure.axes[0].get_xlim()[1] < 100_000


def test_title_describes_the_error_bars() -> None:
    def title(rounds: int) -> str:
        job = sweeps.published_vgg("V100")
        for record in job.records:
            record.rounds = record.rounds[:rounds]
        return str(draw_speedup_plots("vgg16", speedup_plots(vgg([job]), "fp32")).get_suptitle())

    assert title(5) == "vgg16, speed-up over fp32 with 95% interval"
    assert title(2) == "vgg16, speed-up over fp32 with range of rounds"
    assert title(1) == "vgg16, speed-up over fp32"


def test_curves_show_means_per_gpu_and_omit_points_without_figure() -> None:
    time, memory = batch_size_plots("vgg16-cifar10", vgg(three_gpus()))
    assert [curve.name for curve in time.curves] == [f"{gpu}, {name}" for gpu in GPUS for name in ("fp32", "o2", "amp-fp16")]
    assert time.curves[-1].y == pytest.approx([4.27, 7.18, 13.31, 23.99, 45.68])
    assert "(s)" in time.y_label
    assert "(MiB)" in memory.y_label
    broken, _ = batch_size_plots("vgg16-cifar10", vgg([sweeps.sweep()]))
    assert [(curve.setting, curve.x) for curve in broken.curves] == [
        ("fp32", [128, 256, 512]),
        ("o2", [256, 512]),
        ("amp-fp16", [128, 256]),
    ]


def test_settings_at_a_single_batch_size_are_not_plotted_over_batch_size() -> None:
    (lone,) = sweeps.job(sweeps.sweep_point(settings={"loader": "torch"}), swept=()).records
    jobs = [sweeps.published_vgg("V100"), sweeps.job(replace(lone, environment=sweeps.published_vgg("V100").records[0].environment))]
    time, _ = batch_size_plots("vgg16-cifar10", vgg(jobs))
    assert [curve.setting for curve in time.curves] == ["fp32", "o2", "amp-fp16"]
    assert left_out_reasons(jobs) == ["vgg16-cifar10, over batch size: 1 setting with a single batch size"]


def test_curves_of_several_jobs_have_different_names() -> None:
    pairs = [(loader, lr) for loader in ("tensor", "torch") for lr in (0.1, 0.2)]
    arms = {
        (loader, lr): [sweeps.sweep_point(batch=batch, settings={"loader": loader, "lr": lr}) for batch in (64, 128)]
        for loader, lr in pairs
    }
    swept = sweeps.job(*arms["tensor", 0.1], *arms["torch", 0.1], swept=("batch_size", "loader"))
    lone = [sweeps.job(*arms[loader, 0.2], swept=("batch_size",)) for loader in ("tensor", "torch")]
    time, *_ = batch_size_plots("vgg16-cifar10", vgg([swept, *lone]))
    assert len({curve.name for curve in time.curves}) == 4


def test_out_of_memory_points_differ_from_points_not_measured() -> None:
    time, _ = batch_size_plots("vgg16-cifar10", vgg(short_gpus()))
    lacking = {curve.name: curve.out_of_memory_x for curve in time.curves if curve.out_of_memory_x}
    assert lacking == {"TITAN X, fp32": [1024, 2048], "TITAN X, o2": [2048], "V100, amp-fp16": [128, 256, 512, 1024, 2048]}
    assert next(curve for curve in time.curves if curve.name == "V100, amp-fp16").x == []
    plenty, some, most = speedup_plots(vgg(short_gpus()), "fp32")
    assert not any(plenty.out_of_memory_batches.values())
    assert some.out_of_memory_batches == {"fp32": [1024, 2048], "o2": [2048], "amp-fp16": []}
    assert not any(most.speedups["amp-fp16"])
    del (fewer := short_of_memory("V100", ("fp32", 2048))).records[0]
    assert [curve.out_of_memory_x for curve in batch_size_plots("vgg16-cifar10", vgg([fewer]))[0].curves] == [[2048], [], []]


def crosses(axes: Any) -> list[Any]:
    return [line for line in axes.lines if (line.get_marker(), line.get_markersize()) == ("X", 13)]


def test_out_of_memory_points_are_crosses_with_a_legend_entry() -> None:
    figure = FIGURES["no-memory"]()
    assert [text.get_text() for text in figure.legends[0].get_texts()][-1] == "out of memory"
    places = [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in crosses(figure.axes[0])]
    assert sorted(at for at, _ in places) == [128, 256, 512, 1024, 1024, 2048, 2048, 2048]
    assert len(set(places)) == len(places), "crosses are stacked"
    bare = FIGURES["time"]()
    assert crosses(bare.axes[0]) == []
    assert "out of memory" not in [text.get_text() for text in bare.legends[0].get_texts()]


def test_out_of_memory_bars_and_baselines_are_crosses() -> None:
    figure = FIGURES["speed-up-no-memory"]()
    assert [len(crosses(axes)) for axes in figure.axes] == [0, 3, 5]
    on_the_line = [line.get_xdata()[0] for line in crosses(figure.axes[1]) if line.get_ydata()[0] == 1.0]
    assert on_the_line == [3, 4]
    assert figure.legends[0].get_texts()[-1].get_text() == "out of memory, on the line fp32"
    alone = draw_speedup_plots("vgg16", speedup_plots(vgg([short_of_memory("V100", ("o2", 2048))]), "fp32"))
    assert alone.legends[0].get_texts()[-1].get_text() == "out of memory"


def test_newer_run_replaces_a_sweep_point() -> None:
    old, new = sweeps.published_vgg("V100"), sweeps.published_vgg("V100")
    new.started = "2026-11-22T00:00:00Z"
    for record in new.records:
        record.rounds = record.rounds[:1]
    assert {len(cell.record.rounds) for cell in outdated_points(vgg([new, old]))} == {5}
    assert all(not any(curve.spread) for chart in batch_size_plots("vgg16-cifar10", vgg([new, old])) for curve in chart.curves)
    assert len(left_out_reasons([new, old])) == 15
    assert "V100, fp32, batch 128, started 2026-11-21T01:29:30Z: replaced by a later measurement" in left_out_reasons([new, old])[0]


def test_interrupted_newer_run_replaces_only_measured_points() -> None:
    old, new = sweeps.published_vgg("V100"), sweeps.published_vgg("V100")
    new.started = "2026-11-22T00:00:00Z"
    for record in new.records[1:]:
        record.status, record.rounds = "interrupted", []
    assert [cell.record for cell in outdated_points(vgg([old, new]))] == [old.records[0]]
    assert len(left_out_reasons([old, new])) == 1
    whole, both = (batch_size_plots("vgg16-cifar10", vgg(jobs)) for jobs in ([old], [old, new]))
    assert [curve.x for chart in both for curve in chart.curves] == [curve.x for chart in whole for curve in chart.curves]


def test_crossovers_of_the_same_devices_are_labelled_by_date() -> None:
    old, new = sweeps.crossing_disc(), sweeps.crossing_disc()
    new.started = "2026-11-22T00:00:00Z"
    assert [race.loser.device for race in crossover_plots([old, new])] == ["Some CPU, 2026-11-21 01:29", "Some CPU, 2026-11-22 00:00"]


def test_speedups_over_fp32_have_intervals() -> None:
    (panel,) = speedup_plots(vgg([sweeps.published_vgg("V100")]), "fp32")
    assert (panel.reference, list(panel.speedups)) == ("fp32", ["o2", "amp-fp16"])
    best = panel.speedups["o2"][-1]
    assert best is not None
    assert best.low < best.center < best.high
    assert best.center == pytest.approx(49.43 / 37.32, rel=0.01)
    (broken,) = speedup_plots(vgg([sweeps.sweep()]))
    assert broken.speedups["o2"][0] is None


@pytest.mark.parametrize("name", FIGURES)
def test_plot_texts_do_not_overlap_or_leave_the_figure(name: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    figure = FIGURES[name]()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    boxes = {text: text.get_window_extent(canvas.get_renderer()) for text in texts}
    assert len(boxes) > 10
    page = figure.bbox.padded(1)
    shown = {text: box for text, box in boxes.items() if box.width and page.contains(box.x0, box.y0) and page.contains(box.x1, box.y1)}
    outside = [text.get_text() for text in boxes.keys() - shown.keys() if not is_tick_beyond(text, figure)]
    assert outside == []
    overlapping = [
        (one.get_text(), other.get_text())
        for one, other in combinations(shown, 2)
        if shown[one].shrunk(0.98, 0.9).overlaps(shown[other].shrunk(0.98, 0.9))
        and not (is_tick_beyond(one, figure) or is_tick_beyond(other, figure))
    ]
    assert overlapping == []


def is_tick_beyond(text: Any, figure: Any) -> bool:
    """A tick label that matplotlib keeps but does not draw because it is outside the axis limits."""
    for axes in figure.axes:
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if text in (tick.label1, tick.label2):
                    return not min(limits) <= tick.get_loc() <= max(limits)
    return False


def test_lines_and_bars_are_distinguishable_without_color() -> None:
    axes = FIGURES["time"]().axes[0]
    signs = {(line[0].get_marker(), line[0].get_linestyle(), line[0].get_fillstyle()) for line in axes.containers}
    assert len(signs) == 9
    held = [line for line in FIGURES["no-memory"]().axes[0].lines if line.get_markersize() == 5]
    assert len({(line.get_marker(), line.get_fillstyle()) for line in held}) == 3, "a cross contains the marker of its curve"
    figure = FIGURES["speed-up"]()
    assert len({patch.get_hatch() for patch in figure.legends[0].get_patches()}) == 2


def test_matplotlib_is_imported_only_for_drawing() -> None:
    modules = "ddpbench.report.plots, ddpbench.report.pages.sweep, ddpbench.published.reproduction_page"
    script = f"import sys, {modules}\nassert 'matplotlib' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
