"""Every way to use ddpbench in a notebook prints in the cell, run by a real kernel."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "watch" / "train-script.json"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(110)]

TRAINING = """
import torch
import ddpbench

model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.randn(1600, 64), torch.zeros(1600, dtype=torch.long))
with ddpbench.watch("in a cell"):
    for inputs, targets in torch.utils.data.DataLoader(data, 8):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
"""


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The text below each of the cells."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "train.py").write_text(TRAINING.replace('with ddpbench.watch("in a cell")', "for _ in range(2)"))
    cells = [TRAINING, f"!ddpbench report {RECORD}", "!python -m ddpbench watch train.py", "%run -m ddpbench watch train.py", TRAINING]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=90, resources={"metadata": {"path": str(tmp_path)}}).execute()
    texts = ["".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells]
    return [re.sub(r"\x1b\[[\d;]*m", "", text) for text in texts]


def test_page_is_printed_below_each_cell(printed: list[str]) -> None:
    block, report, command, magic, again = printed
    assert "ddpbench watch  in a cell  torch-default  Linear  SGD" in block
    assert "train_script.py" in report
    assert "ddpbench watch  train.py  torch-default  Linear  SGD" in command
    assert "ddpbench watch  train.py  torch-default  Linear  SGD" in magic
    assert "ddpbench watch  in a cell  " in again, "the command before it has left nothing behind"
