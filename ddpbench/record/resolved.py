"""What one arm was asked to do, on the machine that does it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ddpbench.record.config import Above0, Config, NonNegative, Positive


class ResolvedConfig(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Config whose automatic fields ``experiments.settle`` has filled in. Its flags are those of Config.

    Other fields may stay None: vectors have no side, and a round may have as many steps as fill its time. ``fresh`` and
    ``validate`` are None in records of releases that had neither.
    """

    batch_size: Annotated[int, Positive]
    optimizer_impl: Literal["fused", "foreach", "loop"]
    lr: Annotated[float, Above0]
    momentum: Annotated[float, Meta(ge=0, lt=1)]
    weight_decay: Annotated[float, NonNegative]
    channels_last: bool
    loader: str
    workers: Annotated[int, NonNegative]
    warmup: Annotated[int, Positive]
