"""The diff of what a diagnosis advises: git applies it to the script, and the command beside it proves it."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import PLAIN, SUPPORT, TORCHRUN, only_job

from ddpbench.record.io import load
from ddpbench.record.script_diff import ScriptDiff
from ddpbench.report.summarize_job import summarize_job
from ddpbench.script.diagnose.screening import COMPARED_UPDATES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]

QUICK = str(SUPPORT / "quick_screening.py")
Launch = Callable[..., Any]

READS = """
import argparse, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Readings(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.randn(8), index % 4

parser = argparse.ArgumentParser()
parser.add_argument("--workers", "-j", type=int, default=0)
args = parser.parse_args()
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(Readings(), batch_size=8, num_workers=args.workers)
for epoch in range(1000):
    for x, y in loader:
        time.sleep(0.01)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

TRAINER = """
import tempfile, time
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

class Sentences(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        time.sleep(0.004)
        return {"input_ids": torch.randint(100, (8,)), "labels": torch.tensor(index % 2)}

training = TrainingArguments(
    output_dir=tempfile.gettempdir(),
    num_train_epochs=100,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    dataloader_num_workers=0,
)
shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
Trainer(model=BertForSequenceClassification(BertConfig(vocab_size=100, **shape)), args=training, train_dataset=Sentences()).train()
"""

UPDATES = """
import os
import torch as th
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

class Trainer:
    def __init__(self):
        net = th.nn.Sequential(*[th.nn.Linear(8, 8) for _ in range(150)])
        if os.environ.get("WORLD_SIZE", "1") != "1":
            th.distributed.init_process_group("gloo")
            net = DDP(net)
        self.net = net
        self.optimizer = th.optim.AdamW(net.parameters(), 1e-3)

trainer = Trainer()
data = DataLoader(TensorDataset(th.randn(64000, 8)), batch_size=8)
for epoch in range(1000):
    for (x,) in data:
        trainer.optimizer.zero_grad()
        trainer.net(x).square().mean().backward()
        trainer.optimizer.step()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (made := tmp_path / "sources").mkdir()
    (made / "reads.py").write_text(READS)
    (made / "updates.py").write_text(UPDATES)
    (made / "trainer.py").write_text(TRAINER)
    return made


def only_diff(folder: Path) -> ScriptDiff:
    """The diff of the only job, which is in its file, applies, and is in the summary."""
    job = only_job(folder / "runs")
    assert job.diagnosis
    assert job.diagnosis.diff, job.diagnosis.advice
    diff = job.diagnosis.diff
    assert diff.obstacle is None
    assert (folder / diff.file).read_text().endswith(diff.text)
    advice = summarize_job(job).advice
    assert advice
    assert (advice.diff_file, advice.script_arguments, advice.proof_command) == (diff.file if diff.text else "", diff.arguments, diff.proof)
    subprocess.run(["git", "apply", "--check", diff.file], cwd=folder, check=bool(diff.text))
    return diff


def proved(folder: Path, diff: ScriptDiff, launch: Launch) -> None:
    command = shlex.split(diff.proof)
    assert command[:2] == ["ddpbench", "ab"]
    done = launch([*PLAIN, "ab", "--steps", "60", "-o", "proofs", *command[2:]], cwd=folder, timeout=150)
    assert done.returncode == 0, done.stderr
    proof = only_job(folder / "proofs").proof
    assert proof
    assert proof.gain
    assert proof.gain.center > 1.2
    assert not proof.problems


def test_workers_come_from_the_argument_of_the_script(launch: Launch, folder: Path) -> None:
    done = launch([*PLAIN, "diagnose", "--time-limit", "40", "-o", "runs", "reads.py", "-j", "0"], cwd=folder, timeout=150)
    assert done.returncode == 0, done.stderr
    diff = only_diff(folder)
    assert diff.arguments.startswith("--workers ")
    assert diff.command == f"reads.py -j 0 {diff.arguments}"
    assert "persistent_workers=args.workers > 0" in diff.text or "persistent_workers" not in done.stderr
    assert f"  run   {diff.command}" in done.stderr
    assert (folder / "reads.py").read_text() == READS, "the source is left alone"
    proved(folder, diff, launch)


def test_workers_of_a_trainer_are_its_arguments(launch: Launch, folder: Path) -> None:
    pytest.importorskip("transformers")
    done = launch([*PLAIN, "diagnose", "--time-limit", "40", "-o", "runs", "trainer.py"], cwd=folder, timeout=200)
    assert done.returncode == 0, done.stderr
    diff = only_diff(folder)
    assert not diff.arguments
    assert "-    dataloader_num_workers=0,\n+    dataloader_num_workers=" in diff.text
    subprocess.run(["git", "apply", diff.file], cwd=folder, check=True)
    done = launch([*PLAIN, "watch", "--steps", "40", "-o", "watched", "trainer.py"], cwd=folder, timeout=100)
    assert done.returncode == 0, done.stderr
    assert only_job(folder / "watched").records[0].workers > 0


def test_fused_optimizer_is_a_keyword_and_lasts_after_a_resume(launch: Launch, folder: Path) -> None:
    """In a module exported from a notebook, whose source is read-only."""
    (folder / "exported").mkdir()
    source = folder / "exported" / "updates.py"
    source.write_text(f"#!/usr/bin/env python\n# coding: utf-8\n\n# In[1]:\n{UPDATES}")
    source.chmod(0o444)
    words = ["diagnose", "--time-limit", "40", "-o", "runs", "-m", "exported.updates"]
    done = launch([*TORCHRUN[:-2], QUICK, *words], cwd=folder, timeout=150)
    assert done.returncode == 0, done.stderr
    diff = only_diff(folder)
    assert diff.arguments == diff.command == ""
    assert "+        self.optimizer = th.optim.AdamW(net.parameters(), 1e-3, fused=True)\n" in diff.text
    assert "+        self.optimizer.register_load_state_dict_pre_hook(keep_fused)\n" in diff.text
    assert all(f"        {line}".rstrip() in done.stderr for line in diff.text.splitlines() if len(line) < 72)
    assert diff.text.startswith("--- a/exported/updates.py\n")
    assert "--gpus 2" in diff.proof
    diagnosis = only_job(folder / "runs").diagnosis
    assert diagnosis
    assert diagnosis.screening
    steps = diagnosis.screening.loss_comparison
    assert steps
    assert (steps.cures, [*map(len, (*steps.plain, steps.changed))]) == (["fused-optimizer"], [COMPARED_UPDATES] * 3)
    proved(folder, diff, launch)


@pytest.mark.parametrize("ranks", [1, 2])
def test_diagnosis_ends_with_the_proof_if_there_is_time(launch: Launch, folder: Path, ranks: int) -> None:
    flags = ["--gpus", "2"] if ranks == 2 else []
    done = launch([sys.executable, QUICK, "diagnose", "--time-limit", "150", *flags, "-o", "runs", "updates.py"], cwd=folder, timeout=250)
    assert done.returncode == 0, done.stderr
    jobs = {job.kind: job for path in (folder / "runs").glob("*.json") for job in [load(path)]}
    assert jobs.keys() == {"diagnose", "ab"}, done.stderr
    diagnosis, proof = jobs["diagnose"].diagnosis, jobs["ab"].proof
    assert diagnosis
    assert diagnosis.diff
    assert diagnosis.diff.plan
    assert proof
    assert (proof.steps, len(proof.launches), proof.problems) == (diagnosis.diff.plan.steps, 4, [])
    assert proof.gain
    assert proof.gain.center > 1.1, "other load decides whether that is proved"
    assert jobs["ab"].records[0].world_size == ranks
    screened, begun = done.stderr.index("NOT PROVED"), done.stderr.index("ddpbench: proving the change: 4 launches of ")
    assert screened < begun < done.stderr.index("ddpbench ab  updates.py")


def test_proof_that_cannot_be_started_takes_nothing_from_the_diagnosis(launch: Launch, folder: Path) -> None:
    """The script needs a server that accepts one connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: (server.accept(), server.close()), daemon=True).start()
        connect = f"import socket\nconnection = socket.create_connection(('127.0.0.1', {server.getsockname()[1]}))\n"
        (folder / "updates.py").write_text(connect + UPDATES)
        done = launch([sys.executable, QUICK, "diagnose", "--time-limit", "75", "-o", "runs", "updates.py"], cwd=folder, timeout=250)
    assert done.returncode == 0, done.stderr
    _, _, proof = done.stderr.partition("ddpbench: proving the change: 4 launches of ")
    assert "ConnectionRefusedError" in proof
    assert "the launch as it is has no figure" in proof
