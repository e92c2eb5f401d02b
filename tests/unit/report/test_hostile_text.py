"""Untrusted names and messages stay text: on the terminal, in markdown, CSV, JSON, plots and error lines."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sweeps
from markdown_it import MarkdownIt
from msgspec.structs import replace
from page_jobs import killed

from ddpbench.cli.program import run_command
from ddpbench.distributed.exit_status import write_exit_status
from ddpbench.machine.rank_env import RankEnv
from ddpbench.machine.streams import print_error, print_note
from ddpbench.record.errors import BenchError
from ddpbench.record.io import save
from ddpbench.record.record import Fault, Job, Record
from ddpbench.record.roles import side_role
from ddpbench.record.text import printable
from ddpbench.report.console import make_console, print_line
from ddpbench.report.draw import draw_batch_size_plot
from ddpbench.report.export import jobs_to_csv, jobs_to_json
from ddpbench.report.markdown import to_markdown
from ddpbench.report.pages.registry import view_of
from ddpbench.report.plot_data import BatchSizePlot, PlotCurve
from ddpbench.report.plots import draw_plots
from ddpbench.report.progress import count_progress, make_progress

STEERING = "\x1b[31m\x1b]8;;http://evil\x07\x9b2J\x00\x7f\u202egpj.\u2066\u200b\ufeff\r\n\t\u2028"
MARKUP = "`a``b` | <img src=x onerror=alert(1)> [x](http://evil) ![y](z) *b* _i_ ~~s~~ &lt;u&gt; $\\frac{1}{0}$ www.evil.com \\ ]]> -->"
FORMULA = '=HYPERLINK("http://evil","x")'
EVIL = f"{FORMULA}{STEERING}{MARKUP}"


def hostile(text: str = EVIL) -> Job:
    """A job in which every untrusted name and message is ``text``."""
    job = killed()
    for record in job.records:
        record.config = replace(record.config, workload=text, data_dir=text, loader="torch")
        places = [replace(place, host=text, device_name=text) for place in record.environment.placements]
        record.environment = replace(record.environment, placements=places, cpu=text, os=text, variables={"NCCL_X": text})
        record.role, record.fault = side_role(text), Fault(message=text, hint=text)
    job.command = ["ddpbench", text]
    return job


def hostile_sweep() -> Job:
    """Two precisions at two batch sizes: enough for every plot over batch size."""
    job = sweeps.published_vgg("V100")
    job.records = [each for each in job.records if each.config.precision in ("fp32", "o2") and each.config.batch_size in (128, 256)]
    for record in job.records:
        record.config, record.role = replace(record.config, workload=EVIL), side_role(EVIL)
        on_hostile_device(record)
    return job


def hostile_crossing() -> Job:
    job = sweeps.crossing_disc()
    for record in job.records:
        on_hostile_device(record)
    return job


def on_hostile_device(record: Record) -> None:
    places = [replace(place, host=EVIL, device_name=EVIL) for place in record.environment.placements]
    record.environment = replace(record.environment, placements=places)


def is_clean(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


def on_terminal(job: Job) -> str:
    stream = io.StringIO()
    view_of(job).render(job, make_console(stream), Path(EVIL), verbose=True, quiet=False)
    return stream.getvalue()


OUTPUTS: dict[str, Callable[[Job], str]] = {"terminal": on_terminal, "markdown": to_markdown, "csv": jobs_to_csv, "json": jobs_to_json}


@pytest.mark.parametrize("job", [hostile, hostile_sweep, hostile_crossing])
@pytest.mark.parametrize("kind", OUTPUTS)
def test_outputs_contain_no_control_characters(kind: str, job: Callable[[], Job]) -> None:
    assert is_clean(OUTPUTS[kind](job()))


def test_json_preserves_every_character() -> None:
    assert json.loads(jobs_to_json(hostile()))["command"][1] == EVIL


# Markdown


def rendered(markdown: str) -> list[Any]:
    """Every inline token, parsed with GitHub's tables and strikethrough."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    return [inline for block in parser.parse(markdown) for inline in [block, *(block.children or [])]]


@pytest.mark.parametrize("start", ["", "# ", "> ", "- ", "+ ", "1. ", "12) ", "---", "===", "```", "~~~", "    ", "[x]: http://evil"])
def test_markdown_escapes_hostile_text(start: str) -> None:
    tokens = rendered(to_markdown(hostile(start + EVIL)))
    kinds = {token.type for token in tokens}
    assert not kinds & {"html_inline", "html_block", "link_open", "image", "em_open", "s_open", "fence", "code_block", "heading_open"}
    assert not kinds & {"blockquote_open", "ordered_list_open", "hr", "softbreak", "hardbreak"}
    shown = " ".join(printable(start + EVIL).split())
    texts = ["".join(child.content for child in token.children) for token in tokens if token.type == "inline"]
    assert any(text.startswith(f"ddpbench {shown}") for text in texts), "the head"
    assert any(f"failed: {shown}" in text for text in texts), "the fault"
    [command] = (token.content for token in tokens if token.type == "code_inline")
    assert command.startswith("ddpbench ")
    assert MARKUP in command


