"""Number formatting and line wrapping."""

from __future__ import annotations

import shlex

import pytest

from ddpbench.report.format import (
    format_decimals,
    format_gib,
    format_interval,
    format_percent,
    format_rounded,
    format_significant,
    format_summands,
    step_decimals,
)
from ddpbench.report.layout import Page, align_columns, wrap_command, wrap_hint, wrap_items, wrap_text

WIDE, NARROW = Page(80, unicode=True), Page(24, unicode=False)


@pytest.mark.parametrize(
    ("figure", "printed"),
    [
        ((4522.968, 4497.5, 4548.6), ("4,523", "4,498", "4,549")),
        ((13145.0, 12300.0, 14020.0), ("13,140", "12,300", "14,020")),
        ((13145.0, 9000.0, 18000.0), ("13,100", "9,000", "18,000")),
        ((4196.6, 4189.1, 4203.9), ("4,197", "4,189", "4,204")),
        ((8.123, 8.051, 8.195), ("8.123", "8.051", "8.195")),
        ((8.123, 7.2, 9.1), ("8.12", "7.20", "9.10")),
        ((0.0421, 0.0402, 0.044), ("0.0421", "0.0402", "0.0440")),
        ((4500.0, 100.0, 90000.0), ("4,500", "100", "90,000")),
        ((4522.968, 4522.968, 4522.968), ("4,523", "4,523", "4,523")),
        ((19.8312, 19.8312, 19.8312), ("19.83", "19.83", "19.83")),
        ((23063.0, 23063.0, 23063.0), ("23,060", "23,060", "23,060")),
    ],
)
def test_interval_width_determines_the_digits_of_its_figure(figure: tuple[float, float, float], printed: tuple[str, str, str]) -> None:
    assert format_interval(*figure) == printed


@pytest.mark.parametrize(
    ("ratio", "printed"),
    [
        ((2.1604, 2.1497, 2.1706), ("2.16", "2.15", "2.17")),
        ((0.38094, 0.3794, 0.3824), ("0.381", "0.379", "0.382")),
        ((1.0021, 0.9982, 1.0061), ("1.002", "0.998", "1.006")),
        ((1.1763, 1.0183, 1.2395), ("1.18", "1.02", "1.24")),
    ],
)
def test_ratio_has_one_digit_of_its_interval_or_two_if_it_would_equal_an_end(
    ratio: tuple[float, float, float], printed: tuple[str, str, str]
) -> None:
    assert format_interval(*ratio, width_digits=1) == printed


def test_significant_digits() -> None:
    assert [format_significant(value) for value in (7.0312, 0.20891, 1234.5, 9.361e-6, 0.0, None)] == [
        "7.03",
        "0.209",
        "1,234",
        "9.36e-06",
        "0.00",
        "-",
    ]
    assert [format_rounded(value) for value in (17_696.0, 886.4, 3.0178)] == ["17,700", "886", "3.02"]


def test_missing_value_is_a_dash_and_zero_is_not() -> None:
    assert (format_decimals(None, 1), format_percent(None), format_gib(None)) == ("-", "-", "-")
    assert (format_decimals(0.0, 1), format_percent(0.0), format_gib(0)) == ("0.0", "0.00%", "0.00")


def test_percent_and_gib() -> None:
    assert [format_percent(0.0364, 2), format_percent(0.004, 1), format_percent(1.0)] == ["3.6%", "0.4%", "100%"]
    assert [format_gib(int(12.04 * 2**30)), format_gib(300 * 2**20)] == ["12.0", "0.29"]


def test_printed_summands_add_up_after_rounding() -> None:
    parts = [0.14, 0.14, 0.14, 0.14, 0.14, 0.3]
    assert format_summands(parts, 1) == ["0.1", "0.2", "0.1", "0.2", "0.1", "0.3"]
    assert format_summands([10.0, -0.4, 0.4], 1) == ["10.0", "-0.4", "0.4"]


def test_step_decimals() -> None:
    assert [step_decimals(step_ms) for step_ms in (2034.0, 226.4, 44.4, 4.586, 0.41)] == [1, 1, 2, 3, 3]


def test_items_wrap_between_items_unless_one_is_too_wide() -> None:
    assert wrap_items("set  ", ["one", "two", "three four"], NARROW) == ["set  one   two", "     three four"]
    assert wrap_items("set  ", ["an item of many words indeed"], NARROW) == ["set  an item of many", "     words indeed"]
    assert wrap_items("set  ", ["/a/path/that/must/stay/whole"], NARROW) == ["set  /a/path/that/must/stay/whole"]
    assert wrap_items("set  ", [], NARROW) == ["set"]


def test_sentence_wraps_between_words() -> None:
    assert wrap_text("why  ", "the loader gives  1,130 images/s", NARROW) == ["why  the loader gives", "     1,130 images/s"]


def test_inline_command_is_never_broken() -> None:
    assert wrap_hint("hint: ", "lower --lr or `--amp off`, say", NARROW) == ["hint: lower --lr or", "      --amp off, say"]
    assert wrap_hint("hint: ", "`top` shows them", NARROW) == ["hint: top shows them"]


def test_command_too_long_for_a_line_is_wrapped_with_backslashes() -> None:
    assert wrap_hint("hint: ", "too hot: `nvidia-smi -q -d POWER,CLOCK` tells", Page(30, unicode=False)) == [
        "hint: too hot:",
        "      nvidia-smi -q \\",
        "        -d POWER,CLOCK",
        "      tells",
    ]


@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize(
    "words",
    [
        "torchrun --nproc_per_node=4 -m ddpbench resnet50 --amp --data-dir '/data/my images' --loader torch,dali-cpu -j 16",
        "pip install nvidia-dali-cuda130 && ddpbench resnet50 --data-dir /a/very/long/folder/that/no/narrow/page/can/hold",
        "ddpbench resnet50 --data-dir '/it'\"'\"'s/here'",
    ],
)
def test_wrapped_command_parses_to_the_same_words(words: str, width: int) -> None:
    lines = wrap_command("  next  ", words, Page(width, unicode=False))
    joined = "\n".join(lines).removeprefix("  next  ").replace(" \\\n", " ")
    assert shlex.split(joined) == shlex.split(words)
    assert [line for line in lines[:-1] if not line.endswith(" \\")] == []
    assert [line for line in lines if len(line) > width and len(line.split()) > 3] == []


def test_flag_and_value_stay_on_one_line() -> None:
    lines = wrap_command("", "ddpbench resnet50 --data-dir /data/imagenet", Page(34, unicode=False))
    assert lines == ["ddpbench resnet50 \\", "  --data-dir /data/imagenet"]


def test_columns_are_aligned_and_last_cell_wraps() -> None:
    rows = [["arm", "images/s", "why"], ["fp32", "4,197", ""], ["fp16", "a reason as long as it takes to tell"]]
    assert align_columns(rows, "<><", Page(26, unicode=False)) == [
        "arm   images/s  why",
        "fp32     4,197",
        "fp16  a reason as long as",
        "      it takes to tell",
    ]
