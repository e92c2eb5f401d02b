"""The callbacks of Lightning and transformers: one page for all ranks, whatever starts them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ddpbench
from ddpbench.record.job_summary import JobSummary

pytestmark = [pytest.mark.slow, pytest.mark.timeout(110)]

ONE_RANK = [sys.executable]
TWO_RANKS = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]

LIGHTNING = """
import sys
import lightning, torch
from ddpbench.callbacks.lightning import WatchCallback

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 8)

    def training_step(self, batch, index):
        if index == 30 and "fail" in sys.argv:
            raise ValueError("no such luck")
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

if __name__ == "__main__":
    data = torch.utils.data.TensorDataset(torch.randn(1600, 64), torch.zeros(1600, dtype=torch.long))
    devices = 2 if "two" in sys.argv else 1
    trainer = lightning.Trainer(
        accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto", max_epochs=3, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[WatchCallback()],
    )
    trainer.fit(Net(), torch.utils.data.DataLoader(data, 8))
    print("after")
"""

TRANSFORMERS = """
import sys
import torch, transformers
from ddpbench.callbacks.transformers import WatchCallback

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 8)

    def forward(self, inputs, labels):
        if "fail" in sys.argv and torch.rand(()) > 0.97:
            raise ValueError("no such luck")
        return {"loss": torch.nn.functional.cross_entropy(self.layer(inputs), labels)}

if __name__ == "__main__":
    data = [{"inputs": torch.randn(64), "labels": torch.tensor(0)} for _ in range(1600)]
    arguments = transformers.TrainingArguments(
        "trained", use_cpu=True, num_train_epochs=3, save_strategy="no", report_to=[], disable_tqdm=True
    )
    trainer = transformers.Trainer(Net(), arguments, train_dataset=data, callbacks=[WatchCallback()])
    trainer.train()
    print("after")
"""


@pytest.fixture
def train(launch: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Run a script in a folder of its own, with the launcher and the words that it gets."""

    def go(script: str, launcher: list[str], *words: str) -> Any:
        (tmp_path / "train.py").write_text(script)
        return launch([*launcher, "train.py", *words], cwd=tmp_path)

    return go


def summaries(folder: Path) -> list[JobSummary]:
    return [ddpbench.load(path) for path in sorted((folder / "results" / "runs").glob("*.json"))]


@pytest.mark.parametrize(
    ("script", "launcher", "words", "ranks"),
    [
        pytest.param(LIGHTNING, ONE_RANK, ["two"], 2, id="Lightning starts two ranks"),
        pytest.param(TRANSFORMERS, ONE_RANK, [], 1, id="transformers"),
        pytest.param(TRANSFORMERS, TWO_RANKS, [], 2, id="transformers in torchrun"),
    ],
)
def test_training_is_watched_and_has_one_page(
    script: str, launcher: list[str], words: list[str], ranks: int, train: Callable[..., Any], tmp_path: Path
) -> None:
    done = train(script, launcher, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("after") == ranks
    assert done.stderr.count("ddpbench watch  Net  ") == 1
    [summary] = summaries(tmp_path)
    assert (summary.status, summary.training.workload, summary.machine.ranks) == ("ok", "Net", ranks)
    assert summary.figure is not None


@pytest.mark.parametrize("script", [LIGHTNING, TRANSFORMERS], ids=["Lightning", "transformers"])
def test_training_that_fails_keeps_what_was_measured(script: str, train: Callable[..., Any], tmp_path: Path) -> None:
    done = train(script, ONE_RANK, "fail")
    assert done.returncode == 1
    assert "ValueError: no such luck" in done.stderr
    [summary] = summaries(tmp_path)
    assert (summary.status, summary.message) == ("failed", "ValueError: no such luck")


def test_callback_leaves_a_watched_script_to_the_command(train: Callable[..., Any], tmp_path: Path) -> None:
    done = train(LIGHTNING, [*ONE_RANK, "-m", "ddpbench", "watch"])
    assert done.returncode == 0, done.stderr
    [summary] = summaries(tmp_path)
    assert (summary.status, summary.training.workload) == ("ok", "train.py")
