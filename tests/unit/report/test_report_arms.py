"""The page of several arms: shared and per-arm lines."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pytest
import records
from msgspec.structs import replace
from page_jobs import PAGE_JOBS, UNEVEN, arm, job_of_arms

from ddpbench.analysis.stats import PairedRatio
from ddpbench.record.record import Job
from ddpbench.report.console import make_console
from ddpbench.report.export import jobs_to_csv
from ddpbench.report.layout import Page
from ddpbench.report.messages.sentence import Quantity, Sentence, counted, sentence_text
from ddpbench.report.pages.arms import ratio_text
from ddpbench.report.pages.checks import check_lines, merge_sentences
from ddpbench.report.pages.run import render_run


def page_of(job: Job, width: int = 80, verbose: bool = False) -> str:
    stream = io.StringIO()
    render_run(job, make_console(stream, width), None, verbose=verbose)
    return stream.getvalue()


def page(name: str, width: int = 80, verbose: bool = False) -> str:
    return page_of(PAGE_JOBS[name](), width, verbose)


def vary(percent: float) -> Sentence:
    return "vary by ", Quantity(percent, f"{percent}%"), " (more than 1%)"


def test_check_shared_by_all_arms_is_merged_without_arm_names() -> None:
    assert merge_sentences({"fp32": ("too few",), "tf32": ("too few",)}, 2) == ["too few"]
    assert merge_sentences({"fp32": ("too few",), "tf32": ("too few",)}, 3) == ["fp32, tf32: too few"]
    assert merge_sentences({str(arm): ("too few",) for arm in range(5)}, 8) == ["5 of 8 arms: too few"]


def test_hints_are_omitted_if_disabled() -> None:
    arms = {"": PAGE_JOBS["noisy"]().records[0]}
    with_hints, without = ([line.plain for line in check_lines(arms, Page(80, True), hints=hints)] for hints in (True, False))
    assert [line for line in with_hints if "hint:" not in line] == without
    assert [line.split("  ")[1] for line in without if line.startswith("warning")] == ["noisy, drift"]


def test_messages_differing_in_one_quantity_are_merged_into_a_range() -> None:
    assert merge_sentences({"a": vary(10.5), "b": vary(9.3), "c": vary(9.9)}, 3) == ["vary by 9.3% to 10.5% (more than 1%)"]
    steps = {"a": ("3 rounds and ", *counted(1500, "step")), "b": ("3 rounds and ", *counted(300, "step"))}
    assert merge_sentences(steps, 2) == ["3 rounds and 300 to 1,500 steps"]


def test_equal_printed_quantities_are_not_a_range() -> None:
    said = {"a": ("vary by ", Quantity(1.04, "1.0%")), "b": ("vary by ", Quantity(0.96, "1.0%"))}
    assert merge_sentences(said, 3) == ["a, b: vary by 1.0%"]


@pytest.mark.parametrize(
    "other",
    [("3 ranks: ", Quantity(2, "2"), " hot"), ("2 ranks: ", Quantity(2, "2"), " cold"), ("2 ranks: ", "2", " hot"), ("2 ranks: hot",)],
    ids=["other rank and quantity", "other word and quantity", "a number that is no quantity", "other length"],
)
def test_different_messages_are_not_merged(other: Sentence) -> None:
    one: Sentence = ("2 ranks: ", Quantity(1, "1"), " hot")
    assert merge_sentences({"a": one, "b": other}, 2) == ["a: 2 ranks: 1 hot", f"b: {sentence_text(other)}"]


def test_arms_with_different_rank_counts_are_listed_separately() -> None:
    capped = {"health": replace(records.GPU_HEALTH, throttle_reasons=["sw-power-cap"])}
    arms = {f"{ranks} ranks": arm(1.0, traces=dict.fromkeys(range(ranks), capped)) for ranks in (2, 4)}
    lines = [
        line.plain
        for line in check_lines({name: job_of_arms([record]).records[0] for name, record in arms.items()}, Page(200, True, verbose=True))
    ][:2]
    text = "the power limit lowers clocks"
    assert [" ".join(line.split()) for line in lines] == [f"note power-cap 2 ranks: 2 ranks: {text}", f"4 ranks: 4 ranks: {text}"]


def test_each_check_of_several_arms_has_one_line_with_its_range() -> None:
    uneven = {name: job_of_arms([arm(1.0, (1.0, spread))]).records[0] for name, spread in (("a", 1.05), ("b", 1.1))}
    lines = [" ".join(line.plain.split()) for line in check_lines(uneven, Page(200, True), hints=False)]
    assert lines == [
        "warning noisy rounds vary by 3.4% to 6.7%",
        "warning too-short 2 rounds, 40 steps; the minimum is 5 rounds and 30 steps",
    ]


def test_arm_on_another_gpu_is_not_comparable() -> None:
    arms = [arm(1.0, precision="fp32"), arm(1.0, precision="o2", environment=records.environment(4, device="NVIDIA A100"))]
    assert "not comparable: other GPU" in page_of(job_of_arms(arms, "precision"), 100)


def test_hints_and_failures_are_printed_once() -> None:
    printed = " ".join(page("many-arms").split())
    assert printed.count("hint: --rounds 10 narrows the interval") == 1
    assert printed.count("out of memory at batch 512") == 1


def test_accuracy_is_printed_for_validated_runs_and_arms() -> None:
    validated = arm(1.0, precision="fp32", traces={0: {"numerics": records.numerics(accuracy=0.973)}})
    alone, compared = io.StringIO(), io.StringIO()
    render_run(job_of_arms([validated]), make_console(alone), None)
    assert "accuracy 97.3% on held-out data" in " ".join(alone.getvalue().split())
    job = job_of_arms([validated, arm(1.0, precision="tf32")], "precision")
    render_run(job, make_console(compared), None)
    assert "accuracy  on held-out data: fp32 97.3%\n" in compared.getvalue()
    assert [row["accuracy"] for row in csv.DictReader(io.StringIO(jobs_to_csv(job)))] == ["0.973", ""]


def test_wide_arm_table_fits_the_page() -> None:
    lines = page("many-arms").splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split()[-2:] == ["images/s", "speed-up"] for line in lines)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("precisions", "FASTEST   amp-fp16: 2.14 times torch-default (2.13 to 2.15, 95% over all pairs)\n"),
        ("loader-and-ceiling", "CEILING   synthetic (no loader): 5.099 times torch\n"),
        ("loaders-and-batches", "NO DIFFERENCE   dali-cpu batch-size 256: 1.00 times torch batch-size 256 (0.99 to 1.01)\n"),
        ("engines", "INCONCLUSIVE   too few rounds; ddp: 1.000 times accelerate (2 pairs)\n"),
    ],
)
def test_conclusion_comes_first(name: str, start: str) -> None:
    _, first, *_ = page(name, 100).split("\n\n")
    assert f"{first}\n".startswith(start)


def test_compiled_arm_shows_when_its_later_start_has_paid_off() -> None:
    lines = page("compiled").splitlines()
    start_s, compiled_start_s, speedup = 1.9 + 6.1, 2.1 + 41.0, 1.2
    after_s = (speedup * compiled_start_s - start_s) / (speedup - 1)
    assert speedup * (after_s - compiled_start_s) == pytest.approx(after_s - start_s)  # as many samples by then
    (line,) = (line for line in lines if line.startswith("  start"))
    found = re.fullmatch(r"  start (\S+) s later than compile off, ahead after (\S+) s", line)
    assert found
    assert float(found[1]) == pytest.approx(compiled_start_s - start_s, rel=0.01)
    assert float(found[2]) == pytest.approx(after_s, rel=0.02)


def test_arm_with_fused_kernels_starts_later_by_what_triton_compiled() -> None:
    slow, usual = replace(records.record().warmup, first_step_s=41.0, kernel_compile_s=12.0), records.record().warmup
    job = job_of_arms(
        [replace(arm(1.0, UNEVEN, fused_kernels=True), warmup=slow), replace(arm(2.0, UNEVEN), warmup=usual)], "fused_kernels"
    )
    assert re.search(r"\n  start 12(\.0)? s later than ", page_of(job))


def test_winner_that_runs_what_another_arm_has_compiled_starts_as_late() -> None:
    eager, first, second = (replace(records.record().warmup, first_step_s=seconds) for seconds in (3.0, 41.0, 5.0))
    arms = [arm(2.0, UNEVEN), arm(1.5, UNEVEN, compile="default"), arm(1.0, UNEVEN, compile="default", engine="none")]
    job = job_of_arms([replace(each, warmup=start) for each, start in zip(arms, (eager, first, second), strict=True)], "compile", "engine")
    assert re.search(r"\n  start 38(\.0)? s later than ", page_of(job))


def test_starts_of_two_compiled_arms_are_not_compared() -> None:
    """The second one runs what the first has compiled."""
    late, early = (replace(records.record().warmup, first_step_s=seconds) for seconds in (41.0, 6.0))
    fast, slow = replace(arm(1.0, UNEVEN, compile="default"), warmup=late), replace(arm(2.0, UNEVEN, compile="default"), warmup=early)
    text = page_of(job_of_arms([fast, slow], "engine"))
    assert "FASTEST" in text
    assert " later than " not in text


@pytest.mark.parametrize("settings", [{"compile": "default"}, {"fused_kernels": True}], ids=str)
def test_start_with_fused_kernels_is_not_compared_with_that_of_arms_that_compile(settings: dict[str, Any]) -> None:
    slow, later = (
        replace(records.record().warmup, first_step_s=1.0, kernel_compile_s=12.0),
        replace(records.record().warmup, first_step_s=46.0),
    )
    job = job_of_arms(
        [replace(arm(1.0, UNEVEN, fused_kernels=True), warmup=slow), replace(arm(2.0, UNEVEN, **settings), warmup=later)], "compile"
    )
    text = page_of(job)
    assert "FASTEST" in text
    assert " later than " not in text


def test_start_is_not_mentioned_without_compilation_or_a_clear_winner() -> None:
    assert "  start" not in page("precisions")
    late = replace(records.record().warmup, first_step_s=41.0)
    alike = job_of_arms([arm(1.0, UNEVEN, compile="off"), replace(arm(1.0, compile="default"), warmup=late)], "compile")
    assert "ahead after" not in page_of(alike)


def test_roofline_of_each_arm_is_on_the_verbose_page() -> None:
    (measured,) = PAGE_JOBS["roofline"]().records
    job = job_of_arms([replace(arm(1.2, UNEVEN, precision="fp32"), roofline=measured.roofline), arm(1.0)], "precision")
    texts = [page_of(job, verbose=verbose) for verbose in (False, True)]
    assert ["-v shows the table of each arm" in text for text in texts] == [True, False]
    assert ["layer1.0.conv1" in text for text in texts] == [False, True]


@pytest.mark.parametrize(("matmul_tflops", "is_explained"), [(742.0, False), (100.0, True)])
def test_layers_above_their_limit_are_explained(matmul_tflops: float, is_explained: bool) -> None:
    (measured,) = PAGE_JOBS["roofline"]().records
    limits = replace(measured.roofline.limits, matmul_tflops=matmul_tflops)
    text = page_of(job_of_arms([replace(measured, roofline=replace(measured.roofline, limits=limits))]))
    assert ("above 100%: data stayed in a cache" in text) == is_explained


def test_tied_arms_are_both_named_and_the_first_is_suggested() -> None:
    tied = job_of_arms([arm(2.0, precision="fp32"), arm(2.0, UNEVEN, precision="tf32"), arm(4.0, precision="o2")], "precision")
    text = page_of(tied, 100)
    assert re.search(r"FASTEST   fp32, tf32 are tied; tf32: \d\.\d+ times o2 \(", text)
    assert re.search(r"  next  ddpbench resnet50 --precision fp32 --gpus 4\n", text)


def test_another_option_is_suggested_if_the_baseline_is_fastest() -> None:
    slower = job_of_arms([arm(1.0, UNEVEN, compile="off"), arm(2.0, UNEVEN, compile="default")], "compile")
    text = page_of(slower, 100)
    assert "FASTEST   compile off: " in text
    assert "  next  ddpbench resnet50 --precision amp-fp16 --compile off --gpus 4 --batch-size 256,512\n" in text


def test_far_slower_arm_with_few_rounds_is_not_among_the_fastest() -> None:
    few = job_of_arms([arm(4.0, precision="fp32"), arm(8.0, UNEVEN[:2], precision="tf32"), arm(1.0, UNEVEN, precision="o2")], "precision")
    text = page_of(few, 100)
    assert re.search(r"FASTEST   o2: \d\.\d+ times fp32 \(", text)
    assert re.search(r"  next  ddpbench resnet50 --precision o2 --gpus 4\n", text)


def test_single_arm_with_a_figure_has_no_comparison() -> None:
    dead = {0: {"numerics": records.numerics(nonfinite_step=11, last_loss=None)}}
    alone = job_of_arms([arm(1.0, precision="amp-fp16"), arm(1.0, precision="o2", traces=dead)], "precision")
    stream = io.StringIO()
    render_run(alone, make_console(stream), None)
    assert "times" not in stream.getvalue()
    assert "  next  " not in stream.getvalue()


def test_too_few_pairs_are_counted_instead_of_an_interval() -> None:
    printed = page("processor-arms", 100)
    assert "2.012 (2.011 to 2.013, 2 pairs)" in printed
    assert "pairs  speed-up over the rounds shared with the first arm: amp-bf16 2 rounds" in page("processor-arms", 100, verbose=True)
    assert ratio_text(PairedRatio(1.4, 1.4, 1.4, 1)) == "1.400 (1 pair)"
    assert ratio_text(PairedRatio(1.4, 1.3, 1.5, 2), without_interval=True) == "1.4 (2 pairs)"
    assert ratio_text(PairedRatio(1.4, 1.3, 1.5, 3), without_interval=True) == "1.4"


@pytest.mark.parametrize(
    ("low", "center", "high", "text"),
    [
        (1.0036, 1.051, 1.1, "1.051 (1.004 to 1.100)"),
        (0.9964, 1.051, 1.1, "1.05 (1.00 to 1.10)"),
        (0.951, 0.977, 0.998, "0.977 (0.951 to 0.998)"),
    ],
)
def test_ratio_keeps_digits_that_separate_it_from_one(low: float, center: float, high: float, text: str) -> None:
    assert ratio_text(PairedRatio(center, low, high, 5)) == text


@pytest.mark.parametrize(("name", "heading", "cell"), [("processor-arms", "host GiB", "1.5"), ("precisions", "peak GiB", "12.0")])
def test_memory_column_is_gpu_or_host_memory_by_device(name: str, heading: str, cell: str) -> None:
    lines = page(name, 100).splitlines()
    at = next(number for number, line in enumerate(lines) if line.endswith(heading))
    assert lines[at + 1].endswith(cell)


def test_too_few_rounds_never_show_no_difference() -> None:
    assert "note  2 rounds: range, no confidence interval" in page("engines")
    assert "no difference" not in page("engines")
    assert "no difference from the first arm: dali-cpu batch-size 256" in page("loaders-and-batches")


@pytest.mark.parametrize(
    ("longer", "text"),
    [
        ((1.0, 1.004, 0.997), "equal  no difference from the first arm: tf32"),
        ((1.0, 1.2, 0.8), "open  inconclusive against the first arm: tf32"),
    ],
)
def test_no_difference_requires_a_narrow_interval_around_one(longer: tuple[float, ...], text: str) -> None:
    stream = io.StringIO()
    render_run(
        job_of_arms([arm(1.0, precision="fp32", longer=(1.0,) * 3), arm(1.0, precision="tf32", longer=longer)], "precision"),
        make_console(stream),
        None,
    )
    assert [line for line in stream.getvalue().splitlines() if "the first arm" in line] == [text]


def test_three_arms_without_variation_are_compared() -> None:
    stream = io.StringIO()
    render_run(
        job_of_arms([arm(slower, (1.0,) * 5, precision=name) for slower, name in ((1.0, "tf32"), (2.0, "fp32"), (4.0, "o2"))], "precision"),
        make_console(stream),
        None,
    )
    assert "FASTEST   tf32: 1.991 times fp32\n" in stream.getvalue()


@pytest.mark.parametrize(
    ("step_times", "says"),
    [
        ({128: 1.0, 256: 1.3, 512: 2.55}, "batch 256 trains 97.7% as fast as 512"),
        ({512: 2.7, 128: 1.0, 256: 1.3}, "batch 256: larger ones are no faster"),
        ({128: 1.0, 256: 1.98}, "batch 128 trains 98.6% as fast as 256"),
        ({128: 1.0, 256: 1.8, 512: 3.2}, "beyond batch 512: larger ones may train faster still"),
    ],
    ids=str,
)
def test_comparison_of_batches_names_the_knee(step_times: dict[int, float], says: str) -> None:
    job = job_of_arms([arm(slower, UNEVEN, batch_size=batch) for batch, slower in step_times.items()], "batch_size")
    assert f"\n  knee  {says}\n" in page_of(job)


def test_batches_of_several_precisions_have_no_knee() -> None:
    job = job_of_arms([arm(1.0, UNEVEN, batch_size=batch) for batch in (128, 256, 512)], "batch_size", "precision")
    text = page_of(job)
    assert "FASTEST" in text
    assert "knee" not in text
