"""The command that makes a data set."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import rich_click as click

from ddpbench.cli.flags import takes
from ddpbench.cli.help_flags import helped
from ddpbench.cli.options import options, values_given
from ddpbench.record.config import DATA, Positive
from ddpbench.record.errors import UsageError
from ddpbench.record.flags import Flag
from ddpbench.record.names import did_you_mean
from ddpbench.record.request import OUTPUT

TRAINED_BY = {"imagenet": "resnet50", "cifar10": "vgg16-cifar10", "mnist": "mnist-cnn"}
"""The data sets that can be made, and a workload that trains on each."""


class Making(msgspec.Struct, frozen=True, kw_only=True):
    """How large a set is made."""

    images: Annotated[
        Annotated[int, Positive] | None,
        Flag(DATA, "images to train on; more are held out", automatic="of imagenet 12,800, of others as the real set", sweep=False),
    ] = None
    classes: Annotated[
        Annotated[int, Positive] | None, Flag(DATA, "classes that they are of", automatic="of imagenet 100, of others 10", sweep=False)
    ] = None
    quiet: Annotated[bool, Flag(OUTPUT, "print only the folder", "-q", sweep=False)] = False


@takes(options(Making))
@click.command("make-data", options_metavar="[FLAGS]")
@click.argument("dataset", metavar="imagenet|cifar10|mnist")
@click.argument("folder", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@helped
def make_data(dataset: str, folder: Path | None, **given: Any) -> int:
    """Make images to train on, where the real ones are not at hand.

    They have the real set's files and sizes and cost as much to read and decode, are the same on every machine, and a net can
    learn them. Without DIR they lie in the cache folder, XDG_CACHE_HOME/ddpbench or ~/.cache/ddpbench, which is where loaders
    that read images look when no --data-dir is given. What is there already is not made again.
    """
    if dataset not in TRAINED_BY:
        raise UsageError(f"unknown data set '{dataset}'", did_you_mean(dataset, TRAINED_BY) or f"it is {' or '.join(TRAINED_BY)}")
    asked = Making(**values_given(Making, given))
    from ddpbench.data.generated.cache import cache_folder
    from ddpbench.data.generated.folder import make
    from ddpbench.data.generated.registry import made_set
    from ddpbench.report.console import make_console, printed, say
    from ddpbench.report.progress import counting

    made = made_set(dataset, asked.images, asked.classes)
    folder = folder.absolute() if folder else cache_folder() / made.name
    with counting(None if asked.quiet else sys.stderr, f"making {made.title}", made.images + made.held_out, "images") as tell:
        make(folder, made, tell)
    console = make_console(sys.stdout)
    if asked.quiet:
        say(console, str(folder))
        return printed(console)
    say(console, f"{made.title}, and {made.held_out:,} held out")
    say(console, str(folder))
    say(console, f"use   ddpbench {TRAINED_BY[dataset]} --data-dir {shlex.quote(str(folder))}")
    return printed(console)
