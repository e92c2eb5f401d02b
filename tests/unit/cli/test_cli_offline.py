"""Commands that do not train: ``list``, ``env``, ``report`` and ``plot``, all without torch."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import invalid_records
import pytest
import records
import sweeps
from commands import refused
from msgspec.structs import replace

from ddpbench import __version__
from ddpbench.analysis.judge import judge_all
from ddpbench.cli import main
from ddpbench.cli.files import resolve_record
from ddpbench.published.publications import published_names
from ddpbench.record.io import save
from ddpbench.record.loaders import LOADERS
from ddpbench.record.record import Job
from ddpbench.record.registry import ENGINES, PRECISIONS
from ddpbench.workloads.families import FAMILIES
from ddpbench.workloads.registry import WORKLOADS

PRINTED_MODULES = """
import sys
from ddpbench.cli import main
main()
print({"torch", "numpy", "matplotlib"} & set(sys.modules))
"""

ROOT = Path(__file__).parents[3]


def test_list_shows_every_name_that_a_flag_accepts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^resnet18 .* 11,689,512  image 3x224x224 +10\.6$", out, re.MULTILINE)
    for name in (*WORKLOADS, *(family.name for family in FAMILIES), *PRECISIONS, *LOADERS, *ENGINES, *published_names()):
        assert name in out.split()
    for spec in (*PRECISIONS.values(), *LOADERS.values()):
        assert spec.help.split()[0] in out
    loaders = re.split(rf"(?m)^(?=(?:{'|'.join(LOADERS)}) )", out.partition("\nengine")[0])[1:]
    for row, spec in zip(loaders, LOADERS.values(), strict=True):
        assert ("CIFAR-10" in row, "ImageNet" in row) == ("cifar10" in spec.datasets, "imagenet" in spec.datasets)


def test_env_as_json_has_a_value_per_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["python"]["value"].startswith(f"{sys.version_info[0]}.")
    assert {key for each in values.values() for key in each} <= {"value", "install"}


def test_whatif_as_json_is_the_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(ROOT / "results/h200/diagnose-resnet50-2gpu.json"), "--workers", "14", "--json"]) == 0
    prediction = json.loads(capsys.readouterr().out)
    assert prediction["scenario"] == {"workers": 14}
    assert prediction["low"] < prediction["gain"] < prediction["high"]


def test_list_as_json_is_one_object_with_every_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    out = capsys.readouterr().out
    names = {kind: [each["name"] for each in entries] for kind, entries in json.loads(out).items()}
    assert names == {
        "workloads": [*WORKLOADS],
        "families": [family.name for family in FAMILIES],
        "precisions": [*PRECISIONS],
        "loaders": [*LOADERS],
        "engines": [*ENGINES],
        "published_experiments": [*published_names()],
    }
    resnet18 = next(each for each in json.loads(out)["workloads"] if each["name"] == "resnet18")
    assert (resnet18["parameters"], resnet18["input_shape"]) == (11_689_512, [3, 224, 224])
    fp32 = next(each for each in json.loads(out)["precisions"] if each["name"] == "fp32")
    assert (fp32["aliases"], fp32["tf32"]) == (["O0"], False)
    assert main(["list", "--json"]) == 0
    assert capsys.readouterr().out == out


def test_env_shows_the_installed_versions(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    assert main(["env"]) == 0
    rows = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines() if re.match(r"\w+ +\S", line))
    assert rows["ddpbench"].split()[0] == __version__
    assert rows["torch"].split()[0] == torch.__version__.split("+")[0] or rows["torch"].split()[0] == torch.__version__


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A results folder: an old record, the latest record, a profiler trace, and an empty file reserved by a run."""
    for day, workload in (("20261119", "resnet18"), ("20261120", "resnet50")):
        job = records.job(records.record())
        job.command = ["ddpbench", workload]
        save(job, tmp_path / f"{day}T000000Z-{workload}.json")
    (tmp_path / "20261120T000000Z-resnet50-rank0.trace.json").write_text("{}")
    (tmp_path / "20261121T000000Z-reserved.json").touch()
    return tmp_path


