"""Commands that train: ``run``, ``diagnose``, ``scale``, ``sweep``, ``reproduce`` and ``crossover``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import rich_click as click

from ddpbench.cli import parse
from ddpbench.cli.crossover import CROSSOVER_FAMILIES, CrossoverFlags, parse_crossover
from ddpbench.cli.options import (
    FlagOption,
    add_flags,
    complete_names,
    flag_options,
    flags_except,
    flags_named,
    help_flag,
    parse_given,
    version_flag,
)
from ddpbench.cli.parse import select_shard
from ddpbench.published.publications import published_names
from ddpbench.record.config import MEASURING, TRAINING, Config
from ddpbench.record.errors import UsageError
from ddpbench.record.names import lookup
from ddpbench.record.packages import require_torch
from ddpbench.record.request import DiagnoseOptions, OutputOptions, Request, ScaleOptions
from ddpbench.workloads.registry import WORKLOADS

AMP_FLAG = click.RichOption(["--amp"], is_flag=True, panel=TRAINING, help="mixed precision: amp-fp16 on CUDA, amp-bf16 on the CPU")
"""The only flag of a run without a Config field: it selects a precision."""

QUICK_FLAG = click.RichOption(["--quick"], is_flag=True, panel=MEASURING, help="smoke test with small batches, models and step counts")

PART_FLAG = click.RichOption(
    ["--part"], metavar="K/N", panel=MEASURING, help="measure combination K and every N-th after it, in a separate record"
)


MOST_USED_FIELDS = (
    *("precision", "amp", "batch_size", "image_size", "optimizer", "compile", "channels_last", "fast"),
    *("loader", "data_dir", "workers", "gpus", "device", "engine", "steps", "rounds", "time_limit"),
    *("output_dir", "json", "quiet", "verbose"),
)
"""Flags of a training command that ``--help`` lists, by field."""


def workload_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that adds the argument WORKLOAD, whose names the shell completes."""
    return click.argument("workload", shell_complete=lambda _, __, incomplete: complete_names(WORKLOADS, incomplete))(command)


def training_flags(*excluded: str) -> Iterator[FlagOption | click.RichOption]:
    """The flags of Config except ``excluded``, with ``--amp`` after ``--precision``."""
    for option in flags_except(Config, *excluded):
        yield option
        if option.field.name == "precision":
            yield AMP_FLAG


@add_flags(training_flags(), flag_options(OutputOptions), most_used=MOST_USED_FIELDS)
@click.command(options_metavar="[FLAGS]")
@workload_argument
@version_flag(hidden=True)  # without 'run', it may follow a workload
@help_flag
@click.pass_context
def run(context: click.RichContext, /, workload: str, **given: Any) -> int:
    """Train WORKLOAD on all ranks, measure it, and print a report.

    Examples:
        ddpbench resnet50 --amp --gpus 4
        ddpbench resnet50 --precision fp32,amp-fp16 -b 64,128
        ddpbench resnet50 --amp --data-dir /data/imagenet --loader torch,dali-gpu

    Comma-separated values of a training flag (-b 64,128), or both forms of a switch (--channels-last --no-channels-last),
    define one arm each. Arms are interleaved in one job and compared in one table.

    'ddpbench list' shows workloads, precisions, loaders and engines. Underscores in flags work like hyphens.
    """
    request = parse.parse_request(workload, given, context.obj)
    if request.spawns_processes:
        return launch_ranks(request)
    from ddpbench.bench.run import run_training

    return run_training(request)


@add_flags(
    training_flags("launches", "profile", "roofline", "epochs", "fresh", "validate"),
    flag_options(DiagnoseOptions),
    flag_options(OutputOptions),
    most_used=MOST_USED_FIELDS,
)
@click.command(options_metavar="[FLAGS]")
@workload_argument
@help_flag
@click.pass_context
def diagnose(context: click.RichContext, /, workload: str, **given: Any) -> int:
    """Find the bottleneck of WORKLOAD, and its most promising remedies.

    Examples:
        ddpbench diagnose resnet50 --amp --data-dir /data/imagenet --gpus 4
        ddpbench diagnose resnet18 --image-size 64 -b 8 --device cpu --gpus 2
        ddpbench diagnose --gpus 4 train.py --epochs 3

    In place of WORKLOAD, a path that ends in .py, or -m MODULE, is your own script: 'ddpbench diagnose --help train.py'.

    Interleaves the training with control runs: on batches that are already on the device, without gradient sync, and with the
    loader in the background. Then benchmarks the loader, the storage and the copies without training.

    Predicts and records the gain of each remedy, then tries the two most promising ones and compares measurement and prediction.

    Takes three minutes, or two with --no-verify; --time-limit sets another limit.
    """
    request = parse.require_single_arm(parse.parse_request(workload, given, context.obj, tries_loaders=True))
    options = DiagnoseOptions(**parse_given(DiagnoseOptions, given))
    if options.apply and not options.verify:
        raise UsageError("--apply and --no-verify contradict each other: only a tried remedy can be applied", "use one of them")
    if request.spawns_processes:
        from ddpbench.bench.diagnose.launch import launch_diagnosis

        return launch_diagnosis(request, options)
    from ddpbench.bench.diagnose.command import run_diagnosis

    return run_diagnosis(request, options)


