"""Trainings with ``--fused-kernels`` have the same losses as without them."""

from __future__ import annotations

import pytest
import torch
from fused import INTERPRETED
from residual_net import Net
from torch import nn
from training import config, session, world_of_one

from ddpbench.kernels import deferred
from ddpbench.kernels.deferred import FusedBatchNorm2d
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import UsageError
from ddpbench.training.session import fuse_kernels
from ddpbench.training.warmup import warm_up

STEPS = 4


def losses(device: str, precision: str, fused_kernels: bool) -> tuple[float | None, float | None]:
    """First and last loss of a short round, after the warm-up."""
    settled = config(device, precision=precision, fused_kernels=fused_kernels, channels_last=True, fresh=True)
    torch.manual_seed(0)
    live = session(world_of_one(device), settled, Net())
    warm_up(live)
    numerics = live.run_round(STEPS, max_drain_s=0).numerics
    live.close()
    assert numerics.nonfinite_step is None
    return numerics.first_loss, numerics.last_loss


def check_losses(device: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ResolvedConfig, "runs_fused_kernels", lambda self, _: self.fused_kernels)  # in Triton's interpreter, on a CPU
    kernel_runs, run = [], deferred.batch_statistics_of
    monkeypatch.setattr(deferred, "batch_statistics_of", lambda y, norm: (kernel_runs.append(norm), run(y, norm))[1])
    plain = losses(device, precision, fused_kernels=False)
    assert kernel_runs == []
    assert losses(device, precision, fused_kernels=True) == pytest.approx(plain, rel=0.02)
    assert kernel_runs


@INTERPRETED
@pytest.mark.slow
def test_fused_losses_match_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    check_losses("cpu", "fp32", monkeypatch)


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["fp32", "tf32", "amp-fp16", "amp-bf16", "o2", "bf16"])
def test_fused_losses_match_plain_ones_on_gpu(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_losses("cuda", precision, monkeypatch)


@pytest.mark.parametrize(
    ("model", "reason"),
    [(nn.Sequential(nn.Linear(2, 2)), "it has no BatchNorm"), (nn.Sequential(nn.BatchNorm2d(2)), "no ReLU follows")],
)
def test_model_without_norms_to_fuse_is_refused(model: nn.Module, reason: str) -> None:
    with pytest.raises(UsageError, match=f"--fused-kernels cannot fuse anything in mine: {reason}"):
        fuse_kernels(model, "mine")


def test_model_with_one_norm_to_fuse_is_not_refused() -> None:
    model = nn.Sequential(nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.BatchNorm1d(8))
    fuse_kernels(model, "mine")
    assert isinstance(model[0], FusedBatchNorm2d)


def test_fused_kernels_are_only_given_where_they_run() -> None:
    live = session(world_of_one(), config(fused_kernels=True, channels_last=True), Net())
    assert not any(isinstance(each, FusedBatchNorm2d) for each in live.model.modules())
    live.close()
