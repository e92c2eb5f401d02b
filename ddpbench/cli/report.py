"""The commands that read: reports and pictures of records, what there is to choose from, the machine."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from os.path import isdir
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import rich_click as click

from ddpbench.cli import parse
from ddpbench.cli.flags import only, takes
from ddpbench.cli.help_flags import helped
from ddpbench.cli.options import options, values_given
from ddpbench.record.errors import UsageError
from ddpbench.record.flags import Flag
from ddpbench.record.request import OUTPUT, Output

PICTURES = "plots"
"""The folder of pictures, beside the records that they show."""


class Reporting(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of a report that a run does not have, or that mean something else there."""

    format: Annotated[Literal["terminal", "json", "csv", "markdown"], Flag(OUTPUT, "printed as")] = "terminal"
    output_dir: Annotated[str, Flag(OUTPUT, "folder whose latest record is printed", "-o", metavar="DIR")] = Output().output_dir


class Drawing(msgspec.Struct, frozen=True, kw_only=True):
    """Where pictures go."""

    output_dir: Annotated[
        str | None,
        Flag(OUTPUT, "folder of the pictures", "-o", f"{PICTURES}, in the folder that holds what is named", "DIR"),
    ] = None


@takes(options(Reporting), only(Output, "verbose"))
@click.command(options_metavar="[FLAGS]")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@helped
def report(files: Sequence[Path], **given: Any) -> int:
    """Print the report of every record FILE, or of the latest run.

    A folder in a FILE's place stands for the latest record below it. The parts of a sweep are printed as one.
    """
    asked, verbose = Reporting(**values_given(Reporting, given)), parse.output(given).verbose
    from ddpbench.analysis.sweep_shards import together
    from ddpbench.bench.kept import read
    from ddpbench.cli.files import latest, latest_below, measured_again, whole
    from ddpbench.published import views
    from ddpbench.report import export
    from ddpbench.report.console import make_console, printed
    from ddpbench.report.markdown import to_markdown
    from ddpbench.report.pages.registry import view_of

    views.register()
    console = make_console(sys.stdout)
    named = [whole(latest_below(file)) if isdir(file) else (file, read(file)) for file in files or [latest(Path(asked.output_dir))]]
    _say_left_out(problem.message for problem in measured_again(named))
    found = together(named)
    jobs = [job for _, job in found]
    if asked.format == "json":
        console.out(export.to_json(*jobs))
    elif asked.format == "csv":
        console.out(export.to_csv(*jobs))
    elif asked.format == "markdown":
        console.out("\n\n".join(map(to_markdown, jobs)))  # or the head of a job would go on in the last line of the one before
    else:
        for path, job in found:
            view_of(job).render(job, console, path, verbose=verbose, quiet=False)
    return printed(console)


@takes(options(Drawing))
@click.command(options_metavar="[FLAGS]")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE|FOLDER...")
@helped
def plot(paths: Sequence[Path], **given: Any) -> int:
    """Draw records, as PNG and SVG.

    Time and memory over batch size, with and without their spread; speed-ups; where two devices cross. A FOLDER stands
    for every record below it. Several GPUs' records come into one picture.
    """
    asked = Drawing(**values_given(Drawing, given))
    from ddpbench.cli.files import around, jobs_in
    from ddpbench.published import views
    from ddpbench.report.console import make_console, printed, say
    from ddpbench.report.plots import left_out
    from ddpbench.report.plots import plot as draw

    views.register()
    jobs, unreadable = jobs_in(paths)
    _say_left_out((*(each.message for each in unreadable), *left_out(jobs)))
    folder = Path(asked.output_dir) if asked.output_dir else around(paths) / PICTURES
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
        say(console, str(picture))
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


def _say_left_out(problems: Iterable[str]) -> None:
    from ddpbench.report.console import make_console, say

    for problem in problems:
        say(make_console(sys.stderr), f"left out: {problem}")
