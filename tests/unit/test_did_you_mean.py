"""Suggestions for mistyped names."""

from __future__ import annotations

from ddpbench.cli.program import program
from ddpbench.cli.train import run
from ddpbench.published.publications import published_names
from ddpbench.record.config import Config
from ddpbench.record.flags import flag_fields
from ddpbench.record.names import SYNONYMS, did_you_mean
from ddpbench.record.registry import PRECISIONS
from ddpbench.workloads.registry import WORKLOADS


def test_nearest_name_is_suggested() -> None:
    assert did_you_mean("resnet5O", WORKLOADS) == "did you mean 'resnet50'?"
    assert did_you_mean("ampfp16", PRECISIONS) == "did you mean 'amp-fp16'?"
    assert did_you_mean("t4-tensor", published_names()) == "did you mean 't4-tensor-cores'?"
    assert did_you_mean("zzz", WORKLOADS) == did_you_mean("x", []) == ""


def test_case_hyphens_and_underscores_are_ignored() -> None:
    spellings = [spelling for option in run.params for spelling in (*option.opts, *option.secondary_opts)]
    assert did_you_mean("VIT-B-16", WORKLOADS) == "did you mean 'vit_b_16'?"
    assert did_you_mean("gpu", spellings) == did_you_mean("--gpu", spellings) == "did you mean '--gpus'?"
    assert did_you_mean("--Batch_size", spellings) == "did you mean '--batch-size'?"


def test_list_of_names_is_rejected_with_a_hint() -> None:
    assert did_you_mean("resnet18,resnet50", WORKLOADS) == "use only one: 'resnet18' or 'resnet50'"
    assert did_you_mean("resnet18,rsnet", WORKLOADS).startswith("did you mean 'resnet18'")


def test_synonyms_suggest_existing_names() -> None:
    devices = next(field.choices for field in flag_fields(Config) if field.name == "device")
    assert set(SYNONYMS.values()) <= {*program.commands, *devices, *PRECISIONS}
    assert did_you_mean("float16", PRECISIONS) == "did you mean 'fp16'?"
    assert did_you_mean("bfloat16", PRECISIONS) == "did you mean 'bf16'?"
    assert did_you_mean("GPU", devices) == "did you mean 'cuda'?"
