"""The ``make-data`` command, which generates a dataset."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import rich_click as click

from ddpbench.cli.options import add_flags, complete_names, flag_options, help_flag, parse_given
from ddpbench.record.config import DATA, Positive
from ddpbench.record.errors import UsageError
from ddpbench.record.flags import Flag
from ddpbench.record.names import did_you_mean
from ddpbench.record.request import OUTPUT

EXAMPLE_WORKLOADS = {"imagenet": "resnet50", "cifar10": "vgg16-cifar10", "mnist": "mnist-cnn"}
"""Datasets that can be generated, and a workload that trains on each."""


class MakeDataOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of ``make-data``: size of the dataset, and output."""

    images: Annotated[
        Annotated[int, Positive] | None,
        Flag(
            DATA,
            "training images; held-out images are added",
            automatic="12,800 for imagenet, else as many as the real dataset",
            sweep=False,
        ),
    ] = None
    classes: Annotated[
        Annotated[int, Positive] | None, Flag(DATA, "number of classes", automatic="100 for imagenet, else 10", sweep=False)
    ] = None
    quiet: Annotated[bool, Flag(OUTPUT, "print only the folder", "-q", sweep=False)] = False


@add_flags(flag_options(MakeDataOptions))
@click.command("make-data", options_metavar="[FLAGS]")
@click.argument(
    "dataset",
    metavar="imagenet|cifar10|mnist",
    shell_complete=lambda _, __, incomplete: complete_names(EXAMPLE_WORKLOADS, incomplete),
)
@click.argument("folder", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@help_flag
def make_data(dataset: str, folder: Path | None, **given: Any) -> int:
    """Generate an image dataset, to train without a download.

    The files have the formats and sizes of the real dataset and cost as much to read and decode. They are identical on every
    machine, and models can learn them.

    The default for DIR is the cache folder, $XDG_CACHE_HOME/ddpbench or ~/.cache/ddpbench, where loaders look for images if
    --data-dir is not given. An existing dataset is not generated again.
    """
    if dataset not in EXAMPLE_WORKLOADS:
        raise UsageError(
            f"unknown dataset '{dataset}'", did_you_mean(dataset, EXAMPLE_WORKLOADS) or f"choose {', '.join(EXAMPLE_WORKLOADS)}"
        )
    options = MakeDataOptions(**parse_given(MakeDataOptions, given))
    from ddpbench.data.generated.folder import cache_dir, generate
    from ddpbench.data.generated.registry import generated_dataset
    from ddpbench.report.console import finish_output, make_console, print_line
    from ddpbench.report.progress import count_progress

    generated = generated_dataset(dataset, options.images, options.classes)
    folder = folder.absolute() if folder else cache_dir() / generated.name
    with count_progress(
        None if options.quiet else sys.stderr, f"generating {generated.title}", generated.train_images + generated.held_out_images, "images"
    ) as report_progress:
        generate(folder, generated, report_progress)
    console = make_console(sys.stdout)
    if options.quiet:
        print_line(console, str(folder))
        return finish_output(console)
    print_line(console, f"{generated.title}, and {generated.held_out_images:,} held out")
    print_line(console, str(folder))
    print_line(console, f"use   ddpbench {EXAMPLE_WORKLOADS[dataset]} --data-dir {shlex.quote(str(folder))}")
    return finish_output(console)
