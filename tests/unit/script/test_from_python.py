"""The functions at the top of the package: a watched block, a diagnosed script, a loaded record."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ddpbench
from ddpbench.record.errors import BenchError, UsageError
from ddpbench.record.job_summary import JobSummary

ROOT = Path(__file__).parents[3]

TRAINING = """
import sys, threading, time
import torch
import ddpbench

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        time.sleep(0.0005)
        return torch.randn(64), torch.tensor(0)

model = torch.nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = torch.utils.data.DataLoader(Slow(), batch_size=8)

def train(epochs=3, fails=None):
    for _ in range(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    if fails:
        raise fails
"""


@pytest.fixture
def ran(launch: Callable[..., Any], tmp_path: Path) -> Callable[[str], Any]:
    def run(body: str) -> Any:
        (tmp_path / "training.py").write_text(TRAINING + textwrap.dedent(body))
        return launch([sys.executable, "training.py"], cwd=tmp_path)

    return run


def records(folder: Path) -> list[JobSummary]:
    return [ddpbench.load(path) for path in sorted((folder / "results" / "runs").glob("*.json"))]


@pytest.mark.slow
def test_watched_block_has_a_page_and_a_record(ran: Callable[[str], Any], tmp_path: Path) -> None:
    done = ran("with ddpbench.watch('mine'):\n    train()\nprint('after')")
    assert (done.returncode, done.stdout) == (0, "after\n"), done.stderr
    assert done.stderr.startswith("ddpbench watch  mine  torch-default  Linear  SGD\n")
    [summary] = records(tmp_path)
    assert (summary.job, summary.status, summary.training.workload) == ("watch", "ok", "mine")
    assert summary.verdict is not None
    assert summary.verdict.kind == "data-bound"


@pytest.mark.slow
def test_blocks_are_watched_one_after_the_other(ran: Callable[[str], Any], tmp_path: Path) -> None:
    done = ran("for name in ('first', 'second'):\n    with ddpbench.watch(name, quiet=True):\n        train()")
    assert done.returncode == 0, done.stderr
    assert [each.training.workload for each in records(tmp_path)] == ["first", "second"]
    assert len(done.stderr.splitlines()) == 2, "a line each"


@pytest.mark.slow
@pytest.mark.parametrize(("error", "code"), [("ValueError('no such luck')", 1), ("KeyboardInterrupt()", -2)])
def test_exception_of_a_watched_block_passes_on(error: str, code: int, ran: Callable[[str], Any], tmp_path: Path) -> None:
    done = ran(f"with ddpbench.watch():\n    train(fails={error})")
    assert done.returncode == code
    assert "Traceback" in done.stderr
    [summary] = records(tmp_path)
    assert (summary.status, summary.message) == (
        ("failed", "ValueError: no such luck") if code == 1 else ("interrupted", "interrupted by SIGINT")
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "inner",
    [
        "with ddpbench.watch():\n    pass",
        "def again():\n    global problem\n    try:\n        with ddpbench.watch():\n            pass\n    except Exception as error:\n"
        "        problem = error\nthread = threading.Thread(target=again)\nthread.start()\nthread.join()\nraise problem",
    ],
    ids=["nested", "in two threads"],
)
def test_second_block_at_the_same_time_is_refused(inner: str, ran: Callable[[str], Any], tmp_path: Path) -> None:
    done = ran(
        "with ddpbench.watch('outer'):\n    train()\n    try:\n"
        + textwrap.indent(inner, "        ")
        + "\n    except Exception as error:\n        print(error)"
    )
    assert (done.returncode, done.stdout) == (0, "a block is watched already\n"), done.stderr
    assert [each.status for each in records(tmp_path)] == ["ok"]


@pytest.mark.slow
def test_block_without_a_step_says_so(ran: Callable[[str], Any], tmp_path: Path) -> None:
    done = ran("with ddpbench.watch():\n    pass")
    assert done.returncode == 0
    assert "training made no step with an optimizer" in done.stderr


def test_record_is_loaded_as_a_typed_summary() -> None:
    summary = ddpbench.load(ROOT / "results" / "watch" / "train-images-2-h100.json")
    assert summary.verdict is not None
    assert (summary.verdict.kind, summary.verdict.cause) == ("data-bound", "too-few-workers")
    with pytest.raises(UsageError, match="cannot read"):
        ddpbench.load("missing.json")


def test_script_that_cannot_be_diagnosed_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BenchError, match=r"'missing.py' was not diagnosed: the command ended with exit code 2"):
        ddpbench.diagnose("missing.py")
    assert "missing.py" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_diagnosed_script_has_a_summary() -> None:
    script = ROOT / "docs" / "examples" / "train_script.py"
    summary = ddpbench.diagnose(script, ["--epochs", "100"], flags=["--time-limit", "40", "-q"])
    assert summary.verdict is not None
    assert summary.verdict.kind == "data-bound"
    assert summary.training.is_script
