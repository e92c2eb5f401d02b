"""Speed-up plots: their reference, which arms they compare, and the names of plot files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import sweeps

from ddpbench.record.errors import UsageError
from ddpbench.record.record import Job, Record
from ddpbench.record.roles import EARLIER_MODEL_ALIVE
from ddpbench.report.draw_speedup import draw_speedup_plots
from ddpbench.report.plot_data import SweepPoint, points_by_workload
from ddpbench.report.plot_names import MAX_LENGTH, PlotNames, device_part, varied_part
from ddpbench.report.plots import draw_plots, left_out_reasons
from ddpbench.report.speedup_data import speedup_plots


def arm(seconds: float, name: str = "fp32", batch: int = 128, device: str = "NVIDIA H200", **settings: object) -> Record:
    return sweeps.sweep_point(name=name, batch=batch, seconds=[seconds] * 3, device=device, settings=settings)


def points(*jobs: Job) -> Sequence[SweepPoint]:
    return points_by_workload(jobs)["vgg16-cifar10"]


def stems(jobs: Sequence[Job], folder: Path) -> list[str]:
    return [path.stem for path in draw_plots(jobs, folder) if path.suffix == ".png"]


def fast_and_compiled() -> Job:
    pairs = [(compiled, fast) for compiled in ("off", "default") for fast in (False, True)]
    arms = [arm(4.0 - fast - 2 * (compiled == "default"), compile=compiled, fast=fast) for compiled, fast in pairs]
    return sweeps.job(*arms, swept=("compile", "fast"))


def loaders() -> Job:
    """A synthetic batch and two loaders."""
    return sweeps.job(
        *(arm(seconds, loader=name) for name, seconds in (("synthetic", 1.0), ("tensor", 2.0), ("torch", 3.0))), swept=("loader",)
    )


# Reference


def test_slowest_arm_is_the_reference_and_the_line_at_1() -> None:
    (panel,) = speedup_plots(points(sweeps.job(arm(2.0), arm(3.0, "amp-fp16"), arm(1.0, "o2"))))
    assert panel.reference == "amp-fp16"
    assert {name: found and found.center for name, (found,) in panel.speedups.items()} == pytest.approx({"fp32": 1.5, "o2": 3.0})
    figure = draw_speedup_plots("vgg16", [panel])
    assert [list(line.get_ydata()) for line in figure.axes[0].lines if line.get_linestyle() == "--"] == [[1.0, 1.0]]
    assert "1: amp-fp16" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert figure.axes[0].get_ylim()[1] > 3.0


def test_slowest_arm_is_judged_over_all_batch_sizes() -> None:
    job = sweeps.job(
        arm(2.0), arm(2.1, "o2"), arm(8.0, batch=256), arm(4.0, "o2", 256), arm(9.0, "amp-fp16", 512), swept=("precision", "batch_size")
    )
    (panel,) = speedup_plots(points(job))
    assert panel.reference == "fp32"


def test_devices_with_the_same_settings_share_a_reference() -> None:
    one = sweeps.job(arm(2.0), arm(1.0, "o2"))
    other = sweeps.job(arm(1.0, device="NVIDIA A100"), arm(1.1, "o2", device="NVIDIA A100"))
    assert [panel.reference for panel in speedup_plots(points(one, other))] == ["fp32", "fp32"]
    assert [panel.reference for panel in speedup_plots(points(other))] == ["o2"]


def test_reference_without_figure_on_a_device_is_replaced_there() -> None:
    one = sweeps.job(arm(3.0), arm(2.0, "o2"), arm(1.0, "amp-fp16"))
    other = sweeps.job(sweeps.no_memory("fp32", 128), arm(2.0, "o2"), arm(1.0, "amp-fp16"))
    assert [panel.reference for panel in speedup_plots(points(one, other))] == ["fp32", "o2"]


def test_arm_that_does_not_converge_is_no_reference() -> None:
    useless = sweeps.sweep_point(name="fp16", seconds=[9.0] * 3, accuracy=[0.1] * 3)
    learning = [sweeps.sweep_point(name=name, seconds=[each] * 3, accuracy=[0.9] * 3) for name, each in (("fp32", 3.0), ("o2", 2.0))]
    job = sweeps.job(useless, *learning)
    (panel,) = speedup_plots(points(job))
    assert panel.reference == "fp32"
    (panel,) = speedup_plots(points(job), "fp16")
    assert panel.reference == "fp16, not converging"


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("fast on", "fp32, compile off fast on"),
        ("default", "fp32, compile default fast off"),
        ("compile default fast on", "fp32, compile default fast on"),
        ("FP32, compile default fast on", "fp32, compile default fast on"),
        ("O0", "fp32, compile off fast off"),
    ],
)
def test_reference_is_named_by_an_arm_or_a_value(name: str, reference: str) -> None:
    (panel,) = speedup_plots(points(fast_and_compiled()), name)
    assert panel.reference == reference, "of several arms the slowest"


def test_unknown_reference_is_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        draw_plots([loaders()], tmp_path / "plots", "synthetic")
    assert error.value.hint == "--reference accepts fp32, tensor; fp32, torch"
    assert not (tmp_path / "plots").exists()


# Synthetic data


def test_synthetic_batch_is_not_compared_with_loaders(tmp_path: Path) -> None:
    assert stems([loaders()], tmp_path) == ["vgg16-cifar10-h200-speed-up-by-loader"]
    (reason,) = left_out_reasons([loaders()])
    assert reason.startswith("vgg16-cifar10, H200, fp32, synthetic, started ")
    assert reason.endswith("not compared with the other arms, since a synthetic batch loads nothing")
    two = sweeps.job(*loaders().records[:2], swept=("loader",))
    assert draw_plots([two], tmp_path) == []
    assert len(left_out_reasons([two])) == 2


def test_synthetic_data_have_plots_of_their_own(tmp_path: Path) -> None:
    arms = [arm(1.0, name, batch, loader=loader) for loader in ("synthetic", "torch") for name in ("fp32", "o2") for batch in (64, 128)]
    job = sweeps.job(*arms, swept=("loader", "precision", "batch_size"))
    metrics = ("time", "speed-up")
    assert stems([job], tmp_path) == [
        f"vgg16-cifar10-h200-{synthetic}{name}-by-batch-size-and-precision" for synthetic in ("", "synthetic-") for name in metrics
    ]
    assert left_out_reasons([job]) == []


# Names


def test_comparisons_of_other_fields_have_a_figure_of_their_own(tmp_path: Path) -> None:
    precisions = sweeps.job(arm(2.0), arm(1.0, "o2"))
    alive = sweeps.sweep_point(seconds=[3.0] * 3, role=EARLIER_MODEL_ALIVE)
    jobs = [precisions, fast_and_compiled(), sweeps.job(arm(2.0), alive, swept=())]
    assert stems(jobs, tmp_path) == [f"vgg16-cifar10-h200-speed-up-by-{name}" for name in ("precision", "compile-and-fast", "role")]


def test_devices_whose_names_look_alike_do_not_share_a_file(tmp_path: Path) -> None:
    jobs = [sweeps.crossing_disc(device) for device in ("A100 40GB", "A100-40GB")]
    apart = [stems([job], tmp_path) for job in jobs]
    assert apart == [["disc-mlp-cpu-vs-a100-40gb-time-by-model-size"]] * 2
    names = PlotNames()
    assert [names.reserve("a", "2"), names.reserve("a"), names.reserve("A"), names.reserve("a")] == ["a-2", "a", "a-3", "a-4"]
    assert len(names.reserve("x" * 500)) == MAX_LENGTH


def test_parts_of_file_names_are_short() -> None:
    assert device_part(["4 x H200", "H200", "H200"]) == "4x H200 H200"
    assert device_part(["Intel(R) Xeon(R) Processor"]).split() == ["Intel", "Xeon"]
    assert varied_part(["batch_size", "precision", "fast"]) == "by batch_size and precision and fast"
    assert varied_part(["batch_size", "precision", "fast", "lr"]) == "by batch_size and settings"
    assert varied_part(["precision", "fast", "lr", "loader"]) == "by settings"
