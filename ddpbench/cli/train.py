"""Commands that train: ``run``, ``diagnose``, ``scale``, ``sweep``, ``reproduce`` and ``crossover``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import rich_click as click

from ddpbench.cli import parse
from ddpbench.cli.crossover import CrossoverFlags, parse_crossover
from ddpbench.cli.options import FlagOption, add_flags, flag_options, flags_except, flags_named, help_flag, parse_given, version_flag
from ddpbench.cli.parse import select_shard
from ddpbench.published.publications import published_names
from ddpbench.record.config import MEASURING, TRAINING, Config
from ddpbench.record.errors import UsageError
from ddpbench.record.names import lookup
from ddpbench.record.request import DiagnoseOptions, OutputOptions, Request, ScaleOptions

AMP_FLAG = click.RichOption(["--amp"], is_flag=True, panel=TRAINING, help="mixed precision: amp-fp16 on CUDA, amp-bf16 on a CPU")
"""The only flag of a run without a Config field: it selects a precision."""

QUICK_FLAG = click.RichOption(
    ["--quick"], is_flag=True, panel=MEASURING, help="shrink batches, models and steps, to see that everything works"
)


PART_FLAG = click.RichOption(
    ["--part"], metavar="K/N", panel=MEASURING, help="the K-th combination and every N-th behind it, in a record of their own"
)


def training_flags(*excluded: str) -> Iterator[FlagOption | click.RichOption]:
    """The flags of Config except ``excluded``, with ``--amp`` after ``--precision``."""
    for option in flags_except(Config, *excluded):
        yield option
        if option.field.name == "precision":
            yield AMP_FLAG


@add_flags(training_flags(), flag_options(OutputOptions))
@click.command(options_metavar="[FLAGS]")
@click.argument("workload")
@version_flag(hidden=True)  # without 'run', it may follow a workload
@help_flag
@click.pass_context
def run(context: click.RichContext, /, workload: str, **given: Any) -> int:
    """Train WORKLOAD on every rank, measure, record and report.

    A comma list on a flag that changes the training makes arms (-b 64,128), and so does a switch given both ways
    (--channels-last --no-channels-last). Arms take turns in one job, and one table compares them.

    'ddpbench list' shows workloads, precisions, loaders and engines. Underscores work as hyphens.
    """
    request = parse.parse_request(workload, given, context.obj)
    if request.spawns_processes:
        return launch_ranks(request)
    from ddpbench.bench.run import run_training

    return run_training(request)


@add_flags(training_flags("launches", "profile", "epochs", "fresh", "validate"), flag_options(DiagnoseOptions), flag_options(OutputOptions))
@click.command(options_metavar="[FLAGS]")
@click.argument("workload")
@help_flag
@click.pass_context
def diagnose(context: click.RichContext, /, workload: str, **given: Any) -> int:
    """Find what the training of WORKLOAD waits for, and what would help.

    The training takes turns with itself under other conditions: on batches that lie on the device, without gradient sync,
    with the loader working beside it. Then the loader, the storage and the copies are measured with nobody training.

    What each cure would gain is predicted, and put on record; then the two that promise most are tried, and the page shows how
    good the prediction was.

    Three minutes, or two with --no-verify, unless --time-limit says otherwise.
    """
    request = parse.require_single_arm(parse.parse_request(workload, given, context.obj))
    proving = DiagnoseOptions(**parse_given(DiagnoseOptions, given))
    if proving.apply and not proving.verify:
        raise UsageError("--apply and --no-verify contradict each other: what is not tried has not won", "give one of them")
    if request.spawns_processes:
        from ddpbench.bench.diagnose.launch import launch_diagnosis

        return launch_diagnosis(request, proving)
    from ddpbench.bench.diagnose.command import run_diagnosis

    return run_diagnosis(request, proving)


@add_flags(
    training_flags("launches", "profile", "epochs", "fresh", "validate", "fail_if_data_wait"),
    flag_options(ScaleOptions),
    flag_options(OutputOptions),
)
@click.command(options_metavar="[FLAGS]")
@click.argument("workload")
@help_flag
@click.pass_context
def scale(context: click.RichContext, /, workload: str, **given: Any) -> int:
    """Find how WORKLOAD scales from one rank to all, and what is lost on the way.

    1, 2, 4 ... ranks take turns in one launch while the others wait, and so do all ranks under other conditions: every rank
    for itself, DDP without its all-reduce, the all-reduce without a training. The difference has a name for every image.

    Three minutes, unless --time-limit says otherwise.
    """
    request = parse.require_single_arm(parse.parse_request(workload, given, context.obj))
    if request.spawns_processes:
        return launch_ranks(request)
    laddering = ScaleOptions(**parse_given(ScaleOptions, given))
    from ddpbench.bench.scaling.command import run_scaling

    return run_scaling(request, laddering.strong)


@add_flags(training_flags("launches", "profile", "fail_if_data_wait"), [PART_FLAG], flag_options(OutputOptions))
@click.command(options_metavar="[FLAGS]")
@click.argument("workload")
@help_flag
@click.pass_context
def sweep(context: click.RichContext, /, workload: str, part: str | None, **given: Any) -> int:
    """Train every combination of comma lists anew, round by round.

    A round is a training of its own, of --steps or --epochs, and ends with the accuracy on held-out data. A table a figure
    shows mean and standard deviation. What does not fit into memory says so, and the others go on.

    The record lies in a folder of its GPU. The same command goes on with it, and trains again nothing that is whole.

    Several jobs share a sweep: with --part 1/4 to --part 4/4 each has a quarter of it, and 'ddpbench report FOLDER' puts
    together what there is.
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
@click.argument("name", required=False)
@help_flag
@click.pass_context
def reproduce(context: click.RichContext, /, name: str | None, quick: bool, **given: Any) -> int:
    """Run a published experiment, and compare its figures.

    Without a NAME, show which there are. With one, train what it trained under its protocol, print its table beside this
    machine's, and check each of its claims.

    The record lies in a folder of its GPU. The same command goes on with it, and trains again nothing that is whole.
    """
    if name is None:
        return _print_published(context.obj)
    lookup("published experiment", name, dict.fromkeys(published_names()))
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
@click.argument("family")
@help_flag
@click.pass_context
def crossover(context: click.RichContext, /, family: str, layers: str, device: str, threads: str, **given: Any) -> int:
    """Find the model from which on one device is faster than another.

    FAMILY is disc-mlp, models of 2 to 12 layers, each twice as wide as the one before. Every one is trained on both
    sides, and the size where their times cross is printed with its interval.

    The record lies in a folder of its GPU. The same command goes on with it, and trains again nothing that is whole.
    """
    asked = parse_crossover(family, {"layers": layers, "device": device, "threads": threads})
    settings, output, typed = parse_given(Config, given), parse.parse_output(given), parse.typed_command(context.obj)
    from ddpbench.published.crossover import run_crossover

    return run_crossover(asked, settings, output, typed)


def launch_ranks(request: Request) -> int:
    """Run ``request`` in child processes. This process does not import torch, which takes seconds."""
    from ddpbench.bench.launch import run_launches

    return run_launches(request)


def _print_published(argv: list[str]) -> int:
    """Print the published experiments. Raises UsageError if flags are given without an experiment."""
    if flags := [word for word in argv if word.startswith("-")]:
        raise UsageError(f"{flags[0]} without the NAME of an experiment", "'ddpbench reproduce' shows which there are")
    from ddpbench.published.reproduction_page import render_published
    from ddpbench.report.console import finish_output, make_console

    console = make_console(sys.stdout)
    render_published(console)
    return finish_output(console)
