"""A script's own arguments that set an argument of its DataLoader: ``--workers 14`` instead of an edit."""

from __future__ import annotations

import ast
from argparse import Action, BooleanOptionalAction, _StoreAction
from collections.abc import Mapping, Sequence
from typing import Any

from ddpbench.script.observe.call_sites import ParsedArguments

WORDS: Mapping[str, str] = {
    "num_workers": "workers",
    "prefetch_factor": "prefetch",
    "pin_memory": "pin",
    "persistent_workers": "persistent",
    "in_order": "in_order",
}
"""What the name of an argument of a script has in it if it is meant for that one of a DataLoader."""


def own_arguments(parsed: Sequence[ParsedArguments], keyword: str, value: Any, present: Any, written: ast.expr | None) -> list[str]:
    """The words that let the script set ``keyword`` of its DataLoader, now ``present``, to ``value``; empty if it has none for that.

    ``written`` is what the script writes there: ``args.workers`` is the argument ``workers``. Where it is another variable, or the library
    that makes the loader has it, the argument is the only one with such a name and the present value.
    """
    if not (written is None or isinstance(written, ast.Name | ast.Attribute)):
        return []
    named = written.attr if isinstance(written, ast.Attribute) else None
    for each in reversed(parsed):
        equal = [name for name, own in each.values.items() if type(own) is type(present) and own == present]
        names = [named] if named in equal else [name for name in equal if WORDS[keyword] in name.lower()]
        actions = [action for action in each.parser._actions if names == [action.dest]]  # argparse has no public list of them
        if len(actions) == 1 and (words := _words(actions[0], value)):
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
    is_read = isinstance(action, _StoreAction) and action.nargs in (None, "?") and not (action.type is bool and value is False)
    return [option, str(value)] if is_read else []
