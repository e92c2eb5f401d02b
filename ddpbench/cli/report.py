"""Commands that do not train: ``report``, ``plot``, ``list`` and ``env``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from os.path import isdir
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import rich_click as click

from ddpbench.cli import parse
from ddpbench.cli.options import add_flags, flag_options, flags_named, help_flag, parse_given
from ddpbench.record.errors import UsageError
from ddpbench.record.flags import Flag
from ddpbench.record.packages import require_modules
from ddpbench.record.private import redact
from ddpbench.record.record import Job
from ddpbench.record.request import OUTPUT, OutputOptions

PLOTS_FOLDER = "plots"
"""Default folder of plots, next to the records."""


class ReportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of ``report`` that ``run`` does not have or that have another meaning there."""

    format: Annotated[Literal["terminal", "summary", "json", "csv", "markdown"], Flag(OUTPUT, "output format")] = "terminal"
    output_dir: Annotated[str, Flag(OUTPUT, "folder whose latest record is reported", "-o", metavar="DIR")] = OutputOptions().output_dir
    sort: Annotated[Literal["time", "workload", "figure", "verdict"], Flag(OUTPUT, "order of the runs of a folder")] = "time"
    price: Annotated[
        Annotated[float, msgspec.Meta(ge=0)] | None,
        Flag(OUTPUT, "price of a GPU-hour: a summary then has the money that its advice saves", metavar="X", automatic="none"),
    ] = None


class PlotOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of ``plot``."""

    output_dir: Annotated[
        str | None,
        Flag(OUTPUT, "folder for plots", "-o", f"{PLOTS_FOLDER}, next to the records", "DIR"),
    ] = None
    reference: Annotated[
        str | None,
        Flag(OUTPUT, "arm that speed-ups are relative to: its name, or one of its values", "", "the slowest arm", "NAME"),
    ] = None


@add_flags(flag_options(ReportOptions), flags_named(OutputOptions, "verbose", "redact"))
@click.command(options_metavar="[FLAGS]")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@help_flag
def report(files: Sequence[Path], **given: Any) -> int:
    """Print the report of each record FILE, or of the latest run.

    A folder is listed: the runs below it in a table, with what differs from the run before. The parts of a sweep are merged into
    one report, as is a folder that holds nothing else.
    """
    options, output = ReportOptions(**parse_given(ReportOptions, given)), parse.parse_output(given)
    if len(files) == 1 and isdir(files[0]) and (listed := _list_folder(files[0], options)) is not None:
        return listed
    from ddpbench.analysis.sweep_shards import merge_shards
    from ddpbench.bench.journal import load_job
    from ddpbench.cli.files import latest_record, latest_record_below, load_with_shards, outdated_shard_errors
    from ddpbench.published import views
    from ddpbench.report import export
    from ddpbench.report.console import finish_output, make_console
    from ddpbench.report.markdown import to_markdown
    from ddpbench.report.pages.registry import view_of
    from ddpbench.report.summarize_job import summarize_job, summary_json

    views.register()
    console = make_console(sys.stdout)
    loaded = [
        load_with_shards(latest_record_below(file)) if isdir(file) else (file, load_job(file))
        for file in files or [latest_record(Path(options.output_dir))]
    ]
    _print_skipped(problem.message for problem in outdated_shard_errors(loaded))
    merged: list[tuple[Path | None, Job]] = [*merge_shards(loaded)]
    if output.redact:
        merged = [(None, redact(job)) for _, job in merged]
    jobs = [job for _, job in merged]
    if options.format == "summary":
        console.out(summary_json([summarize_job(job, path, options.price) for path, job in merged]))
    elif options.format == "json":
        console.out(export.jobs_to_json(*jobs))
    elif options.format == "csv":
        console.out(export.jobs_to_csv(*jobs))
    elif options.format == "markdown":
        console.out("\n\n".join(map(to_markdown, jobs)))  # without the blank line, a job's heading would continue the previous paragraph
    else:
        for path, job in merged:
            view_of(job).render(job, console, path, verbose=output.verbose, quiet=False)
    return finish_output(console)


@add_flags(flag_options(PlotOptions))
@click.command(options_metavar="[FLAGS]")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE|FOLDER...")
@help_flag
def plot(paths: Sequence[Path], **given: Any) -> int:
    """Plot records as PNG and SVG.

    Plots time and memory over batch size, with and without their spread, speed-ups, rooflines, and the crossover of two devices.
    A FOLDER stands for all records below it. Records of several GPUs share a plot.
    """
    options = PlotOptions(**parse_given(PlotOptions, given))
    require_modules("plot", "matplotlib")
    from ddpbench.cli.files import common_folder, load_jobs
    from ddpbench.published import views
    from ddpbench.report.console import finish_output, make_console, print_line
    from ddpbench.report.plots import draw_plots, left_out_reasons

    views.register()
    jobs, unreadable = load_jobs(paths)
    _print_skipped((*(problem.message for problem in unreadable), *left_out_reasons(jobs)))
    folder = Path(options.output_dir) if options.output_dir else common_folder(paths) / PLOTS_FOLDER
    try:
        plots = draw_plots(jobs, folder, options.reference)
    except OSError as problem:
        raise UsageError(f"cannot write plots in '{folder}': {problem.strerror}", "choose another folder with -o DIR") from problem
    if not plots:
        required = "two batch sizes, two precisions, a roofline, or two devices that cross"
        raise UsageError(
            f"nothing to plot: a plot needs {required}", "'ddpbench sweep', 'ddpbench run --roofline' and 'ddpbench crossover' measure them"
        )
    console = make_console(sys.stdout)
    for path in plots:
        print_line(console, str(path))
    return finish_output(console)


JSON_FLAG = click.RichOption(
    ["as_json", "--json"], is_flag=True, panel=OUTPUT, help="print one JSON object with the properties of each name"
)


@add_flags([JSON_FLAG])
@click.command("list", options_metavar="[FLAGS]")
@help_flag
def list_(as_json: bool) -> int:
    """List workloads, precisions, loaders, engines and experiments.

    WORKLOAD, --precision, --loader, --engine and 'ddpbench reproduce' accept these names.
    """
    from ddpbench.cli.listing import choices_to_json, print_choices
    from ddpbench.report.console import finish_output, make_console

    console = make_console(sys.stdout)
    if as_json:
        console.out(choices_to_json())
    else:
        print_choices(console)
    return finish_output(console)


CLEAN_FLAG = click.RichOption(
    ["--clean"], is_flag=True, panel=OUTPUT, help="remove the scratch folders that ended diagnoses of scripts have left"
)


ENV_JSON_FLAG = click.RichOption(["as_json", "--json"], is_flag=True, panel=OUTPUT, help="print one JSON object with a value per name")


@add_flags([CLEAN_FLAG, ENV_JSON_FLAG])
@click.command(options_metavar="[FLAGS]")
@help_flag
def env(clean: bool, as_json: bool) -> int:
    """Show the machine and software versions.

    Missing packages are listed with the command that installs them.
    """
    from ddpbench.cli.listing import print_fingerprint
    from ddpbench.machine.fingerprint import describe_environment
    from ddpbench.report.console import finish_output, make_console, print_line

    console = make_console(sys.stdout)
    if clean:
        from ddpbench.report.messages.protected_files import cleaned_text
        from ddpbench.script.protect.scratch import clean_scratch_folders

        print_line(console, cleaned_text(*astuple(clean_scratch_folders())))
        return finish_output(console)
    rows = describe_environment()
    if as_json:
        values = {name: {"value": value, **({"install": remedy} if remedy else {})} for name, value, remedy in rows}
        console.out(msgspec.json.encode(values).decode())
    else:
        print_fingerprint(console, rows)
    return finish_output(console)


def _list_folder(folder: Path, options: ReportOptions) -> int | None:
    """Print the runs below ``folder``, and return the exit code; None if it has one run only, or the parts of one sweep."""
    from ddpbench.record.run_list import list_runs
    from ddpbench.report.console import finish_output, make_console, page_for, print_lines
    from ddpbench.report.export import rows_to_csv
    from ddpbench.report.pages.run_table import run_rows, run_table_lines

    runs, skipped = list_runs(folder)
    sweeps = {run.sweep_shard.sweep_id if run.sweep_shard else str(path) for path, run in runs}
    if len(sweeps) < 2 or options.format not in ("terminal", "csv", "json"):
        return None
    if skipped:
        others = f" and {len(skipped) - 1} other files" if len(skipped) > 1 else ""
        _print_skipped([f"{skipped[0].message}{others}"])
    rows, console = run_rows(runs, options.sort), make_console(sys.stdout)
    if options.format == "csv":
        console.out(rows_to_csv([{**msgspec.to_builtins(row), "changes": "; ".join(row.changes)} for row in rows]))
    elif options.format == "json":
        console.out(msgspec.json.encode(rows).decode())
    else:
        print_lines(console, run_table_lines(rows, page_for(console)))
    return finish_output(console)


def _print_skipped(problems: Iterable[str]) -> None:
    from ddpbench.report.console import make_console, print_line

    for problem in problems:
        print_line(make_console(sys.stderr), f"skipped: {problem}")
