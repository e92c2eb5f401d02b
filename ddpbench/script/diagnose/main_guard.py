"""Whether spawned workers would run the user's script again: they import it under another name than ``__main__``."""

from __future__ import annotations

import ast
import sys
from functools import cache

from torch.utils.data import DataLoader

from ddpbench.data.loaders.start_workers import is_forked
from ddpbench.record.errors import ConfigFailed


def check_spawned_workers(loader: DataLoader[object]) -> None:
    """Raise ConfigFailed if workers like those of ``loader`` would train. Those of the script itself show that they do not."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    if not loader.num_workers and not is_forked(loader) and file is not None and not is_guarded(file):
        raise ConfigFailed('spawned workers would run the script again: it lacks `if __name__ == "__main__":`')


@cache
def is_guarded(file: str) -> bool:
    """Whether the code of a module compares its name with ``__main__``; False if it cannot be read."""
    try:
        with open(file, encoding="utf-8") as source:
            module = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return False
    tests = (node.test for node in module.body if isinstance(node, ast.If))
    return any(isinstance(node, ast.Constant) and node.value == "__main__" for test in tests for node in ast.walk(test))
