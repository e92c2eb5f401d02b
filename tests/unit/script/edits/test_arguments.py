"""Which of a script's own arguments set an argument of its DataLoader."""

from __future__ import annotations

import argparse
import ast
from typing import Any

import pytest

from ddpbench.script.edits.arguments import own_arguments
from ddpbench.script.observe.call_sites import ParsedArguments


def known(parser: argparse.ArgumentParser, *words: str) -> list[ParsedArguments]:
    return [ParsedArguments(parser, words, vars(parser.parse_args(words)), [])]


def parsed(*words: str) -> list[ParsedArguments]:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?")
    parser.add_argument("-j", "--workers", type=int, default=4)
    parser.add_argument("--val-batches", type=int, default=7)
    parser.add_argument("--few", dest="few_workers", type=int, choices=[1, 2], default=1)
    parser.add_argument("--pin-mem", action="store_true")
    parser.add_argument("--early-stopping", action="store_true")
    parser.add_argument("--no-in-order", action="store_false", dest="in_order")
    parser.add_argument("--persistent", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--prefetch", type=int, nargs="+", default=2)
    return known(parser, *words)


@pytest.mark.parametrize(
    ("keyword", "value", "present", "written", "words"),
    [
        ("num_workers", 14, 4, "args.workers", ["--workers", "14"]),
        ("num_workers", 14, 4, "workers", ["--workers", "14"]),  # a parameter of a function of the script
        ("num_workers", 14, 4, None, ["--workers", "14"]),  # a library writes it
        ("num_workers", 14, 2, "args.workers", []),  # changed since it was parsed
        ("num_workers", 14, 4, "args.workers // 1", []),
        ("num_workers", 14, 4, "4", []),  # a number, which is as large by chance
        ("num_workers", 9, 7, "args.val_batches", ["--val-batches", "9"]),
        ("num_workers", 9, 7, "seven", []),  # the name speaks against it
        ("num_workers", 14, 1, "args.few_workers", []),  # not among the choices
        ("num_workers", 2, 1, "args.few_workers", ["--few", "2"]),
        ("num_workers", 2, 1, "few", []),
        ("pin_memory", True, False, "args.pin_mem", ["--pin-mem"]),
        ("pin_memory", True, False, "pin", ["--pin-mem"]),
        ("in_order", False, True, "args.in_order", ["--no-in-order"]),
        ("in_order", True, True, "args.in_order", []),
        ("persistent_workers", True, False, "args.persistent", ["--persistent"]),
        ("prefetch_factor", 8, 2, "args.prefetch", []),  # takes several
    ],
)
def test_argument_is_that_of_the_value(keyword: str, value: Any, present: Any, written: str | None, words: list[str]) -> None:
    expression = ast.parse(written, mode="eval").body if written else None
    assert own_arguments(parsed(), keyword, value, present, expression) == words


@pytest.mark.parametrize("name", ["early-stopping", "gradient-clipping", "mapping", "val-workers"])
def test_argument_with_a_similar_name_is_another_one(name: str) -> None:
    parser = argparse.ArgumentParser()
    if name == "val-workers":
        parser.add_argument("--val-workers", type=int, default=1)
        assert own_arguments(known(parser), "num_workers", 3, 1, None) == []
    else:
        parser.add_argument(f"--{name}", action="store_true")
        assert own_arguments(known(parser), "pin_memory", True, False, None) == []


def test_several_arguments_with_the_value_are_none() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--num-workers", type=int, default=4)
    assert own_arguments(known(parser), "num_workers", 8, 4, None) == []
    written = ast.parse("args.num_workers", mode="eval").body
    assert own_arguments(known(parser), "num_workers", 8, 4, written) == ["--num-workers", "8"]


def test_positional_argument_is_none() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workers", type=int)
    assert own_arguments(known(parser, "4"), "num_workers", 8, 4, ast.parse("args.workers", mode="eval").body) == []


def test_argument_must_be_settable_by_the_whole_command() -> None:
    """A subcommand does not know it at its end, and a type of the script may refuse the value."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    parser.add_subparsers(dest="command").add_parser("fit")
    assert own_arguments(known(parser, "fit"), "num_workers", 8, 4, None) == []
    assert own_arguments(known(parser, "--workers", "4", "fit"), "num_workers", 8, 4, None) == ["--workers", "8"]
    strict = argparse.ArgumentParser()
    strict.add_argument("--workers", type=lambda word: {"4": 4}[word], default=4)
    assert own_arguments(known(strict), "num_workers", 8, 4, None) == []
