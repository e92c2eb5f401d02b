"""The diff of a script: what it changes, and that the changed script trains, and resumes, with the settings on."""

from __future__ import annotations

import argparse
import copy
import inspect
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ddpbench.loaders.resident import ResidentDataset
from ddpbench.record.remedy import Advice
from ddpbench.record.screening import CureCode
from ddpbench.record.script_diff import EditObstacle, ScriptDiff
from ddpbench.record.verdict import ChangeDataLoader, ChangeTraining
from ddpbench.script.cures.cure import Training
from ddpbench.script.edits.places import TrainingPlaces, training_places
from ddpbench.script.edits.script_edit import CannotEdit, ScriptEdit, compiled_diff
from ddpbench.script.observe.call_sites import CallSites

FUNCTION = """
import torch
from torch import nn

def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))
    optimizer = torch.optim.AdamW(
        net.parameters(),
        lr=1e-2,
    )
    return net, optimizer

made = main()
"""

MODULE = """
import torch as th
net = th.nn.Sequential(th.nn.Conv2d(3, 8, 3), th.nn.ReLU(), th.nn.Flatten(), th.nn.Linear(288, 5))
optimizer = th.optim.SGD(net.parameters(), 0.1, momentum=0.9)
made = net, optimizer
"""


CLASS = """
import torch

class Net(torch.nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.conv, self.head, self.inner = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(288, 5), inner

    def forward(self, images):
        if self.inner is not None:
            self.inner(images)
        return self.head(self.conv(images).relu().flatten(1))

torch.manual_seed(0)
net = Net(Net())
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
made = net, optimizer
"""

BRANCHES = """
import torch
from torch import nn

def main(name, fast=False):
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))
    if fast:
        net = net.half()
    if name == "adam":
        optimizer = torch.optim.Adam(net.parameters())
    elif name.startswith("sgd"):
        if True:
            optimizer = torch.optim.SGD(net.parameters(), 0.1)
    return net, optimizer

if __name__ != "__main__":
    made = main("sgd")
"""

OWN_BRANCH = """
import torch
from torch import nn
if True:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))
    if net:
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
made = net, optimizer
"""

BUILT_IN_BRANCH = """
import torch
from torch import nn
class Trainer:
    def build(self):
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))

    def __init__(self, train=True):
        if train:
            self.build()
            self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)
trainer = Trainer()
made = trainer.net, trainer.optimizer
"""

IMPORTED_IN_BRANCH = """
from torch.nn import Conv2d, Flatten, Linear, Sequential
def main(net, train=True):
    if train:
        import torch
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
    return net, optimizer
made = main(Sequential(Conv2d(3, 8, 3), Flatten(), Linear(288, 5)))
"""

ARGUMENT = """
import torch
from torch import nn
def main(net, train=True):
    if train:
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
    return net, optimizer
made = main(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 5)))
"""

MAIN_BRANCH = """
import torch
from torch import nn
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))
if __name__ != "":
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
made = net, optimizer
"""

KEEP = [
    "def keep_fused(_, state):  # an older checkpoint says that it is not",
    '    for group in state["param_groups"]:',
    '        group["fused"] = True',
    "optimizer.register_load_state_dict_pre_hook(keep_fused)",
]


@pytest.mark.parametrize(
    ("text", "before"),
    [
        (BRANCHES, '    if name == "adam":'),  # all optimizers get it
        (OWN_BRANCH, "    if net:"),  # not before the model is made
        (MAIN_BRANCH, "    optimizer = torch.optim.SGD(net.parameters(), 0.1)"),
        (BUILT_IN_BRANCH, "            self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)"),
        (IMPORTED_IN_BRANCH, "        optimizer = torch.optim.SGD(net.parameters(), 0.1)"),
        (ARGUMENT, "    if train:"),
    ],
    ids=["optimizers", "model", "main", "built", "imported", "argument"],
)
def test_line_of_a_model_comes_before_the_branches_that_choose_an_optimizer(
    text: str, before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = diff_of(text, tmp_path, monkeypatch, "channels-last").splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("+") and "channels_last" in line)
    assert lines[place + 1] == f" {before}"


