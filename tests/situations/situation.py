"""What a situation is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field


def undisturbed() -> AbstractContextManager[list[str]]:
    """The machine as it is."""
    return nullcontext([])


@dataclass(frozen=True, kw_only=True)
class Situation:
    """One training whose limit is known: ``kind`` is a Bottleneck, ``causes`` are the root causes that are right, empty for none.

    ``words`` follow ``ddpbench run`` and ``ddpbench diagnose``; ``tree`` where they are to be given a folder of images. ``steps`` are
    those of a round of ``run``, which take a second or two. ``place`` is where the commands run: it holds around them, and gives the
    words that go before them.
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