def test_markdown_table_rows_keep_their_columns() -> None:
    tokens = MarkdownIt("commonmark").enable("table").parse(to_markdown(hostile()))
    heads, cells = (sum(token.type == kind for token in tokens) for kind in ("th_open", "td_open"))
    assert heads == cells > 0


@pytest.mark.parametrize("text", ["1.5 of 2", "12 ranks", "-5%", "a-b", "#1"])
def test_markdown_renders_plain_text_unchanged(text: str) -> None:
    assert any(token.type == "text" and text in token.content for token in rendered(to_markdown(hostile(text))))


# CSV


@pytest.mark.parametrize("start", ["", "=", "+", "-", "@", "\t=", "\r=", "\n=", " =", "\x00=", "\uff1d", "\uff0b"])
def test_csv_cells_are_never_formulas(start: str) -> None:
    [row] = csv.DictReader(io.StringIO(jobs_to_csv(hostile(start + EVIL))))
    texts = [row[name] for name in ("workload", "data_dir", "label", "device_name", "hosts")]
    assert len({*texts}) == 1
    assert texts[0].endswith(MARKUP)
    assert not any(re.match(r"\s*[=+\-@\uff0b\uff0d\uff1d\uff20]", cell) and not is_number(cell) for cell in row.values())


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def test_negative_numbers_stay_numbers_in_csv() -> None:
    job = killed()
    job.records[0].config = replace(job.records[0].config, lr=-1.5)
    [row] = csv.DictReader(io.StringIO(jobs_to_csv(job)))
    assert row["lr"] == "-1.5"


# Plots


@pytest.mark.parametrize("job", [hostile_sweep, hostile_crossing])
def test_svg_plots_are_valid_xml_without_active_content(job: Callable[[], Job], tmp_path: Path) -> None:
    written = draw_plots([job()], tmp_path)
    assert {path.suffix for path in written} == {".png", ".svg"}
    assert all(re.fullmatch(r"[a-z0-9-]+\.(png|svg)", path.name) for path in written)
    for path in written:
        if path.suffix == ".svg":
            text = path.read_text(encoding="utf-8")
            assert is_clean(text)
            tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(text).iter() if isinstance(element.tag, str)}
            assert not tags & {"script", "image", "img", "a", "foreignObject", "u"}


def test_plot_labels_are_not_parsed_as_math() -> None:
    curve = PlotCurve("$x$ and $\\frac{1}{0}$", "costs 5$ or \\$ 6", [1, 2], [1.0, 2.0], [0.0, 0.0])
    figure = draw_batch_size_plot(BatchSizePlot("stem", "$a$", "time (s)", "image", [curve]), with_spread=False)
    figure.canvas.draw()
    texts = [figure.get_suptitle(), *(text.get_text() for text in figure.legends[0].get_texts())]
    assert [text.replace("\\$", "$") for text in texts] == ["$a$, mean over rounds", f"{curve.device}, {curve.setting}"]


# stderr


def test_error_message_is_one_clean_line_and_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(BenchError(EVIL, EVIL))
    print_note(EVIL)
    err = capsys.readouterr().err
    assert is_clean(err)
    assert [line.partition(FORMULA)[0] for line in err.splitlines()] == ["ddpbench: error: ", "hint: ", "ddpbench: note: "]


def test_torchrun_error_file_is_clean(tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    write_exit_status(RankEnv(error_file=str(file)), BenchError(EVIL), 1)
    assert json.loads(file.read_text())["message"] == printable(EVIL)


def test_hostile_file_name_is_printed_on_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "evil\x1b[31m\n.json"
    with pytest.raises(SystemExit):
        run_command(["report", name])
    first, hint = capsys.readouterr().err.splitlines()
    assert first == "ddpbench: error: cannot read 'evil [31m .json': No such file or directory"
    assert hint.startswith("hint: ")
    (tmp_path / "broken\x1b[2J.json").write_text("{")
    save(hostile(), tmp_path / "good\n.json")
    with pytest.raises(SystemExit):
        run_command(["plot", "."])
    left_out, nothing, _ = capsys.readouterr().err.splitlines()
    assert left_out.startswith("skipped: 'broken [2J.json' is not a ddpbench record")
    assert nothing.startswith("ddpbench: error: nothing to plot")


def test_progress_output_is_clean() -> None:
    stream = io.StringIO()
    progress = make_progress(stream)
    progress.stage(EVIL)
    progress.round_done(1, 2, EVIL, "")
    with count_progress(stream, EVIL, 2, "images") as count:
        count(0)
    print_line(make_console(stream), EVIL)
    assert is_clean(stream.getvalue())
    assert len(stream.getvalue().splitlines()) == 4


def test_non_utf8_bytes_are_escaped() -> None:
    assert printable("z\udcfc.jpg") == "z\\udcfc.jpg"
    assert printable("naïve 数 🙂") == "naïve 数 🙂"