@add_flags(
    training_flags("launches", "profile", "roofline", "epochs", "fresh", "validate", "fail_if_data_wait"),
    flag_options(ScaleOptions),
    flag_options(OutputOptions),
    most_used=MOST_USED_FIELDS,
)
@click.command(options_metavar="[FLAGS]")
@workload_argument
@help_flag
@click.pass_context
def scale(context: click.RichContext, /, workload: str, **given: Any) -> int:
    """Measure how WORKLOAD scales with ranks, and where it loses time.

    Examples:
        ddpbench scale resnet50 --amp --gpus 8
        ddpbench scale resnet50 --amp --gpus 8 -b 512 --strong

    Interleaves DDP on 1, 2, 4, ... ranks, while the other ranks idle, with control runs on all ranks: independent ranks, DDP
    without all-reduce, and all-reduce without training. Their differences attribute the lost throughput to its causes.

    Takes three minutes; --time-limit sets another limit.
    """
    request = parse.require_single_arm(parse.parse_request(workload, given, context.obj))
    if request.spawns_processes:
        return launch_ranks(request)
    options = ScaleOptions(**parse_given(ScaleOptions, given))
    from ddpbench.bench.scaling.command import run_scaling

    return run_scaling(request, options.strong)


@add_flags(
    training_flags("launches", "profile", "roofline", "fail_if_data_wait"),
    [PART_FLAG],
    flag_options(OutputOptions),
    most_used=MOST_USED_FIELDS,
)
@click.command(options_metavar="[FLAGS]")
@workload_argument
@help_flag
@click.pass_context
def sweep(context: click.RichContext, /, workload: str, part: str | None, **given: Any) -> int:
    """Train every combination of comma-separated values from scratch.

    Examples:
        ddpbench sweep vgg16-cifar10 --precision fp32,o2 -b 128,256
        ddpbench sweep vgg16-cifar10 --precision fp32,o2 -b 128,256 --part 1/4

    Each round is a complete training of --steps or --epochs, followed by the accuracy on held-out data. One table per metric
    shows mean and standard deviation. A combination that runs out of memory is marked as such, and the others continue.

    The record is stored in a folder named after the GPU. The same command resumes it and skips completed rounds.

    Several jobs can share a sweep: --part 1/4 to --part 4/4 measure a quarter each, and 'ddpbench report FOLDER' merges them.
    """
    request = parse.parse_request(workload, given, context.obj)
    if part is not None:
        request = select_shard(request, part)
    if request.spawns_processes:
        return launch_ranks(request)
    from ddpbench.bench.sweep import run_sweep

    return run_sweep(request)


@add_flags(  # device, data and time limits; the protocol fixes the rest
    flags_named(Config, "seed", "data_dir", "download", "device"),
    [QUICK_FLAG],
    flags_named(Config, "time_limit", "hang_timeout"),
    flag_options(OutputOptions),
)
@click.command(options_metavar="[FLAGS]")
@click.argument("name", required=False, shell_complete=lambda _, __, incomplete: complete_names(published_names(), incomplete))
@help_flag
@click.pass_context
def reproduce(context: click.RichContext, /, name: str | None, quick: bool, **given: Any) -> int:
    """Reproduce a published experiment, and compare the results.

    Examples:
        ddpbench reproduce
        ddpbench reproduce vgg16-cifar10-batch-sweep --quick
        ddpbench reproduce imagenet-resnet-slurm-vs-container --gpus 4

    Without NAME, lists the experiments. With NAME, trains under the published protocol, prints the published table next to
    the measured one, and checks each published claim.

    The record is stored in a folder named after the GPU. The same command resumes it and skips completed rounds.
    """
    if name is None:
        return _print_published(context.obj)
    lookup("published experiment", name, dict.fromkeys(published_names()))
    require_torch("a published experiment")
    from ddpbench.published import protocols

    request = protocols.reproduction_request(
        name, quick, parse_given(Config, given), parse.parse_output(given), parse.typed_command(context.obj)
    )
    if request.spawns_processes:
        return launch_ranks(request)
    from ddpbench.published.reproduce import run_reproduction

    return run_reproduction(name, quick, request)


@add_flags(flag_options(CrossoverFlags), flags_named(Config, "time_limit", "hang_timeout"), flags_except(OutputOptions, "gpus"))
@click.command(options_metavar="[FLAGS]")
@click.argument("family", shell_complete=lambda _, __, incomplete: complete_names(CROSSOVER_FAMILIES, incomplete))
@help_flag
@click.pass_context
def crossover(context: click.RichContext, /, family: str, layers: str, device: str, threads: str, **given: Any) -> int:
    """Find the model size from which one device is faster than another.

    FAMILY is disc-mlp: models of 2 to 12 layers, each twice as wide as the one before. Each is trained on both sides, and the
    size at which their times cross is printed with its interval.

    The record is stored in a folder named after the GPU. The same command resumes it and skips completed rounds.
    """
    options = parse_crossover(family, {"layers": layers, "device": device, "threads": threads})
    require_torch(f"workload '{family}'")
    settings, output, typed = parse_given(Config, given), parse.parse_output(given), parse.typed_command(context.obj)
    from ddpbench.published.crossover import run_crossover

    return run_crossover(options, settings, output, typed)


def launch_ranks(request: Request) -> int:
    """Run ``request`` in child processes. This process does not import torch, which takes seconds."""
    from ddpbench.bench.launch import run_launches

    return run_launches(request)


def _print_published(argv: list[str]) -> int:
    """Print the published experiments. Raises UsageError if flags are given without an experiment."""
    if flags := [word for word in argv if word.startswith("-")]:
        raise UsageError(f"{flags[0]} requires the NAME of an experiment", "'ddpbench reproduce' lists the experiments")
    from ddpbench.published.reproduction_page import render_published
    from ddpbench.report.console import finish_output, make_console

    console = make_console(sys.stdout)
    render_published(console)
    return finish_output(console)
