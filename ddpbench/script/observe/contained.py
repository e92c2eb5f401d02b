"""Keeps errors of ddpbench from the script: the script's own calls reach its hooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


def contained(method: Method) -> Method:
    """Decorator of methods that the script's own calls reach: an error in one ends the watching, not the script. It returns None then."""

    @wraps(method)
    def call(self: Any, *arguments: Any) -> Any:
        try:
            return method(self, *arguments)
        except Exception as problem:
            self.observer.fail(problem)
            return None

    return call  # type: ignore[return-value]
