"""Documents match the program: commands parse, links and paths lead somewhere, and printed reports are those of their records."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
from document_checks import block_faults, command_faults, guide_faults, link_faults, path_faults, report_faults, reports
from documents import ROOT, Document

from ddpbench.bench.journal import load_job
from ddpbench.cli.program import program
from ddpbench.record.checks import AnyCheck, code_of
from ddpbench.report.summarize_job import summarize_job, summary_json

DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "launch/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "results").rglob("*.md")),
]
GUIDES = [path for path in DOCUMENTS if path.parent.name == "docs" and path.name != "reference.md"]
MAX_README_LINES = 200

Check = Callable[[Document], Iterator[str]]


@pytest.fixture(autouse=True)
def root_of_the_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples import modules from the root, and reports are 80 columns wide."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.mark.parametrize("check", [command_faults, link_faults, path_faults, block_faults, report_faults], ids=lambda check: check.__name__)
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_document_has_no_faults(path: Path, check: Check) -> None:
    faults = list(check(Document(path)))
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_guide_opens_with_prose_and_a_command(path: Path) -> None:
    faults = list(guide_faults(Document(path)))
    assert not faults, "\n".join(faults)


def test_readme_starts_with_the_main_commands() -> None:
    own, clone, *_ = Document(ROOT / "README.md").blocks
    assert own.text.splitlines()[0] == "pip install ."
    assert clone.text.splitlines() == [
        "bash launch/local.sh diagnose docs/examples/train_script.py --epochs 100",
        "bash launch/local.sh resnet18 --amp",
        "bash launch/test.sh",
    ]


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES


@pytest.mark.parametrize("command", program.commands)
def test_readme_lists_every_command(command: str) -> None:
    assert re.search(rf"^\| `(?:ddpbench )?{command}\b", (ROOT / "README.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", ["README.md", "docs/diagnose.md", "docs/compare.md", "docs/own-script.md"])
def test_document_shows_the_report_of_a_kept_record(name: str) -> None:
    assert list(reports(Document(ROOT / name)))


@pytest.mark.parametrize(("package", "output"), [("wandb", "wandb"), ("mlflow", "*"), ("pathlib", "ddpbench.prom")])
def test_recipe_passes_on_the_summary(package: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(package)
    (recipe,) = (each.text for each in Document(ROOT / "docs/agents.md").blocks if re.search(rf"\b{package}\b", each.text))
    job = load_job(ROOT / "results/watch/train-images-2-h100.json")
    (tmp_path / "summary.json").write_text(summary_json([summarize_job(job)]))
    environment = {**os.environ, "WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    done = subprocess.run([sys.executable, "-c", recipe], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert [path for path in tmp_path.glob(output) if path.name != "summary.json"]
    if output.endswith("prom"):
        assert 'ddpbench_step_share{workload="train_images.py",phase="data"} 0.562' in (tmp_path / output).read_text()


def test_methodology_lists_every_check() -> None:
    table = (ROOT / "docs" / "methodology.md").read_text().partition("| check | fires if")[2].partition("\n\n")[0]
    codes = re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)
    assert sorted(codes) == sorted(code_of(check) for check in get_args(AnyCheck))


def test_launch_readme_lists_every_file() -> None:
    readme = (ROOT / "launch" / "README.md").read_text()
    for path in (ROOT / "launch").iterdir():
        assert path.is_dir() or path.suffix == ".md" or f"`{path.name.removesuffix('.dockerignore')}`" in readme, path


SH = "```sh\n{}\n```\n"
FAULTS: dict[str, tuple[Check, str, list[str]]] = {
    "unknown flag": (command_faults, SH.format("ddpbench resnet50 \\\n  --ampp"), ["2: cannot parse 'ddpbench resnet50 --ampp'"]),
    "unknown workload": (command_faults, SH.format("pip install .\ntorchrun --nproc_per_node=2 -m ddpbench resnet51"), ["3: cannot parse"]),
    "unknown loader in a table": (command_faults, "| trains | `ddpbench resnet18 --loader tosch` |\n", ["1: cannot parse"]),
    "rejected command of a report": (command_faults, "```text\nuse    ddpbench resnet18 --workers x\n```\n", ["2: cannot parse"]),
    "two arms for diagnose": (command_faults, SH.format("bash launch/local.sh diagnose resnet18 -j 1,4"), ["2: cannot parse"]),
    "too many parts of a sweep": (command_faults, SH.format("ddpbench sweep resnet18 -b 8,16 --part 1/3"), ["2: cannot parse"]),
    "unknown experiment": (command_faults, SH.format("ddpbench reproduce t5"), ["2: cannot parse"]),
    "dead link": (link_faults, "# Page\n\nSee [it](gone.md).\n", ["3: no file 'gone.md'"]),
    "dead link over two lines": (link_faults, "See `a\nb` [this\npage](gone.md).\n", ["3: no file 'gone.md'"]),
    "dead anchors": (link_faults, "# Page\n\n[a](page.md#pages) [b](#gone)\n", ["3: no heading '#pages'", "3: no heading '#gone'"]),
    "missing script": (path_faults, SH.format("python results/gone.py out.json"), ["2: no file 'results/gone.py'"]),
    "missing paths": (path_faults, "`launch/gone.sh` and `results/h200/*.txtt`\n", ["1: no file 'launch", "1: no file 'results"]),
    "missing path in a wrapped command": (path_faults, "`ddpbench report\nresults/gone.json`\n", ["1: no file 'results/gone.json'"]),
    "report of a missing record": (
        report_faults,
        SH.format("ddpbench report results/gone.json") + "```text\nstep\n```\n",
        ["4: 'ddpbench report"],
    ),
    "block without a language": (block_faults, "# Page\n\n```\nddpbench list\n```\n", ["3: a block without a language"]),
    "guide without a command": (guide_faults, "# Page\n\nText.\n\n## Part\n\n" + SH.format("ddpbench list"), ["3: no ddpbench command"]),
    "guide that opens with a command": (guide_faults, "# Page\n\n" + SH.format("ddpbench list") + "\nText.\n", ["7: a guide opens with"]),
}


@pytest.mark.parametrize(("check", "text", "expected"), FAULTS.values(), ids=FAULTS)
def test_fault_is_found_with_its_line(check: Check, text: str, expected: list[str], tmp_path: Path) -> None:
    faults = list(check(page(tmp_path, text)))
    assert len(faults) == len(expected)
    assert all(fault.startswith(f"page.md:{start}") for fault, start in zip(faults, expected, strict=True)), faults


@pytest.mark.parametrize(
    ("lines", "faults"),
    [
        ("{step}\n\n{memory}", []),
        ("{memory}\n{step}", ["6: "]),
        ("{step}\n{memory}", []),
        ("{step}\nmemory       4.5 of 139.8 GiB per GPU", ["6: "]),
    ],
    ids=["blank line", "swapped", "lines omitted", "changed"],
)
@pytest.mark.parametrize("named", ["before", "in the block"])
def test_report_must_have_lines_of_its_record_in_order(lines: str, faults: list[str], named: str, tmp_path: Path) -> None:
    record = "results/h200/resnet18-1gpu-torch-loader.json"
    shown = lines.format(
        step="step         66.1 ms   first step 8.6 s   loss 4.65 -> 4.63",
        memory="memory       3.5 of 139.8 GiB per GPU   0.065 J/image   MFU 6.4% of measured",
    )
    before = f"ddpbench report {record}" if named == "before" else "ddpbench list"
    document = page(
        tmp_path,
        SH.format(before) + f"```text\n{shown}\n" + ("" if named == "before" else f"more     ddpbench report -v {record}\n") + "```\n",
    )
    found = list(report_faults(document))
    assert len(found) == len(faults)
    assert all(fault.startswith(f"page.md:{start}") for fault, start in zip(found, faults, strict=True)), found


def test_valid_document_has_no_faults(tmp_path: Path) -> None:
    text = (
        "# Page\n\nProse with [a link](#a-section-with-code), `results/runs/FILE.json` and `launch/local.sh`.\n\n"
        "```sh\nbash launch/local.sh diagnose resnet18 --amp\nsbatch --nodes=2 launch/slurm_multi_node.sbatch resnet50  # two nodes\n"
        "ddpbench report FILE | head\nddpbench --help\n```\n\n## A section with `code`\n\n| `ddpbench scale WORKLOAD` | scales |\n"
    )
    document = page(tmp_path, text)
    for check in (command_faults, link_faults, path_faults, block_faults, guide_faults, report_faults):
        assert list(check(document)) == []


def page(folder: Path, text: str) -> Document:
    path = folder / "page.md"
    path.write_text(text)
    return Document(path)
