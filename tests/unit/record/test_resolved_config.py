"""ResolvedConfig: the fields and flags of a Config without open defaults."""

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
def test_resolved_config_has_no_open_fields(workload: str, cuda: bool) -> None:
    settled = resolve_config(Config(workload=workload), cuda, 1)
    assert msgspec.convert(msgspec.to_builtins(settled), ResolvedConfig) == settled


def test_resolved_config_serializes_like_a_requested_config() -> None:
    settled = resolve_config(Config(workload="resnet50", lr=0.1, steps=3), True, 1)
    asked = Config(**msgspec.structs.asdict(settled))
    assert msgspec.json.encode(settled) == msgspec.json.encode(asked)
    assert settled.to_argv() == asked.to_argv()
    assert {"--lr", "--batch-size", "--loader"} < set(settled.to_argv())


def test_record_with_unresolved_config_is_rejected(tmp_path: Path) -> None:
    told = msgspec.to_builtins(records.job(records.record()))
    told["records"][0]["config"]["batch_size"] = None
    (tmp_path / "open.json").write_text(json.dumps(told))
    with pytest.raises(UsageError, match="batch_size"):
        load(tmp_path / "open.json")
