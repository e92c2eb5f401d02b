"""Fused models train with hooks, copies, checkpointing, autocast, loss scaling, torch.compile and DDP as plain ones do."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fused import DEVICE, INTERPRETED, channels_last
from fused_models import assert_same_steps, images, step
from launches import SUPPORT, SUPPORT_ENV, TORCHRUN
from residual_net import Net
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ddpbench.kernels import functions, fuse
from ddpbench.kernels.modules import ShortcutConv2d


def test_hooks_that_are_added_later_see_the_same(net: Net) -> None:
    plain = copy.deepcopy(net)
    fuse(net)
    seen: list[list[Tensor]] = [[], []]
    for model, outputs in zip((net, plain), seen, strict=True):
        for module in (model.bn, model.blocks[1].bn2, model.blocks[1].relu):
            module.register_forward_hook(lambda _, __, out, outputs=outputs: outputs.append(out.clone()))
    assert_same_steps(net, plain, images())
    assert len(seen[0]) == len(seen[1]) == 4
    for ours, expected in zip(*seen, strict=True):
        torch.testing.assert_close(ours, expected)


def test_module_that_is_replaced_later_is_used(net: Net) -> None:
    plain = copy.deepcopy(net)
    fuse(net)
    for model in (net, plain):
        model.blocks[1].relu = nn.Sigmoid()
        model.blocks[0].downsample = nn.Conv2d(8, 8, 1).to(DEVICE)
        nn.init.ones_(model.blocks[0].downsample.weight)
        nn.init.zeros_(model.blocks[0].downsample.bias)
        model.pool.stride = 1
    assert_same_steps(net, plain, images())


def test_setting_that_is_changed_later_is_used(net: Net) -> None:
    fuse(net)
    net.blocks[2].dropout = 1.0
    assert torch.equal(net(images()), net.fc.bias.expand(4, -1))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copied", "pickled"])
def test_copy_is_fused_and_independent(duplicate: Callable[[Net], Net], net: Net, kernel_runs: list[tuple[int, ...]]) -> None:
    plain = copy.deepcopy(net)
    twin = duplicate(fuse(net))
    with torch.no_grad():
        net.bn.weight.zero_()
    assert_same_steps(twin, plain, images())
    assert kernel_runs


def test_fusing_twice_is_fusing_once(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    plain = copy.deepcopy(net)
    fuse(fuse(net))
    assert caplog.messages == []
    assert_same_steps(net, plain, images())


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_blocks_have_the_same_gradients(reentrant: bool, net: Net) -> None:
    plain = copy.deepcopy(net)
    for model in (fuse(net), plain):
        first, *rest = model.blocks
        model.blocks.forward = lambda x, first=first, rest=rest: nn.Sequential(*rest)(checkpoint(first, x, use_reentrant=reentrant))
    first, second = step(net, images()), step(plain, images())
    for name in second:
        torch.testing.assert_close(first[name], second[name], rtol=2e-3, atol=2e-3)


def test_gradient_that_a_hook_sees_is_whole(net: Net) -> None:
    plain = copy.deepcopy(net)
    sums = []
    for model in (fuse(net), plain):
        model.blocks[0].register_forward_hook(lambda _, __, out: out.register_hook(lambda grad: sums.append(grad.abs().sum())) and None)
        step(model, images())
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-3, atol=1e-3)


def test_shortcut_whose_input_was_replaced_sees_the_new_values(net: Net) -> None:
    plain = copy.deepcopy(net)
    outs = []
    for model in (fuse(net), plain):
        first = model.blocks[0](model.pool(model.bn(model.conv(images())).relu()))
        first.data = first.data.clamp(max=0.5)
        outs.append(model.blocks[1](first))
    torch.testing.assert_close(*outs, rtol=1e-3, atol=1e-3)


def test_gradients_of_shortcuts_are_added_in_the_kernel_of_their_input(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a shortcut with a convolution, too."""
    run, second_grads = functions.batch_norm_relu_backward, []
    monkeypatch.setattr(functions, "batch_norm_relu_backward", lambda *given: (second_grads.append(given[1]), run(*given))[1])
    step(fuse(net), images())
    assert isinstance(net.blocks[1].downsample[0], ShortcutConv2d)
    assert sum(each is not None for each in second_grads) == 2


