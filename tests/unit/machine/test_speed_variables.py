"""Environment variables kept in records."""

from __future__ import annotations

import re

from ddpbench.analysis.checks.machine import IB_DISABLING_VARIABLES
from ddpbench.machine.speed_variables import SPEED_VARIABLES, speed_variables


def test_only_listed_variables_are_recorded() -> None:
    listed = {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "4", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    secrets = {name: "secret" for name in ("NCCL_PSK", "NCCL_AUTH_TOKEN", "TORCH_API_KEY", "PYTORCH_TOKEN", "SLURM_JWT", "GLOO_PASSWORD")}
    assert speed_variables({**secrets, **listed, "nccl_algo": "Tree"}) == listed


def test_variables_are_sorted_by_name() -> None:
    assert list(speed_variables({"OMP_NUM_THREADS": "1", "NCCL_NET": "IB"})) == ["NCCL_NET", "OMP_NUM_THREADS"]


def test_listed_names_contain_no_secrets() -> None:
    assert [name for name in SPEED_VARIABLES if re.search("PSK|TOKEN|KEY|SECRET|PASS|AUTH|CRED|JWT", name)] == []


def test_every_variable_used_by_analysis_is_recorded() -> None:
    assert {*IB_DISABLING_VARIABLES, "OMP_NUM_THREADS", "SLURM_JOB_ID"} <= SPEED_VARIABLES