def made_by(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Training, CallSites]:
    """Run the script at ``path``, which leaves its model and optimizer in ``made``."""
    sites, own = CallSites(), Optimizer.__init__
    monkeypatch.setattr(Optimizer, "__init__", sites.noted(own))
    model, optimizer = runpy.run_path(str(path))["made"]
    monkeypatch.setattr(Optimizer, "__init__", own)
    return Training(models=[model], optimizers=[optimizer], device=torch.device("cpu")), sites


def diff_of(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *cures: CureCode) -> str:
    (folder / "train.py").write_text(text)
    training, sites = made_by(folder / "train.py", monkeypatch)
    return ScriptEdit(training_places(training, None, sites), str(folder)).found(None, cures).text


@pytest.mark.parametrize(
    ("text", "cure", "added"),
    [
        (FUNCTION, "channels-last", ["    net.to(memory_format=torch.channels_last)"]),
        (MODULE, "channels-last", ["net.to(memory_format=th.channels_last)"]),
        (FUNCTION, "fused-kernels", ["    import ddpbench.kernels", "    ddpbench.kernels.fuse(net)"]),
        (FUNCTION, "tf32-products", ['    torch.set_float32_matmul_precision("high")']),
        (MODULE, "tf32-products", ['th.set_float32_matmul_precision("high")']),
        (FUNCTION, "fused-optimizer", ["        lr=1e-2, fused=True,", *(f"    {line}" for line in KEEP)]),
        (MODULE, "fused-optimizer", ["optimizer = th.optim.SGD(net.parameters(), 0.1, momentum=0.9, fused=True)", *KEEP]),
    ],
)
def test_diff_has_the_names_of_the_script(
    text: str, cure: CureCode, added: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diff = diff_of(text, tmp_path, monkeypatch, cure)
    lines = [line[1:] for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert lines == added
    assert diff.startswith("--- a/train.py\n+++ b/train.py\n")


@pytest.mark.parametrize("text", [FUNCTION, MODULE], ids=["function", "module"])
@pytest.mark.parametrize("cures", [["channels-last"], ["fused-optimizer"], ["channels-last", "fused-optimizer"]], ids=" ".join)
def test_changed_script_resumes_an_older_checkpoint_with_the_setting_on(
    text: str, cures: list[CureCode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 steps from a checkpoint of the script as it is: the losses are the same, but for rounding, and the setting holds."""
    (tmp_path / "cure.diff").write_text(diff_of(text, tmp_path, monkeypatch, *cures))
    older, _ = made_by(tmp_path / "train.py", monkeypatch)
    step(older)
    checkpoint = older.models[0].state_dict(), older.optimizers[0].state_dict()
    torch.save(checkpoint, tmp_path / "old.pt")
    subprocess.run(["git", "apply", "cure.diff"], cwd=tmp_path, check=True)
    changed, _ = made_by(tmp_path / "train.py", monkeypatch)
    weights, state = torch.load(tmp_path / "old.pt")
    changed.models[0].load_state_dict(weights)
    changed.optimizers[0].load_state_dict(state)
    if "fused-optimizer" in cures:  # its kernel reads moments in the order of the weights
        moments = [(each, value) for each, values in changed.optimizers[0].state.items() for value in values.values() if value.dim() == 4]
        assert moments
        assert all(each.stride() == value.stride() for each, value in moments)
    for _ in range(200):
        loss, plain = step(changed), step(older)
    assert loss < 0.1
    assert loss == pytest.approx(plain, abs=0.02)
    if "channels-last" in cures:
        assert next(changed.models[0].parameters()).is_contiguous(memory_format=torch.channels_last)
    if "fused-optimizer" in cures:
        assert changed.optimizers[0].param_groups[0]["fused"] is True


def step(training: Training) -> float:
    generator = torch.Generator().manual_seed(1)
    images, labels = torch.randn(4, 3, 8, 8, generator=generator), torch.arange(4)
    training.optimizers[0].zero_grad()
    loss = torch.nn.functional.cross_entropy(training.models[0](images), labels)
    loss.backward()
    training.optimizers[0].step()
    return loss.item()


@pytest.mark.parametrize(
    ("before", "after", "cure", "reason"),
    [
        ("optimizer = th.optim", "optimizer = None; optimizer = th.optim", "channels-last", "no-safe-place"),
        ("momentum=0.9)", "**{'momentum': 0.9})", "fused-optimizer", "no-safe-place"),
        (
            "optimizer = th.optim.SGD(net.parameters(), 0.1, momentum=0.9)\n",
            "all_ = [th.optim.SGD(net.parameters(), 0.1)]\noptimizer = all_[0]\n",
            "fused-optimizer",
            "no-safe-place",
        ),
        ("net = ", "nets = [0]\nnets[0] = ", "channels-last", "no-name"),
        ("optimizer = th.optim.SGD(net", "optimizer = [th.optim.SGD(n", "channels-last", "no-safe-place"),
        ("made", "made", "bf16-autocast", "no-safe-place"),  # every Sequential would compute so
    ],
)
def test_without_a_safe_place_there_is_no_diff(
    before: str, after: str, cure: CureCode, reason: EditObstacle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = MODULE.replace(before, after, 1)
    if text.startswith("\nimport") and "[th.optim.SGD(n." in text:
        text = text.replace("momentum=0.9)", "momentum=0.9) for n in [net]][0]")
    if reason == "no-name":
        text = text.replace("net.parameters()", "nets[0].parameters()").replace("made = net", "made = nets[0]")
    with pytest.raises(CannotEdit) as refused:
        diff_of(text, tmp_path, monkeypatch, cure)
    assert refused.value.reason == reason


def test_source_that_has_changed_since_is_not_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(MODULE)
    training, sites = made_by(tmp_path / "train.py", monkeypatch)
    (tmp_path / "train.py").write_text(f"{MODULE}\n")
    with pytest.raises(CannotEdit, match="source-changed"):
        ScriptEdit(training_places(training, None, sites), str(tmp_path)).found(None, ["channels-last"])


def test_nothing_to_edit_is_no_diff(tmp_path: Path) -> None:
    with pytest.raises(CannotEdit, match="no-source"):
        ScriptEdit(training_places(Training([], [], torch.device("cpu")), None, CallSites()), str(tmp_path)).found(None, ["channels-last"])


def test_source_of_a_library_is_not_edited(tmp_path: Path) -> None:
    sites = CallSites()
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    assert "torch" in sys.modules
    with pytest.raises(CannotEdit, match="no-source"):
        ScriptEdit(training_places(Training([model], [optimizer], torch.device("cpu")), None, sites), str(tmp_path)).found(
            None, ["fused-optimizer"]
        )


LOADER = """
import argparse
import torch
from torch.utils.data import DataLoader, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--pin", action="store_true")
args = parser.parse_args()
data = TensorDataset(torch.randn(8, 2))
options = {"num_workers": args.workers}
class Own(DataLoader):
    def __init__(self, data, size):
        super().__init__(data, batch_size=size)
made = DataLoader(
    CALL
)
"""


def loader_edit(call: str, folder: Path, monkeypatch: pytest.MonkeyPatch, change: ChangeDataLoader) -> ScriptDiff:
    (folder / "train.py").write_text(LOADER.replace("CALL", call))
    sites, own, parse = CallSites(), DataLoader.__init__, argparse.ArgumentParser.parse_known_args
    monkeypatch.setattr(DataLoader, "__init__", sites.noted(own))
    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", sites.noted_parse(parse))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    loader = runpy.run_path(str(folder / "train.py"))["made"]
    monkeypatch.setattr(DataLoader, "__init__", own)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", parse)
    places = training_places(Training([], [], torch.device("cpu")), loader, sites)
    return ScriptEdit(places, str(folder)).found(change, [])


WORKERS = ChangeDataLoader(num_workers=3, persistent_workers=True, prefetch_factor=4)
GUARDED = "prefetch_factor=4 if args.workers else None, persistent_workers=args.workers > 0"


@pytest.mark.parametrize(
    ("call", "change", "arguments", "after"),
    [
        ("data, num_workers=args.workers,", ChangeDataLoader(num_workers=3), "--workers 3", ""),
        ("data, num_workers=args.workers,", WORKERS, "--workers 3", f"data, num_workers=args.workers, {GUARDED},"),
        ("data, num_workers=0", WORKERS, "", "data, num_workers=3, prefetch_factor=4, persistent_workers=True"),
        ("data, num_workers=args.workers // 2", ChangeDataLoader(num_workers=3), "", "data, num_workers=3"),
        ("data, 2, False", WORKERS, "", "data, 2, False, num_workers=3, prefetch_factor=4, persistent_workers=True"),
        ("data, **options", ChangeDataLoader(num_workers=3), "--workers 3", ""),
        ("data, 2, False, None, None, args.workers", ChangeDataLoader(num_workers=3), "--workers 3", ""),
        ("data", ChangeDataLoader(num_workers=0, in_order=False), "", "data, in_order=False"),
        ("data, pin_memory=args.pin", ChangeDataLoader(pin_memory=True), "--pin", ""),
        ("data", ChangeDataLoader(pin_memory=True), "", "data, pin_memory=True"),
        ("data, batch_size=(8 // 2)", ChangeDataLoader(pin_memory=True), "", "data, batch_size=(8 // 2), pin_memory=True"),
        (
            "data, num_workers=0 if args.pin else 0",
            ChangeDataLoader(prefetch_factor=4),
            "",
            "data, num_workers=0 if args.pin else 0, prefetch_factor=4 if (0 if args.pin else 0) else None",
        ),
    ],
)
def test_loader_changes_by_its_call_or_by_the_arguments_of_the_script(
    call: str, change: ChangeDataLoader, arguments: str, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = loader_edit(call, tmp_path, monkeypatch, change)
    assert found.arguments == arguments
    assert [each[1:].strip() for each in found.text.splitlines() if each.startswith("+    ")] == ([after] if after else [])


RETURNED = """
import torch
from torch.utils.data import DataLoader, TensorDataset
class Loaders:
    def build(self):
        if True:
            return DataLoader(
                TensorDataset(torch.randn(8, 2)),
                batch_size=2,  # rows
            )
made = Loaders().build()
"""


@pytest.mark.parametrize(
    ("text", "on_gpu", "lines"),
    [
        (LOADER.replace("CALL", "data, 2"), False, ["from ddpbench.loaders import resident", "made = resident(made)"]),
        (LOADER.replace("CALL", "data, 2"), True, ["from ddpbench.loaders import resident", 'made = resident(made, "cpu")']),
        (RETURNED, False, ["from ddpbench.loaders import resident", "return resident(DataLoader(", "))"]),
    ],
    ids=["assigned", "on the CPU of a machine with GPUs", "returned"],
)
def test_resident_data_take_the_place_of_the_loader(
    text: str, on_gpu: bool, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "LOADER", text)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    found = loader_edit("", tmp_path, monkeypatch, ChangeDataLoader(resident=True))
    monkeypatch.undo()
    assert [each[1:].strip() for each in found.text.splitlines() if each.startswith("+") and not each.startswith("+++")] == lines
    (tmp_path / "cure.diff").write_text(found.text)
    subprocess.run(["git", "apply", "cure.diff"], cwd=tmp_path, check=True)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    made = runpy.run_path(str(tmp_path / "train.py"))["made"]
    assert isinstance(made.dataset, ResidentDataset)
    assert len(list(made)) == 4


def test_images_decoded_on_the_gpu_take_the_place_of_the_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "LOADER", LOADER.replace("CALL", "data, 2"))
    found = loader_edit("", tmp_path, monkeypatch, ChangeDataLoader(decode_on_gpu=True))
    added = [each[1:].strip() for each in found.text.splitlines() if each.startswith("+") and not each.startswith("+++")]
    assert added == ["from ddpbench.loaders import decode_on_gpu", "made = decode_on_gpu(made)"]
    monkeypatch.setattr(sys, "argv", ["train.py"])
    (tmp_path / "cure.diff").write_text(found.text)
    subprocess.run(["git", "apply", "cure.diff"], cwd=tmp_path, check=True)
    with pytest.warns(UserWarning, match="leaves the loader as it is: the class of its dataset is TensorDataset"):
        assert len(list(runpy.run_path(str(tmp_path / "train.py"))["made"])) == 4


SEVERAL = """
import torch
from torch.utils.data import DataLoader, TensorDataset
def loader(rows):
    made = DataLoader(TensorDataset(torch.randn(rows, 2)))
    return made
made, validation = loader(8), loader(4)
"""
NAMED = LOADER.replace("CALL", "data, 2").replace("options =", "resident =")


@pytest.mark.parametrize(("text", "reason"), [(SEVERAL, "by-hand"), (NAMED, "no-safe-place")], ids=["for validation too", "name is taken"])
def test_resident_data_take_no_other_place(text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "LOADER", text)
    with pytest.raises(CannotEdit, match=reason):
        loader_edit("", tmp_path, monkeypatch, ChangeDataLoader(resident=True))


def test_training_with_resident_data_resumes_and_has_the_same_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 steps, and 200 more from a checkpoint that was written before the change."""
    monkeypatch.setattr(sys.modules[__name__], "LOADER", LOADER.replace("CALL", "data, 2, shuffle=True"))
    found = loader_edit("", tmp_path, monkeypatch, ChangeDataLoader(resident=True))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    path = tmp_path / "train.py"
    first, checkpoint = losses_of(path, None)
    resumed, _ = losses_of(path, checkpoint)
    (tmp_path / "cure.diff").write_text(found.text)
    subprocess.run(["git", "apply", "cure.diff"], cwd=tmp_path, check=True)
    assert losses_of(path, None)[0] == first
    assert losses_of(path, checkpoint)[0] == resumed
    assert first[-1] < first[0]


def losses_of(path: Path, checkpoint: tuple[Any, Any] | None) -> tuple[list[float], tuple[Any, Any]]:
    """Those of 200 steps on the loader of the script, and a checkpoint at their end."""
    torch.manual_seed(2)
    loader, model = runpy.run_path(str(path))["made"], torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.5)
    if checkpoint:
        model.load_state_dict(copy.deepcopy(checkpoint[0]))
        optimizer.load_state_dict(copy.deepcopy(checkpoint[1]))
    losses = []
    for _ in range(50):
        for (rows,) in loader:
            loss = (model(rows) - rows.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, (model.state_dict(), optimizer.state_dict())


@pytest.mark.parametrize(
    ("call", "change", "reason"),
    [
        ("data, **{'num_workers': 1}", ChangeDataLoader(num_workers=3), "no-safe-place"),
        ("data, 2, False, None, None, 1", ChangeDataLoader(num_workers=3), "no-safe-place"),
        ("data, **options", ChangeDataLoader(persistent_workers=True), "no-safe-place"),
        ("data", ChangeDataLoader(num_workers=3, divide_samples=True), "by-hand"),
        ("data", ChangeDataLoader(ready_indices=True), "by-hand"),
    ],
)
def test_loader_that_cannot_be_edited_is_left_to_the_user(
    call: str, change: ChangeDataLoader, reason: EditObstacle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CannotEdit) as refused:
        loader_edit(call, tmp_path, monkeypatch, change)
    assert refused.value.reason == reason


def test_forward_in_bfloat16_is_that_of_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It trains as before within the precision, copies have it, and nothing is left switched on, also where modules contain their like."""
    (tmp_path / "cure.diff").write_text(diff_of(CLASS, tmp_path, monkeypatch, "channels-last", "bf16-autocast"))
    plain, _ = made_by(tmp_path / "train.py", monkeypatch)
    subprocess.run(["git", "apply", "cure.diff"], cwd=tmp_path, check=True)
    changed, _ = made_by(tmp_path / "train.py", monkeypatch)
    (model,) = changed.models
    assert next(model.parameters()).is_contiguous(memory_format=torch.channels_last)
    checkpoint = plain.models[0].state_dict(), plain.optimizers[0].state_dict()
    model.load_state_dict(checkpoint[0])
    changed.optimizers[0].load_state_dict(checkpoint[1])
    images = torch.randn(4, 3, 8, 8)
    for each in (model, copy.deepcopy(model)):
        assert (each.train()(images).dtype, each.eval()(images).dtype) == (torch.bfloat16, torch.float32)
        assert not torch.is_autocast_enabled("cpu")
    assert list(inspect.signature(model.forward).parameters) == ["images"]
    model.train()
    for _ in range(200):
        loss, before = step(changed), step(plain)
    assert loss < 0.1
    assert loss == pytest.approx(before, abs=0.05)


def test_loader_of_a_subclass_has_arguments_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = LOADER.replace("made = DataLoader(", "made = Own(")
    monkeypatch.setattr(sys.modules[__name__], "LOADER", text)
    with pytest.raises(CannotEdit, match="no-safe-place"):
        loader_edit("data, 2", tmp_path, monkeypatch, ChangeDataLoader(num_workers=3))


@pytest.mark.parametrize(
    ("text", "cures", "missing", "lines"),
    [
        (FUNCTION, ["channels-last"], "loader", ["    net.to(memory_format=torch.channels_last)"]),
        (FUNCTION.replace("        lr=1e-2,", "        **{'lr': 1e-2},"), ["channels-last", "fused-optimizer"], None, None),
    ],
    ids=["model", "neither"],
)
def test_part_with_a_safe_place_is_edited_without_the_other(
    text: str, cures: list[CureCode], missing: str | None, lines: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library makes the loader, and of settings of computing all are edited, or none."""
    (tmp_path / "train.py").write_text(text)
    training, sites = made_by(tmp_path / "train.py", monkeypatch)
    edit = ScriptEdit(training_places(training, None, sites), str(tmp_path))
    if lines is None:
        with pytest.raises(CannotEdit, match="no-source"):
            edit.found(ChangeDataLoader(num_workers=3), cures)
        return
    found = edit.found(ChangeDataLoader(num_workers=3), cures)
    assert (found.missing, found.obstacle) == (missing, "no-source")
    assert [line[1:] for line in found.text.splitlines() if line.startswith("+") and not line.startswith("+++")] == lines


def advice(*cures: CureCode) -> Advice:
    return Advice(code="screened", computing=ChangeTraining(cures=[*cures]))


def test_models_are_compiled_besides_what_is_advised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler fuses kernels by itself."""
    (tmp_path / "train.py").write_text(FUNCTION)
    training, sites = made_by(tmp_path / "train.py", monkeypatch)
    places = training_places(training, None, sites)
    assert compiled_diff(advice(), places, str(tmp_path)) is None, "on a CPU"
    found = compiled_diff(advice("channels-last", "fused-kernels"), replace(places, can_compile=True), str(tmp_path))
    assert found is not None
    added = [each for each in found.text.splitlines() if each.startswith("+ ")]
    assert added == ["+    net.compile()", "+    net.to(memory_format=torch.channels_last)"]
    (tmp_path / "cure.diff").write_text(found.text)
    subprocess.run(["git", "apply", "cure.diff"], cwd=tmp_path, check=True)
    changed, _ = made_by(tmp_path / "train.py", monkeypatch)
    assert changed.is_compiled
    assert compiled_diff(advice(), replace(TrainingPlaces(models=[None]), can_compile=True), str(tmp_path)) is None, "no safe place"


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(which("c++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_script_resumes_an_older_checkpoint_with_the_same_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 steps, with weights in channels-last order, too."""
    (tmp_path / "train.py").write_text(FUNCTION)
    older, sites = made_by(tmp_path / "train.py", monkeypatch)
    found = compiled_diff(advice("channels-last"), replace(training_places(older, None, sites), can_compile=True), str(tmp_path))
    assert found is not None
    step(older)
    checkpoint = copy.deepcopy((older.models[0].state_dict(), older.optimizers[0].state_dict()))
    (tmp_path / "cure.diff").write_text(found.text)
    subprocess.run(["git", "apply", "cure.diff"], cwd=tmp_path, check=True)
    changed, _ = made_by(tmp_path / "train.py", monkeypatch)
    changed.models[0].load_state_dict(checkpoint[0])
    changed.optimizers[0].load_state_dict(checkpoint[1])
    for _ in range(200):
        loss, plain = step(changed), step(older)
    assert changed.is_compiled
    assert loss < 0.1
    assert loss == pytest.approx(plain, abs=0.02)
    assert list(changed.models[0].state_dict()) == list(checkpoint[0]), "checkpoints of both go into each other"