def test_gradient_accumulation_adds_up(net: Net) -> None:
    plain = copy.deepcopy(net)
    for model in (fuse(net), plain):
        model(images()).sum().backward()
    assert_same_steps(net, plain, images())


def test_autocast_trains_like_the_plain_model(net: Net, kernel_runs: list[tuple[int, ...]]) -> None:
    """On a CPU in bfloat16, which the interpreter truncates."""
    plain = copy.deepcopy(net)
    dtype = torch.float16 if DEVICE == "cuda" else torch.bfloat16
    steps = []
    for model in (fuse(net), plain):
        model.forward = torch.autocast(DEVICE, dtype)(model.forward)
        steps.append(step(model, images()))
    assert kernel_runs
    torch.testing.assert_close(steps[0]["out"], steps[1]["out"], rtol=0.1, atol=0.1)
    ours, expected = (torch.cat([value.flatten() for name, value in each.items() if "gradient" in name]) for each in steps)
    assert functional.cosine_similarity(ours, expected, 0) > 0.95


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # numpy, in the interpreter
@pytest.mark.parametrize("scale", [2.0**10, 2.0**40], ids=["finite", "overflow"])
def test_scaled_gradients_are_those_of_the_plain_model(net: Net, scale: float) -> None:
    """And those that overflow are not finite: the scaler skips the update."""
    before, plain = copy.deepcopy(net.state_dict()), copy.deepcopy(net)
    for model in (fuse(net), plain):
        scaler = torch.amp.GradScaler(DEVICE, init_scale=scale)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        with torch.autocast(DEVICE, torch.float16):
            loss = model(images()).square().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (scale if scale < 2.0**16 else scale / 2)
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter, plain.get_parameter(name), rtol=0.01, atol=0.01)
        assert torch.equal(parameter, before[name]) == (scale > 2.0**16)


@pytest.mark.slow
def test_compiled_model_is_that_of_torch(net: Net, kernel_runs: list[tuple[int, ...]]) -> None:
    plain = copy.deepcopy(net)
    assert_same_steps(torch.compile(fuse(net), backend="aot_eager", fullgraph=True), torch.compile(plain, backend="aot_eager"), images())
    assert kernel_runs == []


@pytest.mark.slow
@INTERPRETED  # by its ranks
def test_ranks_train_together_like_the_plain_model(launch: Callable[..., Any]) -> None:
    done = launch([*TORCHRUN[:-2], str(SUPPORT / "fused_losses.py")], env={**SUPPORT_ENV, "TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stderr
    plain, fused, kernel_runs = json.loads(done.stdout)
    assert fused == pytest.approx(plain, rel=1e-3)
    assert kernel_runs == len(fused) * sum(isinstance(each, nn.BatchNorm2d) for each in Net().modules())
    assert plain[-1] < plain[0]


@pytest.mark.cuda
def test_training_ends_where_the_plain_one_does(net: Net) -> None:
    """200 steps on classes that the mean colour decides."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (200, 8), generator=generator)
    pixels = torch.randn(200, 8, 3, 8, 8, generator=generator) + torch.randn(4, 3, generator=generator)[labels][..., None, None]
    accuracies = []
    for model in (copy.deepcopy(net), fuse(net)):
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        right = 0
        for number, (x, y) in enumerate(zip(pixels.to(DEVICE), labels.to(DEVICE), strict=True)):
            out = model(channels_last(x))
            optimizer.zero_grad()
            functional.cross_entropy(out, y).backward()
            optimizer.step()
            right += int((out.argmax(1) == y).sum()) if number >= 150 else 0
        accuracies.append(right / 400)
    assert accuracies[0] > 0.8
    assert accuracies[1] == pytest.approx(accuracies[0], abs=0.05)
