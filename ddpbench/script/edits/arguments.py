"""A script's own arguments that set an argument of its DataLoader: ``--workers 14`` instead of an edit."""

from __future__ import annotations

import ast
import io
from argparse import Action, BooleanOptionalAction, _StoreAction
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from ddpbench.script.edits.diff_file import with_arguments
from ddpbench.script.observe.call_sites import ParsedArguments

NAMES: Mapping[str, Sequence[str]] = {
    "num_workers": ("workers", "num_workers", "n_workers", "nworkers", "data_workers", "loader_workers", "num_data_workers", "j"),
    "prefetch_factor": ("prefetch", "prefetch_factor"),
    "pin_memory": ("pin", "pin_mem", "pin_memory"),
    "persistent_workers": ("persistent", "persistent_workers"),
    "in_order": ("in_order",),
}
"""What an argument of a script is called that is meant for that one of a DataLoader; ``dataloader_`` may come before."""


def own_arguments(parsed: Sequence[ParsedArguments], keyword: str, value: Any, present: Any, written: ast.expr | None) -> list[str]:
    """The words that let the script set ``keyword`` of its DataLoader, now ``present``, to ``value``; empty if it has none for that.

    ``written`` is what the script writes there: ``args.workers`` is the argument ``workers``. Where it is another variable, or the library
    that makes the loader has it, the argument is the only one with a usual name and the present value.
    """
    if not (written is None or isinstance(written, ast.Name | ast.Attribute)):
        return []
    usual = {*NAMES[keyword], *(f"dataloader_{each}" for each in NAMES[keyword])}
    for each in reversed(parsed):
        equal = {name for name, own in each.values.items() if type(own) is type(present) and own == present}
        names = equal & ({written.attr} if isinstance(written, ast.Attribute) else usual)
        actions = [action for action in each.parser._actions if names == {action.dest}]  # argparse has no public list of them
        if len(actions) == 1 and (words := _words(actions[0], value)) and _sets_only(each, words, actions[0].dest, value):
            return words
    return []


def _words(action: Action, value: Any) -> list[str]:
    """What sets ``action`` to ``value`` on a command line; empty if nothing does."""
    option = max(action.option_strings, key=lambda each: each.startswith("--"), default="")
    if not option or (action.choices is not None and value not in action.choices):
        return []
    if isinstance(action, BooleanOptionalAction):
        return [option if value else f"--no-{option.removeprefix('--')}"]
    if action.nargs == 0:
        return [option] if isinstance(value, bool) and action.const is value else []
    return [option, str(value)] if isinstance(action, _StoreAction) and action.nargs in (None, "?") else []


def _sets_only(parsed: ParsedArguments, words: Sequence[str], name: str, value: Any) -> bool:
    """Whether the command line with ``words`` changes the argument ``name``, and no other: a subcommand may not know it."""
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            namespace, unknown = parsed.parser.parse_known_args(with_arguments(parsed.words, words))
    except (Exception, SystemExit):  # of the script's own types, and of argparse
        return False
    found = vars(namespace)
    others = {key for key in found.keys() | parsed.values.keys() if key != name}
    is_same = all(repr(found.get(key)) == repr(parsed.values.get(key)) for key in others)
    return found.get(name) == value and is_same and unknown == parsed.unknown
