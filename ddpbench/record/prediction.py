"""What a change of a training's settings is predicted to gain, and what it turned out to gain."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ddpbench.record.config import DATA, RANKS, TRAINING, Positive
from ddpbench.record.flags import Flag, flag_fields, to_argv
from ddpbench.record.ranges import Fraction, NonZero

UNCHANGED = "as it is"
MAX_RANKS = 1024


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A training with some of its settings, or of its machine, changed. What is ``None`` stays as it is."""

    loader: Annotated[str | None, Flag(DATA, "where batches come from", automatic=UNCHANGED, sweep=False)] = None
    hw_decoder_load: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Flag(DATA, "share of the JPEGs that the GPU's own decoder decodes", metavar="SHARE", automatic=UNCHANGED, sweep=False),
    ] = None
    workers: Annotated[Annotated[int, Meta(ge=0, le=1024)] | None, Flag(DATA, "loader workers a rank", "-j", UNCHANGED, sweep=False)] = None
    prefetch: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None, Flag(DATA, "batches each worker keeps ready", automatic=UNCHANGED, sweep=False)
    ] = None
    pin_memory: Annotated[
        bool | None, Flag(DATA, "batches wait for their copy in page-locked memory", automatic=UNCHANGED, sweep=False)
    ] = None
    data_in_memory: Annotated[bool | None, Flag(DATA, "no file is waited for", automatic=UNCHANGED, sweep=False)] = None
    precision: Annotated[str | None, Flag(TRAINING, "how numbers are held", automatic=UNCHANGED, sweep=False)] = None
    batch_size: Annotated[Annotated[int, Positive] | None, Flag(TRAINING, "images a GPU a step", "-b", UNCHANGED, sweep=False)] = None
    compile: Annotated[
        Literal["off", "default", "reduce-overhead", "max-autotune"] | None,
        Flag(TRAINING, "torch.compile mode", automatic=UNCHANGED, sweep=False),
    ] = None
    gpus: Annotated[Annotated[int, Meta(ge=1, le=MAX_RANKS)] | None, Flag(RANKS, "ranks", automatic=UNCHANGED, sweep=False)] = None
    cores_per_gpu: Annotated[
        Annotated[float, Meta(gt=0, le=1024)] | None,
        Flag(RANKS, "cores that a rank and its workers may use", automatic="its share of those there are", sweep=False),
    ] = None

    @property
    def flag_text(self) -> str:
        """As it would be typed."""
        return " ".join(to_argv(self, flag_fields(Scenario)))


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What ``change`` is predicted to gain, in times as many images/s of all ranks, with an interval of ``confidence``.

    Where ``needs`` says what had to be measured for it, there is none.
    """

    scenario: Scenario = msgspec.field(name="change")
    gain: NonZero | None = None
    low: NonZero | None = None
    high: NonZero | None = None
    confidence: Fraction = 0.9
    images_per_s: NonZero | None = None  # of all ranks
    assumptions: list[str] = msgspec.field(default=[], name="assumed")
    missing_measurement: str = msgspec.field(default="", name="needs")
