"""What-if scenarios and their predicted gains."""

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
    """Changed settings or hardware of a training. ``None`` means unchanged."""

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
        """The flags as typed on the command line."""
        return " ".join(to_argv(self, flag_fields(Scenario)))


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted gain of ``scenario``: the ratio of images/s of all ranks, with an interval of ``confidence``.

    ``gain`` is None if ``missing_measurement`` names a measurement that the prediction requires.
    """

    scenario: Scenario = msgspec.field(name="change")
    gain: NonZero | None = None
    low: NonZero | None = None
    high: NonZero | None = None
    confidence: Fraction = 0.9
    images_per_s: NonZero | None = None  # of all ranks
    assumptions: list[str] = msgspec.field(default=[], name="assumed")
    missing_measurement: str = msgspec.field(default="", name="needs")
