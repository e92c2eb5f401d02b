"""A diff is applied to copies of the sources, which are compiled in place of them; the sources are not changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddpbench.record.errors import UsageError
from ddpbench.script.ab.diff import patch_sources

TRAIN, HELPER = "import helper\nprint(helper.answer())\n", "def answer():\n    return 1\n"
DIFF = "--- a/helper.py\n+++ b/helper.py\n@@ -1,2 +1,2 @@\n def answer():\n-    return 1\n+    return 2\n"


@pytest.fixture(autouse=True)
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a script, its module and a diff."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "helper.py").write_text(HELPER)
    (folder / "change.diff").write_text(DIFF)
    monkeypatch.chdir(folder)
    return folder


def copies(tmp_path: Path, diff: str = "change.diff") -> dict[str, str]:
    (folder := tmp_path / "copies").mkdir(exist_ok=True)
    return patch_sources(Path(diff), folder)


@pytest.mark.parametrize("diff", [DIFF, DIFF.replace("a/helper", "helper").replace("b/helper", "helper")], ids=["git", "plain"])
def test_copy_has_the_change(tmp_path: Path, sources: Path, diff: str) -> None:
    (sources / "change.diff").write_text(diff)
    ((source, copy),) = copies(tmp_path).items()
    assert Path(source) == sources / "helper.py"
    assert Path(source).read_text() == HELPER
    assert Path(copy).read_text() == HELPER.replace("1", "2")


def test_paths_may_be_those_of_the_repository(tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "init", "-q", str(sources)], check=True)
    (below := sources / "below").mkdir()
    monkeypatch.chdir(below)
    assert copies(tmp_path, "../change.diff").keys() == {str(sources / "helper.py")}


def test_changed_module_runs_under_the_name_of_its_source(tmp_path: Path, sources: Path) -> None:
    code = (
        f"from ddpbench.script.patched_sources import use_patched_sources; use_patched_sources({copies(tmp_path)!r});"
        "import helper, inspect; print(helper.answer(), helper.__file__, inspect.getsource(helper.answer).split()[-1])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=sources)
    assert done.stdout.split() == ["2", str(sources / "helper.py"), "2"]
    plain = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, check=True, cwd=sources)
    assert plain.stdout == "1\n", "no compiled file of the change is left"


@pytest.mark.parametrize(
    ("diff", "message"),
    [
        (DIFF.replace("-    return 1", "-    return 3"), "'change.diff' does not apply: patch failed: helper.py:1"),
        (DIFF.replace("helper.py", "missing.py"), "'change.diff' changes missing.py, which is not there"),
        (DIFF.replace("helper.py", "config.yaml"), "'change.diff' changes config.yaml"),
        (DIFF.replace("b/helper.py", "b/../helper.py"), "'change.diff' changes ../helper.py"),
        (DIFF.replace("+    return 2", "+    return ("), "with the diff, helper.py is no valid Python: line 2: '(' was never closed"),
        ("faster, please\n", "'change.diff' is no unified diff"),
    ],
    ids=["other source", "missing", "no python", "outside", "syntax", "no diff"],
)
def test_diff_that_cannot_be_tried_is_one_line(tmp_path: Path, sources: Path, diff: str, message: str) -> None:
    (sources / "change.diff").write_text(diff)
    with pytest.raises(UsageError) as refused:
        copies(tmp_path)
    assert refused.value.message == message
    assert (sources / "helper.py").read_text() == HELPER


def test_missing_diff_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the diff 'other\.diff': No such file or directory"):
        copies(tmp_path, "other.diff")
