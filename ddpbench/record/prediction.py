"""What a change of a training's settings is predicted to gain, and what it turned out to gain."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ddpbench.record.config import DATA, RANKS, TRAINING, Positive
from ddpbench.record.flags import Flag, flags, to_argv
from ddpbench.record.ranges import Fraction, NonZero

AS_IT_IS = "as it is"
MOST_RANKS = 1024


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A training with some of its settings, or of its machine, changed. What is ``None`` stays as it is."""

    loader: Annotated[str | None, Flag(DATA, "where batches come from", automatic=AS_IT_IS, sweep=False)] = None
    hw_decoder_load: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Flag(DATA, "share of the JPEGs that the GPU's own decoder decodes", metavar="SHARE", automatic=AS_IT_IS, sweep=False),
    ] = None
    workers: Annotated[Annotated[int, Meta(ge=0, le=1024)] | None, Flag(DATA, "loader workers a rank", "-j", AS_IT_IS, sweep=False)] = None
    prefetch: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None, Flag(DATA, "batches each worker keeps ready", automatic=AS_IT_IS, sweep=False)
    ] = None
    pin_memory: Annotated[bool | None, Flag(DATA, "batches wait for their copy in page-locked memory", automatic=AS_IT_IS, sweep=False)] = (
        None
    )
    data_in_memory: Annotated[bool | None, Flag(DATA, "no file is waited for", automatic=AS_IT_IS, sweep=False)] = None
    precision: Annotated[str | None, Flag(TRAINING, "how numbers are held", automatic=AS_IT_IS, sweep=False)] = None
    batch_size: Annotated[Annotated[int, Positive] | None, Flag(TRAINING, "images a GPU a step", "-b", AS_IT_IS, sweep=False)] = None
    compile: Annotated[
        Literal["off", "default", "reduce-overhead", "max-autotune"] | None,
        Flag(TRAINING, "torch.compile mode", automatic=AS_IT_IS, sweep=False),
    ] = None
    gpus: Annotated[Annotated[int, Meta(ge=1, le=MOST_RANKS)] | None, Flag(RANKS, "ranks", automatic=AS_IT_IS, sweep=False)] = None
    cores_per_gpu: Annotated[
        Annotated[float, Meta(gt=0, le=1024)] | None,
        Flag(RANKS, "cores that a rank and its workers may use", automatic="its share of those there are", sweep=False),
    ] = None

    @property
    def words(self) -> str:
        """As it would be typed."""
        return " ".join(to_argv(self, flags(Change)))


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What ``change`` is predicted to gain, in times as many images/s of all ranks, with an interval of ``confidence``.

    Where ``needs`` says what had to be measured for it, there is none.
    """

    change: Change
    gain: NonZero | None = None
    low: NonZero | None = None
    high: NonZero | None = None
    confidence: Fraction = 0.9
    images_per_s: NonZero | None = None  # of all ranks
    assumed: list[str] = []
    needs: str = ""
