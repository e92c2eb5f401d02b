"""Commands that do not train: ``report``, ``plot``, ``list`` and ``env``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from os.path import isdir
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import rich_click as click

from ddpbench.cli import parse
from ddpbench.cli.options import add_flags, flag_options, flags_named, help_flag, parse_given
from ddpbench.record.errors import UsageError
from ddpbench.record.flags import Flag
from ddpbench.record.request import OUTPUT, OutputOptions

PLOTS_FOLDER = "plots"
"""Default folder of plots, next to the records."""


class ReportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of ``report`` that ``run`` does not have or that have another meaning there."""

    format: Annotated[Literal["terminal", "json", "csv", "markdown"], Flag(OUTPUT, "printed as")] = "terminal"
    output_dir: Annotated[str, Flag(OUTPUT, "folder whose latest record is printed", "-o", metavar="DIR")] = OutputOptions().output_dir


class PlotOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of ``plot``."""

    output_dir: Annotated[
        str | None,
        Flag(OUTPUT, "folder of the pictures", "-o", f"{PLOTS_FOLDER}, in the folder that holds what is named", "DIR"),
    ] = None


@add_flags(flag_options(ReportOptions), flags_named(OutputOptions, "verbose"))
@click.command(options_metavar="[FLAGS]")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@help_flag
def report(files: Sequence[Path], **given: Any) -> int:
    """Print the report of every record FILE, or of the latest run.

    A folder in a FILE's place stands for the latest record below it. The parts of a sweep are printed as one.
    """
    asked, verbose = ReportOptions(**parse_given(ReportOptions, given)), parse.parse_output(given).verbose
    from ddpbench.analysis.sweep_shards import merge_shards
    from ddpbench.bench.journal import load_job
    from ddpbench.cli.files import latest_record, latest_record_below, load_with_shards, outdated_shard_errors
    from ddpbench.published import views
    from ddpbench.report import export
    from ddpbench.report.console import finish_output, make_console
    from ddpbench.report.markdown import to_markdown
    from ddpbench.report.pages.registry import view_of

    views.register()
    console = make_console(sys.stdout)
    named = [
        load_with_shards(latest_record_below(file)) if isdir(file) else (file, load_job(file))
        for file in files or [latest_record(Path(asked.output_dir))]
    ]
    _print_left_out(problem.message for problem in outdated_shard_errors(named))
    found = merge_shards(named)
    jobs = [job for _, job in found]
    if asked.format == "json":
        console.out(export.jobs_to_json(*jobs))
    elif asked.format == "csv":
        console.out(export.jobs_to_csv(*jobs))
    elif asked.format == "markdown":
        console.out("\n\n".join(map(to_markdown, jobs)))  # without the blank line, a job's heading would continue the previous paragraph
    else:
        for path, job in found:
            view_of(job).render(job, console, path, verbose=verbose, quiet=False)
    return finish_output(console)


@add_flags(flag_options(PlotOptions))
@click.command(options_metavar="[FLAGS]")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE|FOLDER...")
@help_flag
def plot(paths: Sequence[Path], **given: Any) -> int:
    """Draw records, as PNG and SVG.

    Time and memory over batch size, with and without their spread; speed-ups; where two devices cross. A FOLDER stands
    for every record below it. Several GPUs' records come into one picture.
    """
    asked = PlotOptions(**parse_given(PlotOptions, given))
    from ddpbench.cli.files import common_folder, load_jobs
    from ddpbench.published import views
    from ddpbench.report.console import finish_output, make_console, print_line
    from ddpbench.report.plots import draw_plots, left_out_reasons

    views.register()
    jobs, unreadable = load_jobs(paths)
    _print_left_out((*(each.message for each in unreadable), *left_out_reasons(jobs)))
    folder = Path(asked.output_dir) if asked.output_dir else common_folder(paths) / PLOTS_FOLDER
    try:
        pictures = draw_plots(jobs, folder)
    except ModuleNotFoundError as problem:
        raise UsageError(f"pictures need {problem.name}, which is not here", "pip install matplotlib") from problem
    except OSError as problem:
        raise UsageError(f"cannot write pictures in '{folder}': {problem.strerror}", "choose another folder with -o DIR") from problem
    if not pictures:
        needs = "two batch sizes, two precisions, or two devices that cross"
        raise UsageError(f"nothing to draw: a picture needs {needs}", "'ddpbench sweep' and 'ddpbench crossover' measure them")
    console = make_console(sys.stdout)
    for picture in pictures:
        print_line(console, str(picture))
    return finish_output(console)


@click.command("list")
@help_flag
def list_() -> int:
    """Show workloads, precisions, loaders, engines and experiments."""
    from ddpbench.cli.listing import print_choices
    from ddpbench.report.console import finish_output, make_console

    console = make_console(sys.stdout)
    print_choices(console)
    return finish_output(console)


@click.command()
@help_flag
def env() -> int:
    """Show machine and software, what is missing, and how to get it."""
    from ddpbench.cli.listing import print_fingerprint
    from ddpbench.machine.fingerprint import describe_environment
    from ddpbench.report.console import finish_output, make_console

    console = make_console(sys.stdout)
    print_fingerprint(console, describe_environment())
    return finish_output(console)


def _print_left_out(problems: Iterable[str]) -> None:
    from ddpbench.report.console import make_console, print_line

    for problem in problems:
        print_line(make_console(sys.stderr), f"left out: {problem}")
