"""The configuration of one arm. Each field is one flag and carries its spelling and help.

``cli/options.py`` builds the command line from these fields, records are validated against them, and ``to_argv`` converts
them back to a command.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ddpbench.record.flags import Flag, flag_fields, to_argv

TRAINING, DATA, RANKS, MEASURING = "Training", "Data", "Ranks", "Measuring"
Positive = Meta(ge=1)
NonNegative = Meta(ge=0)
Above0 = Meta(gt=0)

RUN_CONTROL_FIELDS = ("time_limit", "hang_timeout", "profile", "strict", "fail_if_data_wait")
"""Fields for time limits, extra output and exit codes. Changing them does not change what is measured."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requested configuration of one arm. ``None`` means automatic: ``bench.resolve.resolve_config`` fills it in."""

    workload: Annotated[str, Meta(pattern=r"^[^-\s]")]

    precision: Annotated[str, Flag(TRAINING, "how numbers are held; 'ddpbench list' explains each")] = "torch-default"
    batch_size: Annotated[
        Annotated[int, Positive] | None,
        Flag(TRAINING, "images a GPU a step", "-b", "the workload's own: 256 for ImageNet models, 128 for CIFAR, on a CPU rank 8 and 32"),
    ] = None
    image_size: Annotated[
        Annotated[int, Meta(ge=8, le=2048)] | None, Flag(TRAINING, "side of the square input, in pixels", automatic="the workload's own")
    ] = None
    optimizer: Annotated[Literal["sgd", "adam", "adamw"], Flag(TRAINING, "the update rule")] = "sgd"
    optimizer_impl: Annotated[
        Literal["fused", "foreach", "loop"] | None, Flag(TRAINING, "how the update is launched", automatic="fused where the device has it")
    ] = None
    lr: Annotated[Annotated[float, Above0] | None, Flag(TRAINING, "learning rate", automatic="the workload's recipe, mostly 0.01")] = None
    momentum: Annotated[
        Annotated[float, Meta(ge=0, lt=1)] | None, Flag(TRAINING, "SGD's momentum", automatic="the workload's recipe, mostly 0.9")
    ] = None
    weight_decay: Annotated[
        Annotated[float, NonNegative] | None, Flag(TRAINING, "L2 penalty", automatic="the workload's recipe, mostly 1e-4")
    ] = None
    schedule: Annotated[
        Literal["constant", "linear", "step"],
        Flag(TRAINING, "learning rate over a training; linear rises over its first tenth and falls to 0, step takes 0.7 each epoch"),
    ] = "constant"
    static_loss_scale: Annotated[
        Annotated[float, Above0] | None,
        Flag(TRAINING, "a loss scale that neither grows nor backs off", metavar="S", automatic="dynamic where the precision scales"),
    ] = None
    channels_last: Annotated[bool | None, Flag(TRAINING, "memory layout NHWC", automatic="on for convolution nets")] = None
    compile: Annotated[Literal["off", "default", "reduce-overhead", "max-autotune"], Flag(TRAINING, "torch.compile mode")] = "off"
    set_to_none: Annotated[bool, Flag(TRAINING, "gradients are freed after an update, not filled with zeros")] = True
    log_loss: Annotated[bool, Flag(TRAINING, "read the loss on the host after every step, as a script that logs it does")] = False
    seed: Annotated[Annotated[int, Meta(ge=0, lt=2**32)], Flag(TRAINING, "of weights, data and shuffling")] = 0

    loader: Annotated[str | None, Flag(DATA, "where batches come from", automatic="synthetic; torch with --data-dir")] = None
    data_dir: Annotated[
        str | None,
        Flag(
            DATA,
            "an ImageNet folder tree, CIFAR-10's python batches, or MNIST's IDX files",
            metavar="DIR",
            automatic="a made set, where the loader reads files",
        ),
    ] = None
    download: Annotated[bool, Flag(DATA, "fetch CIFAR-10 or MNIST into --data-dir where it is not there", sweep=False)] = False
    workers: Annotated[
        Annotated[int, NonNegative] | None,
        Flag(DATA, "loader workers a rank (threads for DALI)", "-j", "min(8, usable cores / local ranks - 1), at least 1"),
    ] = None
    prefetch: Annotated[Annotated[int, Positive], Flag(DATA, "batches each worker, or pipeline of DALI's, keeps ready")] = 2
    shuffle: Annotated[bool, Flag(DATA, "a new order every epoch")] = True
    augment: Annotated[bool, Flag(DATA, "random crop and flip of training images")] = True
    pin_memory: Annotated[bool, Flag(DATA, "batches wait for their copy in page-locked memory")] = True
    skip_bad: Annotated[
        Annotated[int, NonNegative], Flag(DATA, "leave out up to N image files a rank that cannot be read", metavar="N", sweep=False)
    ] = 0
    hw_decoder_load: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Flag(DATA, "share of the JPEGs that dali-gpu leaves to the GPU's hardware decoder", metavar="SHARE", automatic="DALI's own, 0.65"),
    ] = None

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
    cores: Annotated[
        Annotated[int, Positive] | None,
        Flag(RANKS, "processor cores that a rank and its workers may use", automatic="all that the job may use"),
    ] = None
    threads: Annotated[
        Annotated[int, Positive] | None,
        Flag(RANKS, "threads that a rank computes with on the processor", automatic="OMP_NUM_THREADS, or all cores"),
    ] = None
    share_gpu: Annotated[bool, Flag(RANKS, "allow two ranks on one GPU", sweep=False)] = False

    warmup: Annotated[
        Annotated[int, Positive] | None,
        Flag(MEASURING, "least warm-up steps; goes on until two windows agree", "-w", "10, on a CPU 2", sweep=False),
    ] = None
    steps: Annotated[
        Annotated[int, Positive] | None,
        Flag(
            MEASURING,
            "timed steps a round",
            automatic="about 3 s, at least 10 on a GPU; in fresh rounds as published, or 100, on a CPU 10",
            sweep=False,
        ),
    ] = None
    epochs: Annotated[
        Annotated[int, Positive] | None,
        Flag(MEASURING, "epochs a round in place of --steps, and validation after it", automatic="none", sweep=False),
    ] = None
    rounds: Annotated[Annotated[int, Meta(ge=1, le=100_000)], Flag(MEASURING, "timed rounds", sweep=False)] = 5
    fresh: Annotated[
        bool | None,
        Flag(MEASURING, "every round is a training from the start", automatic="on in sweep, reproduce and crossover", sweep=False),
    ] = None
    validate: Annotated[
        bool | None,
        Flag(MEASURING, "accuracy on held-out data after every round", automatic="on with --epochs and fresh rounds", sweep=False),
    ] = None
    launches: Annotated[Annotated[int, Positive], Flag(MEASURING, "start the whole job this often and merge", sweep=False)] = 1
    time_limit: Annotated[
        Annotated[float, Above0] | None,
        Flag(
            MEASURING,
            "seconds after which no new round starts",
            metavar="S",
            automatic="none; in diagnose 175, with --no-verify 120, in scale 175, for all of it",
            sweep=False,
        ),
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
    fail_if_data_wait: Annotated[
        Annotated[float, Meta(gt=0, lt=100)] | None,
        Flag(
            MEASURING,
            "exit 4 when the ranks wait for data more than this share of a step",
            metavar="P%",
            automatic="none",
            sweep=False,
            unit="%",
        ),
    ] = None

    def to_argv(self) -> list[str]:
        """Arguments that reproduce this Config: the workload, then every flag that differs from its default."""
        return [self.workload, *to_argv(self, flag_fields(Config))]


def measurement_config(config: Config) -> Config:
    """``config`` with the fields that do not affect the measurement (RUN_CONTROL_FIELDS) at their defaults."""
    plain = Config(workload=config.workload)
    return msgspec.structs.replace(config, **{name: getattr(plain, name) for name in RUN_CONTROL_FIELDS})


class ResolvedConfig(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Config with its automatic fields filled in by ``bench.resolve.resolve_config``. Its flags are those of Config.

    Other fields may stay None: vectors have no image size, and the number of steps may follow from the duration of a round.
    ``fresh`` and ``validate`` are None in records of releases that had neither.
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
