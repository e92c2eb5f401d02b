"""The ``make-data`` command, which generates a dataset."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import rich_click as click

from ddpbench.cli.options import add_flags, flag_options, help_flag, parse_given
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
        Flag(DATA, "images to train on; more are held out", automatic="of imagenet 12,800, of others as the real set", sweep=False),
    ] = None
    classes: Annotated[
        Annotated[int, Positive] | None, Flag(DATA, "classes that they are of", automatic="of imagenet 100, of others 10", sweep=False)
    ] = None
    quiet: Annotated[bool, Flag(OUTPUT, "print only the folder", "-q", sweep=False)] = False


@add_flags(flag_options(MakeDataOptions))
@click.command("make-data", options_metavar="[FLAGS]")
@click.argument("dataset", metavar="imagenet|cifar10|mnist")
@click.argument("folder", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@help_flag
def make_data(dataset: str, folder: Path | None, **given: Any) -> int:
    """Make images to train on, where the real ones are not at hand.

    They have the real set's files and sizes and cost as much to read and decode, are the same on every machine, and a net can
    learn them. Without DIR they lie in the cache folder, XDG_CACHE_HOME/ddpbench or ~/.cache/ddpbench, which is where loaders
    that read images look when no --data-dir is given. What is there already is not made again.
    """
    if dataset not in EXAMPLE_WORKLOADS:
        raise UsageError(
            f"unknown data set '{dataset}'", did_you_mean(dataset, EXAMPLE_WORKLOADS) or f"it is {' or '.join(EXAMPLE_WORKLOADS)}"
        )
    asked = MakeDataOptions(**parse_given(MakeDataOptions, given))
    from ddpbench.data.generated.folder import cache_dir, generate
    from ddpbench.data.generated.registry import generated_dataset
    from ddpbench.report.console import finish_output, make_console, print_line
    from ddpbench.report.progress import count_progress

    made = generated_dataset(dataset, asked.images, asked.classes)
    folder = folder.absolute() if folder else cache_dir() / made.name
    with count_progress(
        None if asked.quiet else sys.stderr, f"making {made.title}", made.train_images + made.held_out_images, "images"
    ) as tell:
        generate(folder, made, tell)
    console = make_console(sys.stdout)
    if asked.quiet:
        print_line(console, str(folder))
        return finish_output(console)
    print_line(console, f"{made.title}, and {made.held_out_images:,} held out")
    print_line(console, str(folder))
    print_line(console, f"use   ddpbench {EXAMPLE_WORKLOADS[dataset]} --data-dir {shlex.quote(str(folder))}")
    return finish_output(console)
