"""Everything one arm is asked to do. One field is one flag; the spelling and the help stand on the field.

The command line is read from these fields (``cli/options.py``), a record is validated against them, and ``to_argv`` gives
the command back.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ddpbench.record.flags import Flag, to_argv

TRAINING, DATA, RANKS, MEASURING = "Training", "Data", "Ranks", "Measuring"
Positive = Meta(ge=1)
Natural = Meta(ge=0)
Above0 = Meta(gt=0)


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one arm was asked to do. A field that is ``None`` is automatic until ``experiments.settle`` fills it in."""

    workload: str

    precision: Annotated[str, Flag(TRAINING, "how numbers are held; 'ddpbench list' explains each")] = "torch-default"
    batch_size: Annotated[
        Annotated[int, Positive] | None,
        Flag(TRAINING, "images a GPU a step", "-b", "256 for ImageNet models, 128 for CIFAR; on a CPU rank 8 and 32"),
    ] = None
    image_size: Annotated[
        Annotated[int, Meta(ge=8, le=2048)] | None, Flag(TRAINING, "side of the square input, in pixels", automatic="the workload's own")
    ] = None
    optimizer: Annotated[Literal["sgd", "adam", "adamw"], Flag(TRAINING, "the update rule")] = "sgd"
    optimizer_impl: Annotated[
        Literal["fused", "foreach", "loop"] | None, Flag(TRAINING, "how the update is launched", automatic="fused where the device has it")
    ] = None
    lr: Annotated[Annotated[float, Above0], Flag(TRAINING, "learning rate")] = 0.01
    momentum: Annotated[Annotated[float, Meta(ge=0, lt=1)], Flag(TRAINING, "SGD's momentum")] = 0.9
    weight_decay: Annotated[Annotated[float, Natural], Flag(TRAINING, "L2 penalty")] = 1e-4
    channels_last: Annotated[bool | None, Flag(TRAINING, "memory layout NHWC", automatic="on for convolution nets")] = None
    compile: Annotated[Literal["off", "default", "reduce-overhead", "max-autotune"], Flag(TRAINING, "torch.compile mode")] = "off"
    seed: Annotated[Annotated[int, Meta(ge=0, lt=2**32)], Flag(TRAINING, "of weights, data and shuffling")] = 0

    loader: Annotated[str | None, Flag(DATA, "where batches come from", automatic="synthetic; torch with --data-dir")] = None
    data_dir: Annotated[
        str | None, Flag(DATA, "an ImageNet folder tree, or the folder of CIFAR-10's python batches", metavar="DIR", automatic="none")
    ] = None
    workers: Annotated[
        Annotated[int, Natural] | None,
        Flag(DATA, "loader workers a rank (threads for DALI)", "-j", "min(8, usable cores / local ranks - 1), at least 1"),
    ] = None
    prefetch: Annotated[Annotated[int, Positive], Flag(DATA, "batches each worker keeps ready")] = 2

    engine: Annotated[str, Flag(RANKS, "how ranks work together")] = "ddp"
    device: Annotated[Literal["auto", "cuda", "cpu"], Flag(RANKS, "where to train", sweep=False)] = "auto"
    broadcast_buffers: Annotated[bool, Flag(RANKS, "DDP's broadcast of BatchNorm buffers before every forward")] = True
    bucket_cap_mb: Annotated[
        Annotated[float, Above0] | None,
        Flag(RANKS, "DDP's bucket size in MB", metavar="MB", automatic="as torch ships it"),
    ] = None
    gradient_as_bucket_view: Annotated[bool, Flag(RANKS, "gradients live inside DDP's buckets")] = True
    static_graph: Annotated[bool, Flag(RANKS, "tell DDP that the graph never changes")] = False
    comm_hook: Annotated[Literal["none", "fp16", "bf16"], Flag(RANKS, "compress gradients for the all-reduce")] = "none"
    share_gpu: Annotated[bool, Flag(RANKS, "allow two ranks on one GPU", sweep=False)] = False

    warmup: Annotated[
        Annotated[int, Positive] | None,
        Flag(MEASURING, "least warm-up steps; goes on until two windows agree", "-w", "10, on a CPU 2", sweep=False),
    ] = None
    steps: Annotated[
        Annotated[int, Positive] | None, Flag(MEASURING, "timed steps a round", automatic="about 3 s, at least 10 on a GPU", sweep=False)
    ] = None
    rounds: Annotated[Annotated[int, Positive], Flag(MEASURING, "timed rounds", sweep=False)] = 5
    launches: Annotated[Annotated[int, Positive], Flag(MEASURING, "start the whole job this often and merge", sweep=False)] = 1
    time_limit: Annotated[
        Annotated[float, Above0] | None,
        Flag(MEASURING, "seconds after which no new round starts", metavar="S", automatic="none", sweep=False),
    ] = None
    hang_timeout: Annotated[
        Annotated[float, Above0],
        Flag(
            MEASURING,
            "seconds without progress until a hang is called; for the first step 2.5 times, compiled 10 times",
            metavar="S",
            sweep=False,
        ),
    ] = 120.0
    profile: Annotated[bool, Flag(MEASURING, "keep a torch.profiler trace a rank beside the record", sweep=False)] = False
    strict: Annotated[bool, Flag(MEASURING, "exit 3 when a trust check warns or blocks", sweep=False)] = False

    def to_argv(self) -> list[str]:
        """The words that give this Config again: the workload, then every flag that differs from its default."""
        return [self.workload, *to_argv(self)]
