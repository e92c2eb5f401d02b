"""ResolvedConfig: the fields and flags of a Config, with all automatic fields filled in."""

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
def test_all_automatic_fields_are_filled_in(workload: str, cuda: bool) -> None:
    resolved = resolve_config(Config(workload=workload), cuda, 1)
    assert msgspec.convert(msgspec.to_builtins(resolved), ResolvedConfig) == resolved


def test_resolved_config_encodes_like_the_same_requested_config() -> None:
    resolved = resolve_config(Config(workload="resnet50", lr=0.1, steps=3), True, 1)
    requested = Config(**msgspec.structs.asdict(resolved))
    assert msgspec.json.encode(resolved) == msgspec.json.encode(requested)
    assert resolved.to_argv() == requested.to_argv()
    assert {"--lr", "--batch-size", "--loader"} < set(resolved.to_argv())


def test_record_without_a_resolved_batch_size_is_rejected(tmp_path: Path) -> None:
    data = msgspec.to_builtins(records.job(records.record()))
    data["records"][0]["config"]["batch_size"] = None
    (tmp_path / "open.json").write_text(json.dumps(data))
    with pytest.raises(UsageError, match="batch_size"):
        load(tmp_path / "open.json")
