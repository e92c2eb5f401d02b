"""A settled Config: the fields and flags of a Config, and nothing left open that a machine fills in."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import records

from ddpbench.bench.resolve import resolve_config
from ddpbench.record.config import Config, ResolvedConfig
from ddpbench.record.errors import UsageError
from ddpbench.record.io import load


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize("workload", ["resnet50", "wrn28x10-cifar10", "mnist-cnn", "gemm-mlp", "disc-mlp-3"])
def test_a_machine_fills_in_whatever_is_its_to_fill_in(workload: str, cuda: bool) -> None:
    settled = resolve_config(Config(workload=workload), cuda, 1)
    assert msgspec.convert(msgspec.to_builtins(settled), ResolvedConfig) == settled


def test_it_is_written_and_typed_as_the_same_config_that_somebody_asked_for() -> None:
    settled = resolve_config(Config(workload="resnet50", lr=0.1, steps=3), True, 1)
    asked = Config(**msgspec.structs.asdict(settled))
    assert msgspec.json.encode(settled) == msgspec.json.encode(asked)
    assert settled.to_argv() == asked.to_argv()
    assert {"--lr", "--batch-size", "--loader"} < set(settled.to_argv())


def test_a_record_that_leaves_open_what_was_trained_on_is_refused(tmp_path: Path) -> None:
    told = msgspec.to_builtins(records.job(records.record()))
    told["records"][0]["config"]["batch_size"] = None
    (tmp_path / "open.json").write_text(json.dumps(told))
    with pytest.raises(UsageError, match="batch_size"):
        load(tmp_path / "open.json")