def test_report_prints_the_latest_record_of_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "-o", str(folder), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"] == ["ddpbench", "resnet50"]


def test_report_prints_every_given_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(folder / name) for name in ("20261119T000000Z-resnet18.json", "20261120T000000Z-resnet50.json")]
    assert main(["report", *files]) == 0
    out = capsys.readouterr().out
    assert all(Path(file).name in out for file in files)
    assert max(map(len, out.splitlines())) <= max(80, *(len(f"more     ddpbench report -v {file}") for file in files))


def test_folder_is_listed_with_all_runs_below_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (below := folder / "h200").mkdir()
    later = records.job(records.record())
    later.started, later.command = "2026-11-22T00:00:00Z", ["ddpbench", "vgg16"]
    save(later, below / "named-by-hand.json")
    (below / "other.json").write_text('{"started": "2027"}')
    assert main(["report", str(folder), "--format", "json"]) == 0
    shown = capsys.readouterr()
    assert [Path(row["record"]).name for row in json.loads(shown.out)][-1] == "named-by-hand.json"
    assert shown.err.startswith(f"skipped: '{below / 'other.json'}' is not a ddpbench record")
    assert resolve_record(folder) == below / "named-by-hand.json"
    assert main(["report", str(below)]) == 0, "a single run has its page"
    assert capsys.readouterr().out.startswith("ddpbench  resnet50")
    (empty := folder / "empty").mkdir()
    assert f"no record in '{empty}'" in refused(f"report {shlex.quote(str(empty))}", capsys)


def test_kept_records_are_all_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(ROOT / "results"), "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) > 100
    assert {row["job"].partition(" ")[0] for row in rows} >= {"run", "diagnose", "watch", "scale", "reproduce"}


