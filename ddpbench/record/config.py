"""The configuration of one arm. Each field is one flag and carries its spelling and help.

``cli/options.py`` builds the command line from these fields, records are validated against them, and ``to_argv`` converts
them back to a command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ddpbench.record.flags import Flag, flag_fields, to_argv
from ddpbench.record.private import EntryName, Folder

TRAINING, DATA, RANKS, MEASURING = "Training", "Data", "Ranks", "Measuring"
Positive = Meta(ge=1)
NonNegative = Meta(ge=0)
Above0 = Meta(gt=0)

RUN_CONTROL_FIELDS = ("time_limit", "hang_timeout", "profile", "roofline", "strict", "fail_if_data_wait")
"""Fields for time limits, extra output and exit codes. Changing them does not change what is measured."""


OptimizerImpl = Literal["fused", "foreach", "loop", "triton"]
CompileMode = Literal["off", "default", "reduce-overhead", "max-autotune"]
BenchmarkLimit = Annotated[int, Meta(ge=0, le=1000)]


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requested configuration of one arm. ``None`` means automatic: ``bench.resolve.resolve_config`` fills it in."""

    workload: Annotated[EntryName, Meta(pattern=r"^[^-\s]")]

    precision: Annotated[str, Flag(TRAINING, "numeric precision; 'ddpbench list' describes each")] = "torch-default"
    batch_size: Annotated[
        Annotated[int, Positive] | None,
        Flag(
            TRAINING,
            "images per GPU and step",
            "-b",
            "the workload's default: 256 for ImageNet models, 128 for CIFAR; 8 and 32 per CPU rank",
        ),
    ] = None
    image_size: Annotated[
        Annotated[int, Meta(ge=8, le=2048)] | None,
        Flag(TRAINING, "side of the square input, in pixels", automatic="the workload's default"),
    ] = None
    optimizer: Annotated[Literal["sgd", "adam", "adamw"], Flag(TRAINING, "optimizer")] = "sgd"
    optimizer_impl: Annotated[
        OptimizerImpl | None,
        Flag(TRAINING, "implementation of the optimizer (triton: SGD on a GPU)", automatic="fused; may be triton with --fast"),
    ] = None
    lr: Annotated[Annotated[float, Above0] | None, Flag(TRAINING, "learning rate", automatic="the workload's default, usually 0.01")] = None
    momentum: Annotated[
        Annotated[float, Meta(ge=0, lt=1)] | None, Flag(TRAINING, "momentum of SGD", automatic="the workload's default, usually 0.9")
    ] = None
    weight_decay: Annotated[
        Annotated[float, NonNegative] | None, Flag(TRAINING, "weight decay", automatic="the workload's default, usually 1e-4")
    ] = None
    schedule: Annotated[
        Literal["constant", "linear", "step"],
        Flag(TRAINING, "learning-rate schedule (linear warms up for 10% and decays to 0, step multiplies by 0.7 per epoch)"),
    ] = "constant"
    static_loss_scale: Annotated[
        Annotated[float, Above0] | None,
        Flag(TRAINING, "constant loss scale", metavar="S", automatic="dynamic, if the precision scales the loss"),
    ] = None
    channels_last: Annotated[
        bool | None, Flag(TRAINING, "channels-last (NHWC) memory format", automatic="on for convolutional networks")
    ] = None
    compile: Annotated[
        CompileMode | None, Flag(TRAINING, "torch.compile mode", automatic="off; default with --fast in the workloads that it speeds up")
    ] = None
    combo_kernels: Annotated[
        bool | None,
        Flag(TRAINING, "let --compile combine small kernels that are independent of each other, on a GPU", automatic="off; on with --fast"),
    ] = None
    fast: Annotated[bool, Flag(TRAINING, "choose the fastest settings known for the workload on a GPU; those you set stay")] = False
    fused_kernels: Annotated[
        bool | None,
        Flag(
            TRAINING,
            "fused kernels of BatchNorm, addition, ReLU and max-pool, on a GPU in channels-last format",
            automatic="off; on with --fast",
        ),
    ] = None
    cuda_graph: Annotated[
        bool | None, Flag(TRAINING, "replay the training step as a CUDA graph, on a GPU", automatic="off; on with --fast")
    ] = None
    cudnn_benchmark_limit: Annotated[
        BenchmarkLimit | None,
        Flag(
            TRAINING,
            "algorithms that cuDNN tries for a convolution on a GPU; 0 for all",
            metavar="N",
            automatic="10; may be 0 with --fast",
            sweep=False,
        ),
    ] = None
    set_to_none: Annotated[bool, Flag(TRAINING, "set gradients to None after each step instead of zeroing them")] = True
    log_loss: Annotated[bool, Flag(TRAINING, "call loss.item() every step, which forces a synchronisation")] = False
    seed: Annotated[Annotated[int, Meta(ge=0, lt=2**32)], Flag(TRAINING, "random seed for weights, data and shuffling")] = 0

    loader: Annotated[
        EntryName | None,
        Flag(
            DATA,
            "data loader; 'ddpbench list' describes each",
            automatic="synthetic; torch with --data-dir, in diagnose, and for CIFAR-10 and MNIST in sweep and with --epochs or --fresh",
        ),
    ] = None
    data_dir: Annotated[
        Folder | None,
        Flag(
            DATA,
            "ImageNet folder tree, CIFAR-10 Python batches, or MNIST IDX files",
            metavar="DIR",
            automatic="generated images, if the loader reads files",
        ),
    ] = None
    download: Annotated[bool, Flag(DATA, "download CIFAR-10 or MNIST into --data-dir if it is missing", sweep=False)] = False
    workers: Annotated[
        Annotated[int, NonNegative] | None,
        Flag(DATA, "loader workers per rank; threads for DALI", "-j", "min(8, usable cores / local ranks - 1), at least 1"),
    ] = None
    prefetch: Annotated[Annotated[int, Positive], Flag(DATA, "batches to prefetch per worker, or per DALI pipeline")] = 2
    shuffle: Annotated[bool, Flag(DATA, "shuffle samples every epoch")] = True
    augment: Annotated[bool, Flag(DATA, "random crop and flip of training images")] = True
    pin_memory: Annotated[bool, Flag(DATA, "copy batches from pinned (page-locked) memory")] = True
    skip_bad: Annotated[
        Annotated[int, NonNegative], Flag(DATA, "skip up to N unreadable image files per rank", metavar="N", sweep=False)
    ] = 0
    hw_decoder_load: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Flag(DATA, "fraction of JPEGs that dali-gpu decodes on the hardware decoder", automatic="DALI's default, 0.65"),
    ] = None

    engine: Annotated[str, Flag(RANKS, "distributed engine; 'ddpbench list' describes each")] = "ddp"
    device: Annotated[Literal["auto", "cuda", "cpu"], Flag(RANKS, "device to train on", sweep=False)] = "auto"
    broadcast_buffers: Annotated[
        bool | None,
        Flag(
            RANKS,
            "let DDP broadcast BatchNorm buffers before every forward",
            automatic="on; off with --fast, unless accuracy is measured",
        ),
    ] = None
    bucket_cap_mb: Annotated[
        Annotated[float, Above0] | None,
        Flag(RANKS, "size of DDP's gradient buckets in MiB", metavar="MiB", automatic="torch's default"),
    ] = None
    gradient_as_bucket_view: Annotated[bool, Flag(RANKS, "make gradients views of DDP's buckets")] = True
    static_graph: Annotated[bool, Flag(RANKS, "use DDP's static_graph mode, for a graph that never changes")] = False
    comm_hook: Annotated[Literal["none", "fp16", "bf16"], Flag(RANKS, "DDP communication hook that compresses gradients")] = "none"
    cores: Annotated[
        Annotated[int, Positive] | None,
        Flag(RANKS, "CPU cores for each rank and its workers", automatic="all usable cores"),
    ] = None
    threads: Annotated[
        Annotated[int, Positive] | None,
        Flag(RANKS, "CPU compute threads per rank", automatic="OMP_NUM_THREADS, or all cores"),
    ] = None
    share_gpu: Annotated[bool, Flag(RANKS, "allow several ranks on one GPU", sweep=False)] = False

    warmup: Annotated[
        Annotated[int, Positive] | None,
        Flag(MEASURING, "minimum warm-up steps; warm-up lasts until two windows agree", "-w", "10; 2 on the CPU", sweep=False),
    ] = None
    steps: Annotated[
        Annotated[int, Positive] | None,
        Flag(
            MEASURING,
            "timed steps per round",
            automatic="about 3 s, at least 10 on a GPU; fresh rounds: as published or 100, 10 on the CPU",
            sweep=False,
        ),
    ] = None
    epochs: Annotated[
        Annotated[int, Positive] | None,
        Flag(MEASURING, "epochs per round instead of --steps, followed by validation", automatic="none", sweep=False),
    ] = None
    rounds: Annotated[Annotated[int, Meta(ge=1, le=100_000)], Flag(MEASURING, "timed rounds", sweep=False)] = 5
    fresh: Annotated[
        bool | None,
        Flag(MEASURING, "train every round from scratch", automatic="on in sweep, reproduce and crossover", sweep=False),
    ] = None
    validate: Annotated[
        bool | None,
        Flag(MEASURING, "measure accuracy on held-out data after every round", automatic="on with --epochs or --fresh", sweep=False),
    ] = None
    launches: Annotated[Annotated[int, Positive], Flag(MEASURING, "launch the job N times and merge the results", sweep=False)] = 1
    time_limit: Annotated[
        Annotated[float, Above0] | None,
        Flag(
            MEASURING,
            "start no new round after S seconds",
            metavar="S",
            automatic="none; in total 175 for scale and diagnose, 120 with --no-verify, 300 for a script",
            sweep=False,
        ),
    ] = None
    hang_timeout: Annotated[
        Annotated[float, Above0],
        Flag(
            MEASURING,
            "abort after S seconds without progress; 2.5x for the first step, 10x with --compile",
            metavar="S",
            sweep=False,
        ),
    ] = 120.0
    profile: Annotated[bool, Flag(MEASURING, "save a torch.profiler trace per rank next to the record", sweep=False)] = False
    roofline: Annotated[
        bool, Flag(MEASURING, "measure FLOPs, bytes and time of every layer, against the limits of the device", sweep=False)
    ] = False
    strict: Annotated[bool, Flag(MEASURING, "exit with code 3 if a trust check reports a warning or an error", sweep=False)] = False
    fail_if_data_wait: Annotated[
        Annotated[float, Meta(gt=0, lt=100)] | None,
        Flag(
            MEASURING,
            "exit with code 4 if ranks wait for data for more than P% of a step",
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
    optimizer_impl: OptimizerImpl = "fused"
    lr: Annotated[float, Above0]
    momentum: Annotated[float, Meta(ge=0, lt=1)]
    weight_decay: Annotated[float, NonNegative]
    channels_last: bool
    compile: CompileMode = "off"
    combo_kernels: bool = False
    fused_kernels: bool = False
    cuda_graph: bool = False
    cudnn_benchmark_limit: BenchmarkLimit = 10
    broadcast_buffers: bool = True
    loader: EntryName
    workers: Annotated[int, NonNegative]
    warmup: Annotated[int, Positive]

    def runs_fused_kernels(self, is_cuda: bool) -> bool:
        """Whether the fused kernels are configured and run on this device; otherwise those of torch do."""
        return self.fused_kernels and is_cuda and self.channels_last and self.compile == "off"

    def uses_ddp(self, has_process_group: bool, world_size: int) -> bool:
        """Whether DDP wraps the model. It needs a process group; Accelerate also needs more than one rank in it."""
        return has_process_group and self.engine != "none" and (self.engine != "accelerate" or world_size > 1)


USUAL_VALUES: Mapping[str, object] = {
    field.name: field.default for field in msgspec.structs.fields(ResolvedConfig) if field.default is not msgspec.NODEFAULT
}
"""Value of each field in a run without flags, by name; fields that depend on the workload have none."""
