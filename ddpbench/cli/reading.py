"""The commands that read: reports and pictures of records, what there is to choose from, the machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from os.path import isdir
from pathlib import Path

import rich_click as click

from ddpbench.cli.flags import helped
from ddpbench.record.errors import UsageError
from ddpbench.record.request import Output

PICTURES = "plots"
"""The folder of pictures, beside the records that they show."""


@click.command(options_metavar="[FLAGS]")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@click.option(
    "--format",
    "shape",
    type=click.Choice(["terminal", "json", "csv", "markdown"]),
    default="terminal",
    metavar="NAME",
    help="terminal, json, csv or markdown [dim](terminal)[/dim]",
)
@click.option(
    "-o",
    "--output-dir",
    "folder",
    type=click.Path(path_type=Path),
    default=Output().output_dir,
    metavar="DIR",
    help=f"folder whose latest record is printed [dim]({Output().output_dir})[/dim]",
)
@click.option("-v", "--verbose", is_flag=True, help="print all there is: every check, setting, note and hint")
@helped
def report(files: Sequence[Path], shape: str, folder: Path, verbose: bool) -> int:
    """Print the report of every record FILE, or of the latest run.

    A folder in a FILE's place stands for the latest record below it. The parts of a sweep are printed as one.
    """
    from ddpbench.analysis.shares import together
    from ddpbench.cli.files import latest, latest_below, whole
    from ddpbench.experiments.kept import read
    from ddpbench.report import tables
    from ddpbench.report.console import make_console, printed
    from ddpbench.report.pages import page

    write = {"json": tables.to_json, "csv": tables.to_csv, "markdown": tables.to_markdown}
    console = make_console(sys.stdout)
    named = [whole(latest_below(file)) if isdir(file) else (file, read(file)) for file in files or [latest(folder)]]
    for path, job in together(named):
        if shape == "terminal":
            page(job)(job, console, path, verbose=verbose, quiet=False)
        else:
            console.out(write[shape](job))
    return printed(console)


@click.command(options_metavar="[FLAGS]")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE|FOLDER...")
@click.option(
    "-o",
    "--output-dir",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help=f"folder of the pictures [dim]({PICTURES}, in the folder that holds what is named)[/dim]",
)
@helped
def plot(paths: Sequence[Path], folder: Path | None) -> int:
    """Draw records, as PNG and SVG.

    Time and memory over batch size, with and without their spread; speed-ups; where two devices cross. A FOLDER stands
    for every record below it. Several GPUs' records come into one picture.
    """
    from ddpbench.cli.files import around, jobs_in
    from ddpbench.report.console import make_console, printed
    from ddpbench.report.plots import left_out
    from ddpbench.report.plots import plot as draw

    jobs, unreadable = jobs_in(paths)
    for problem in (*(each.message for each in unreadable), *left_out(jobs)):
        make_console(sys.stderr).out(f"left out: {problem}")
    folder = folder or around(paths) / PICTURES
    try:
        pictures = draw(jobs, folder)
    except ModuleNotFoundError as problem:
        raise UsageError(f"pictures need {problem.name}, which is not here", "pip install matplotlib") from problem
    except OSError as problem:
        raise UsageError(f"cannot write pictures in '{folder}': {problem.strerror}", "choose another folder with -o DIR") from problem
    if not pictures:
        needs = "two batch sizes, two precisions, or two devices that cross"
        raise UsageError(f"nothing to draw: a picture needs {needs}", "'ddpbench sweep' and 'ddpbench crossover' measure them")
    console = make_console(sys.stdout)
    for picture in pictures:
        console.out(str(picture))
    return printed(console)


@click.command("list")
@helped
def list_() -> int:
    """Show workloads, precisions, loaders, engines and experiments."""
    from ddpbench.cli.listing import print_choices
    from ddpbench.report.console import make_console, printed

    console = make_console(sys.stdout)
    print_choices(console)
    return printed(console)


@click.command()
@helped
def env() -> int:
    """Show machine and software, what is missing, and how to get it."""
    from ddpbench.cli.listing import print_fingerprint
    from ddpbench.machine.fingerprint import describe
    from ddpbench.report.console import make_console, printed

    console = make_console(sys.stdout)
    print_fingerprint(console, describe())
    return printed(console)
