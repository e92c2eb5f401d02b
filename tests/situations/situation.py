"""The definition of a situation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field


def undisturbed() -> AbstractContextManager[list[str]]:
    """The unmodified machine."""
    return nullcontext([])


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A training with a known bottleneck ``kind`` and its accepted root ``causes``, which may be empty.

    ``words`` follow ``ddpbench run`` and ``ddpbench diagnose``; ``tree`` adds a folder of images. ``steps`` are
    steps per round of ``run``, which take a second or two. ``place`` is a context around the commands that returns the
    words to put before them.
    """

    name: str
    done: str
    words: tuple[str, ...]
    kind: str
    causes: tuple[str, ...] = ()
    tree: bool = False
    cuda: bool = False
    steps: int = 20
    variables: Mapping[str, str] = field(default_factory=dict)
    place: Callable[[], AbstractContextManager[list[str]]] = undisturbed

    @property
    def right(self) -> str:
        return " or ".join(self.causes) or self.kind
