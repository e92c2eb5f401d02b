"""Leftover memory of a published script: alive in the first forward, released with its loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from training import world_of_one

from ddpbench.bench.arm import Arm, ArmOptions
from ddpbench.bench.resolve import resolve_config
from ddpbench.machine.device import Device
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.published.reproduce import earlier_model
from ddpbench.record.config import Config
from ddpbench.record.record import Round


def trained(precision: str, steps: int, beside: Callable[[Device], object] | None, device: str, workload: str) -> list[Round]:
    """Two shortened rounds under the published protocol."""
    asked = Config(workload=workload, precision=precision, steps=steps, rounds=2, fresh=True, set_to_none=False, validate=False)
    arm = Arm(resolve_config(asked, device == "cuda", 1), world_of_one(device), ProgressMarker(60.0), ArmOptions(leftover_factory=beside))
    arm.activate()
    rounds = [arm.run_round(0), arm.run_round(1)]
    arm.park()
    return [timed for timed in rounds if timed is not None]


def test_leftovers_live_from_round_start_to_first_loss() -> None:
    happened: list[str] = []

    class Leftovers:
        def __init__(self) -> None:
            happened.append("made")

        def __del__(self) -> None:
            happened.append("gone")

    def note_loss(module: nn.Module, *_: object) -> None:
        if isinstance(module, nn.MSELoss):
            happened.append("loss")

    handle = register_module_forward_hook(note_loss)
    trained("fp32", 3, lambda _: Leftovers(), "cpu", "gemm-mlp-16")
    handle.remove()
    before = happened.index("made")
    assert set(happened[:before]) == {"loss"}, "the warm-up has no leftovers"
    assert happened[before:] == ["made", "loss", "gone", "loss", "loss"] * 2


PUBLISHED = {"fp32": 1_350_681_600, "amp-fp16": 1_577_232_384}
"""Peak allocated bytes of the published Tesla T4 comparison."""


@pytest.mark.cuda
def test_gemm_memory_matches_the_publication() -> None:
    """Without cuBLAS workspaces, which were outside of torch's allocator at that time."""

    def peak(precision: str, beside: Callable[[Device], object] | None = None) -> int:
        held = [timed.traces[0].memory for timed in trained(precision, 20, beside, "cuda", "gemm-mlp")]
        peaks = {(memory.allocated_bytes or 0) - (memory.workspace_bytes or 0) for memory in held}
        torch.cuda.empty_cache()
        assert len(peaks) == 1, peaks
        return peaks.pop()

    assert peak("fp32") == pytest.approx(PUBLISHED["fp32"], rel=0.02)
    assert peak("amp-fp16", earlier_model) == pytest.approx(PUBLISHED["amp-fp16"], rel=0.02)
    assert peak("amp-fp16") < 0.95 * PUBLISHED["amp-fp16"], "most of the published increase is leftover memory"