def test_listed_runs_say_what_differs_from_the_run_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for day, batch_size in ((1, 256), (2, 512), (3, 512)):
        job = records.job(records.record(config=replace(records.RESNET50, batch_size=batch_size), longer=[1.0, 1.01, 0.99]))
        job.started, job.command = f"2026-11-0{day}T00:00:00Z", ["ddpbench", "resnet50", *(["--amp"] if day == 3 else [])]
        judge_all(job)
        save(job, tmp_path / f"{day}.json")
    assert main(["report", str(tmp_path), "--sort", "figure", "--format", "csv"]) == 0
    rows = [*csv.DictReader(io.StringIO(capsys.readouterr().out))]
    assert [(Path(row["record"]).name, row["changes"], row["verdict"]) for row in sorted(rows, key=lambda row: row["started"])] == [
        ("1.json", "", "compute-bound"),
        ("2.json", "batch-size 256 -> 512", "compute-bound"),
        ("3.json", "command - -> --amp", "compute-bound"),
    ]
    figures = [float(row["samples_per_s"]) for row in rows]
    assert figures == sorted(figures, reverse=True)
    assert main(["report", str(tmp_path)]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["started", "(UTC)", "job", "training", "samples/s", "interval", "verdict"]
    assert max(map(len, table)) <= 80
    assert "    batch-size 256 -> 512" in table


@pytest.mark.slow
def test_ten_thousand_runs_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(records.job(records.record()), tmp_path / "0.json")
    for number in range(1, 10_000):
        (tmp_path / f"{number}.json").hardlink_to(tmp_path / "0.json")
    assert main(["report", str(tmp_path), "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 10_001


@pytest.mark.parametrize("wrong", [wrong for wrong in invalid_records.DEFECTS if wrong != "unreadable" or os.geteuid()])
def test_report_of_an_invalid_file_names_it(wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.json"
    invalid_records.write(bad, wrong)
    assert f"'{bad}'" in refused(f"report {shlex.quote(str(bad))}", capsys)


@pytest.mark.parametrize("wrong", ["dangling link", "directory", "deep nesting", "other JSON", "newer", "truncated", "empty"])
def test_invalid_files_in_a_folder_are_ignored(wrong: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    invalid_records.write(folder / "other.json", wrong)
    assert main(["report", str(folder), "--format", "json"]) == main(["report", "-o", str(folder), "--format", "json"]) == 0
    assert "resnet50" in capsys.readouterr().out


@pytest.mark.parametrize("format", ["csv", "markdown"])
def test_report_in_other_formats(format: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "-o", str(folder), "--format", format]) == 0
    out = capsys.readouterr().out
    assert "resnet50" in out
    assert ("," in out.splitlines()[0]) if format == "csv" else ("\n|" in out)


def test_jobs_in_markdown_are_separated_by_a_blank_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (record,) = sorted(folder.glob("*.json"))[:1]
    assert main(["report", str(record), str(record), "--format", "markdown"]) == 0
    first, second = capsys.readouterr().out.split("\n\n**ddpbench** ")
    assert first.removeprefix("**ddpbench** ") == second.removesuffix("\n")


@pytest.mark.parametrize("command", ["report", "plot", "whatif --workers 4"])
def test_folder_with_only_a_truncated_record_is_not_reported_as_empty(
    command: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cut").mkdir()
    cut = tmp_path / "cut" / "run.json"
    cut.write_bytes(sorted(folder.glob("*.json"))[0].read_bytes()[:300])
    assert f"'{cut}' is not a ddpbench record: truncated" in refused(f"{command} {shlex.quote(str(cut.parent))}", capsys)


def test_several_jobs_become_one_csv_table_and_one_json_array(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (record,) = map(str, sorted(folder.glob("*.json"))[:1])
    assert main(["report", record, "--format", "csv"]) == main(["report", record, record, "--format", "csv"]) == 0
    heading, row, *both = capsys.readouterr().out.splitlines()
    assert both == [heading, row, row]
    assert main(["report", record, record, "--format", "json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first == second == json.loads(Path(record).read_text())


# pages by kind of job


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    """A folder with a sweep, a crossover, a reproduction, and a JSON file that is not a record."""
    kinds: dict[str, Job] = {"sweep": sweeps.sweep(), "crossover": sweeps.crossing_disc(), "reproduce t4-tensor-cores": sweeps.t4()}
    folder = tmp_path / "runs" / "h200"
    folder.mkdir(parents=True)
    for kind, job in kinds.items():
        job.kind = kind
        save(job, folder / f"{kind.replace(' ', '-')}.json")
    (folder / "other.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("journal", "text"),
    [
        ("sweep", "accuracy on held-out data (%), median (95% interval of the mean)"),
        ("crossover", "GPU is faster than CPU from"),
        ("reproduce-t4-tensor-cores", "ddpbench reproduce t4-tensor-cores"),
    ],
)
def test_report_prints_the_page_for_the_kind_of_job(journal: str, text: str, journals: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = journals / f"{journal}.json"
    assert main(["report", str(path)]) == 0
    out = capsys.readouterr().out
    assert text in out
    assert out.endswith(f"{path}\n")


def test_unknown_kind_of_job_is_printed_as_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = records.job(records.record())
    for kind in ("run", "of a later release"):
        job.kind = kind
        save(job, tmp_path / "job.json")
        assert main(["report", str(tmp_path / "job.json")]) == 0
    run, other = (page for page in capsys.readouterr().out.split("job.json\n") if page)
    assert run == other


def test_latest_report_is_not_searched_in_subfolders(journals: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no record in" in refused(f"report -o {shlex.quote(str(journals.parent))}", capsys)


# plots


def test_plot_draws_all_records_below_a_folder(journals: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", str(journals.parent)]) == 0
    out, err = capsys.readouterr()
    drawn = [Path(line) for line in out.splitlines()]
    assert {path.name for path in drawn} >= {
        "vgg16-cifar10-h200-time-by-batch-size-and-precision.png",
        "vgg16-cifar10-h200-time-by-batch-size-and-precision-spread.svg",
        "mnist-cnn-h200-speed-up-by-batch-size-and-precision.png",
        "disc-mlp-cpu-vs-h200-time-by-model-size.svg",
    }
    assert {path.resolve().parent for path in drawn} == {journals.parent / "plots"}
    assert all(path.stat().st_size for path in drawn)
    assert err.startswith(f"skipped: '{journals / 'other.json'}' is not a ddpbench record")
    assert err.splitlines()[1:] == ["skipped: mnist-cnn, over batch size: 1 setting with a single batch size"]


def test_plots_are_written_next_to_the_record_or_to_the_output_dir(journals: Path, capsys: pytest.CaptureFixture[str]) -> None:
    crossover, elsewhere = str(journals / "crossover.json"), journals.parent / "elsewhere"
    assert main(["plot", crossover]) == 0
    assert main(["plot", crossover, "-o", str(elsewhere)]) == 0
    names = sorted(path.name for path in (journals / "plots").iterdir())
    assert names == sorted(path.name for path in elsewhere.iterdir())
    assert capsys.readouterr().out.count("\n") == 2 * len(names)


def test_unknown_reference_of_a_plot_is_refused_with_the_names_of_the_arms(journals: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = shlex.quote(str(journals / "sweep.json"))
    error = refused(f"plot {sweep} --reference int8", capsys)
    assert error == "ddpbench: error: no compared arm is called 'int8'\nhint: --reference accepts fp32; amp-fp16; o2\n"
    assert not (journals / "plots").exists()
    assert main(["plot", str(journals / "sweep.json"), "--reference", "O2"]) == 0
    capsys.readouterr()
    assert "no speed-up is plotted" in refused(f"plot {shlex.quote(str(journals / 'crossover.json'))} --reference fp32", capsys)


def test_plot_without_plottable_records_says_what_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(records.job(records.record()), tmp_path / "run.json")
    error = refused(f"plot {shlex.quote(str(tmp_path))}", capsys)
    assert "nothing to plot: a plot needs two batch sizes, two precisions, a roofline, or two devices" in error
    assert "hint: 'ddpbench sweep'" in error


def test_plot_rejects_a_folder_without_records_and_one_that_is_not_writable(journals: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (empty := journals / "empty").mkdir()
    assert f"no record in '{empty}'" in refused(f"plot {shlex.quote(str(empty))}", capsys)
    sweep = shlex.quote(str(journals / "sweep.json"))
    assert "choose another folder with -o DIR" in refused(f"plot {sweep} -o {sweep}", capsys)


def test_plot_without_matplotlib_says_how_to_install_it(
    journals: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    error = refused(f"plot {shlex.quote(str(journals / 'sweep.json'))}", capsys)
    assert error == "ddpbench: error: plot needs matplotlib, which is not installed\nhint: pip install matplotlib\n"


# published experiments


def test_reproduce_without_name_lists_the_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce"]) == 0
    out = capsys.readouterr().out
    assert [name for name in out.splitlines() if name in published_names()] == list(published_names())


# torch


@pytest.mark.parametrize("words", ["list", "list --json", "reproduce", "report sweep.json", "report reproduce-t4-tensor-cores.json"])
def test_report_and_list_do_not_import_torch(words: str, journals: Path, launch: Callable[..., Any]) -> None:
    done = launch([sys.executable, "-c", PRINTED_MODULES, *words.split()], cwd=journals)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "set()")


def test_plot_does_not_import_torch(journals: Path, launch: Callable[..., Any]) -> None:
    done = launch([sys.executable, "-c", PRINTED_MODULES, "plot", "crossover.json"], cwd=journals)
    assert done.returncode == 0
    assert "torch" not in done.stdout.splitlines()[-1]
