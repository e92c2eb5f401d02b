"""Where objects were made, and that noting it keeps nothing alive."""

from __future__ import annotations

import argparse
import gc
import runpy
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

from ddpbench.script.observe.call_sites import CallSites


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> CallSites:
    noted = CallSites()
    for cls in (Optimizer, DataLoader):
        monkeypatch.setattr(cls, "__init__", noted.noted(cls.__init__))
    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", noted.noted_parse(argparse.ArgumentParser.parse_known_args))
    return noted


def run(folder: Path, text: str) -> SimpleNamespace:
    """Run a script, and return its variables."""
    (folder / "train.py").write_text(text)
    return SimpleNamespace(**runpy.run_path(str(folder / "train.py")))


def test_place_is_the_line_of_the_user_and_has_the_names_of_its_variables(sites: CallSites, tmp_path: Path) -> None:
    made = run(
        tmp_path,
        "import torch as t\n"
        "from torch.optim import AdamW as Optim\n"
        "class Trainer:\n"
        "    def __init__(self, head):\n"
        "        self.body = t.nn.Linear(2, 2)\n"
        "        self.optimizer = Optim(\n"
        "            [*self.body.parameters(), *head.parameters()])\n"
        "head = t.nn.Linear(2, 2)\n"
        "trainer = Trainer(head)\n",
    )
    site = sites.of(made.trainer.optimizer)
    assert site is not None
    assert (site.path, site.line in (6, 7), site.is_direct, site.torch_name) == (str(tmp_path / "train.py"), True, True, "t")
    assert site.class_name == "AdamW"
    assert {site.model_names[id(each)] for each in (made.head, made.trainer.body)} == {"head", "self.body"}


def test_class_of_the_user_is_made_where_it_is_called(sites: CallSites, tmp_path: Path) -> None:
    made = run(
        tmp_path,
        "import torch\n"
        "from torch.utils.data import DataLoader\n"
        "class Own(DataLoader):\n"
        "    def __init__(self, data, **options):\n"
        "        super().__init__(data, batch_size=2, **options)\n"
        "loader = Own(range(8), num_workers=0)\n",
    )
    site = sites.of_loader(made.loader)
    assert site is not None
    assert (site.line, site.class_name, site.is_direct, site.is_of_subclass) == (6, "Own", True, True)


SAME = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.zeros(8))
loader = DataLoader(data)
"""


def test_loader_that_a_library_makes_again_is_that_of_the_same_dataset(sites: CallSites, tmp_path: Path) -> None:
    made = run(tmp_path, SAME)
    again: Any = DataLoader.__new__(DataLoader)  # not by a line of the user
    again.dataset = made.loader.dataset
    del made.loader
    found = sites.of_loader(again)
    assert found is not None
    assert found.line == 4
    again.dataset = TensorDataset(torch.zeros(8))
    assert sites.of_loader(again) is None


def test_one_of_two_loaders_of_the_dataset_is_not_guessed(sites: CallSites, tmp_path: Path) -> None:
    made = run(tmp_path, f"{SAME}evaluated = DataLoader(data, batch_size=4)\n")
    again: Any = DataLoader.__new__(DataLoader)
    again.dataset = made.data
    assert sites.of_loader(again) is None
    assert sites.of_loader(made.loader) is not None


@pytest.mark.parametrize(("call", "expected"), [("cProfile.Profile().runcall", (3, False)), ("pool.submit", None)])
def test_call_of_a_library_is_no_direct_place(sites: CallSites, tmp_path: Path, call: str, expected: tuple[int, bool] | None) -> None:
    made = run(
        tmp_path,
        "import concurrent.futures, cProfile, torch\n"
        "net, pool = torch.nn.Linear(2, 2), concurrent.futures.ThreadPoolExecutor(1)\n"
        f"made = {call}(torch.optim.SGD, net.parameters(), 0.1)\n"
        "optimizer = made if isinstance(made, torch.optim.SGD) else made.result()\n",
    )
    site = sites.of(made.optimizer)
    assert (site and (site.line, site.is_direct)) == expected


def test_what_a_function_deletes_is_freed(sites: CallSites, tmp_path: Path) -> None:
    """Reading the variables of a running function must not keep them."""
    made = run(
        tmp_path,
        "import gc, torch, weakref\n"
        "def main():\n"
        "    net, checkpoint = torch.nn.Linear(2, 2), torch.nn.Linear(3, 3)\n"
        "    optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        "    before = weakref.ref(checkpoint)\n"
        "    del checkpoint\n"
        "    gc.collect()\n"
        "    return optimizer, before() is None, net\n"
        "optimizer, is_freed, net = main()\n",
    )
    assert made.is_freed
    assert sites.of(made.optimizer)


@pytest.mark.parametrize(
    ("before", "after"),
    [("config = locals()", "assert config['lr'] == 0.1"), ("exec('rate = 0.2')", "assert eval('rate') == 0.2 and eval('lr') == 0.1")],
)
def test_variables_that_a_function_has_asked_for_stay(sites: CallSites, tmp_path: Path, before: str, after: str) -> None:
    made = run(
        tmp_path,
        "import torch\n"
        "def main(lr=0.1):\n"
        "    net = torch.nn.Linear(2, 2)\n"
        f"    {before}\n"
        "    optimizer = torch.optim.SGD(net.parameters(), lr)\n"
        f"    {after}\n"
        "    return optimizer\n"
        "optimizer = main()\n",
    )
    assert sites.of(made.optimizer)


def test_site_goes_with_its_object(sites: CallSites) -> None:
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None


def test_constructor_raises_what_it_raised_before(sites: CallSites) -> None:
    with pytest.raises(ValueError, match="empty parameter list"):
        torch.optim.SGD([], 0.1)
    with pytest.raises(TypeError):
        torch.optim.SGD()


def test_arguments_are_kept_as_they_were_parsed(sites: CallSites, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    monkeypatch.setattr(sys, "argv", ["train.py", "--workers", "6"])
    options: Any = parser.parse_args()
    options.workers //= 2
    parser.parse_args(["--workers", "9"])  # not of the command line
    assert [(each.values, each.words) for each in sites.arguments] == [({"workers": 6}, ["--workers", "6"])]


def test_arguments_of_trainers_are_of_the_only_place_with_so_many_workers(sites: CallSites, tmp_path: Path) -> None:
    text = (
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class TrainingArguments:\n"
        "    dataloader_num_workers: int = 0\n"
        "    def __post_init__(self): pass\n"
        "NOTED\n"
        "first = TrainingArguments(2)\n"
    )
    noted = text.replace("NOTED", "TrainingArguments.__post_init__ = NOTE(TrainingArguments.__post_init__)")
    for last, expected in (("", {2: 7, 3: None}), ("second = TrainingArguments(2)\n", {2: None})):
        own = CallSites()
        (tmp_path / "train.py").write_text(noted + last)
        runpy.run_path(str(tmp_path / "train.py"), {"NOTE": own.noted_arguments})
        assert {workers: site and site.line for workers in expected for site in [own.of_trainer(workers)]} == expected
