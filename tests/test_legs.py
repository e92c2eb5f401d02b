"""A training in legs: stopped anywhere on its way, the same command goes on with it and ends as if nothing had been."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imagery
import pytest
import torch
from records import trace
from test_files import no_room
from training import config, session, world_of_one

from ddpbench.experiments.legs import LegHooks, Legs
from ddpbench.experiments.shelf import BEGINNING, Shelf, Stand
from ddpbench.machine.pulse import Pulse
from ddpbench.record.record import Record, load
from ddpbench.training.warming import warm_up_again

TESTS = Path(__file__).parent
SHORT = str(TESTS / "short_legs.py")
PLAIN = [sys.executable, SHORT]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", SHORT]
TWICE = ["--prefetch", "2,3", "--rounds", "1", "--device", "cpu", "--warmup", "1"]
"""Two cells of the same training: ``tensor`` prefetches nothing."""

DIGITS = ["sweep", "mnist-cnn", "--loader", "tensor", "-b", "20", "--lr", "0.05", "--momentum", "0.9", "--schedule", "linear", *TWICE]
DISC = ["sweep", "disc-mlp-3", "--lr", "0.05", "--optimizer", "adam", *TWICE]

pytestmark = pytest.mark.timeout(110)


def only_journal(results: Path) -> Path:
    (path,) = (results / "cpu").glob("*.json")
    return path


def laid_down(results: Path, rank: int = 0) -> list[int]:
    """The epochs after which files of that rank lie there."""
    names = [re.search(rf"\.arm0\.round0\.rank{rank}\.epoch(\d+)\.pt$", path.name) for path in results.glob("cpu/*.pt")]
    return sorted(int(name[1]) for name in names if name)


def ended(record: Record) -> list[Any]:
    """What a training has come to, on every rank: losses, accuracy, parameters, and how many steps that took."""
    (timed,) = record.rounds
    numerics = [each.numerics for each in timed.traces]
    kept = [(each.first_loss, each.last_loss, each.accuracy, each.parameters_before, each.parameters_after) for each in numerics]
    return [*kept, [each.steps for each in timed.traces], [len(each.phases_ms["forward"]) for each in timed.traces]]


def goes_on_to_the_same_end(launch: Callable[..., Any], words: list[str], results: Path, after: int) -> None:
    """The first cell, which was stopped in its legs, ends as the second does, which is trained through."""
    assert [record.rounds for record in load(only_journal(results)).records] == [[], []], "only whole rounds are on record"
    done = launch(words)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"prefetch 2: goes on after epoch (\d+) of", done.stderr) == ([str(after)] if after else [])
    assert ("prefetch 2: epoch 1 of" in done.stderr) == (after == 0)
    stopped, through = load(only_journal(results)).records
    assert ended(stopped) == ended(through)
    assert list(results.glob("cpu/*.arm*")) == [], "the files go when the round is on record"


@pytest.mark.slow
def test_a_training_that_was_killed_goes_on_bit_for_bit(
    start: Callable[..., Any], launch: Callable[..., Any], results: Path, tmp_path: Path
) -> None:
    """With dropout, momentum and a learning rate that falls: all of them must go on where they were."""
    words = [*PLAIN, *DIGITS, "--epochs", "24", "--data-dir", str(imagery.mnist(tmp_path / "digits")), "-o", str(results)]
    running = start(words)
    running.until(lambda: laid_down(results)[-1:] > [1])
    os.kill(running.pid, signal.SIGKILL)
    running.wait(20)
    goes_on_to_the_same_end(launch, words, results, after=laid_down(results)[-1])


@pytest.mark.slow
def test_a_time_limit_is_asked_for_before_every_leg(launch: Callable[..., Any], tmp_path: Path) -> None:
    """The first leg of a call is always trained, and here no other: so each call goes on where the one before has stopped."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    words = [sys.executable, "-m", "ddpbench", "sweep", "disc-mlp-3", "--epochs", "3", "--rounds", "1", "--device", "cpu", "-o"]
    for epoch in (1, 2):
        done = launch([*words, str(broken), "--time-limit", "0.001"])
        assert done.returncode == 0, done.stderr
        assert f"out of time after epoch {epoch} of 3; the same command goes on after epoch {epoch}" in done.stderr
        assert laid_down(broken) == [epoch]
        assert load(only_journal(broken)).records[0].rounds == []
    assert launch([*words, str(broken), "--time-limit", "0.001"]).returncode == 0
    assert laid_down(broken) == []
    assert launch([*words, str(whole)]).returncode == 0
    (stopped,), (through,) = load(only_journal(broken)).records, load(only_journal(whole)).records
    assert ended(stopped) == ended(through)


@pytest.mark.slow
def test_a_signal_in_a_leg_leaves_those_before_it(start: Callable[..., Any], launch: Callable[..., Any], results: Path) -> None:
    words = [*PLAIN, *DISC, "--epochs", "200", "-o", str(results)]
    running = start(words)
    running.until(lambda: bool(laid_down(results)))
    os.kill(running.pid, signal.SIGTERM)
    assert running.wait(20).returncode == 143
    assert {record.status for record in load(only_journal(results)).records} == {"interrupted"}
    goes_on_to_the_same_end(launch, words, results, after=laid_down(results)[-1])


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True])
def test_ranks_go_on_from_what_all_of_them_have(start: Callable[..., Any], launch: Callable[..., Any], results: Path, lost: bool) -> None:
    """Where the file of one is gone, all of them begin again."""
    words = [*TORCHRUN, *DISC, "--epochs", "200", "-o", str(results)]
    running = start(words)
    running.until(lambda: all(laid_down(results, rank)[-1:] > [1] for rank in (0, 1)))
    for process in running.survivors():
        process.kill()
    running.wait(20)
    assert running.left_behind() == []
    if lost:
        for path in results.glob("cpu/*.rank1.*"):
            path.unlink()
    common = min((laid_down(results, rank) or [0])[-1] for rank in (0, 1))
    goes_on_to_the_same_end(launch, words, results, after=common)


def stand(epochs: int) -> Stand:
    live = session(world_of_one(), config())
    warm_up_again(live)
    parked = live.parked()
    live.discard()
    return Stand(epochs, parked, [torch.get_rng_state()], [trace(0, 1.0, {})] * epochs)


def test_what_is_taken_is_what_was_put(tmp_path: Path) -> None:
    shelf, put = Shelf(tmp_path / "new" / "sweep.json", "now", rank=1), stand(2)
    assert shelf.latest(3, 0) is BEGINNING
    shelf.put(3, 0, put)
    taken = shelf.latest(3, 0)
    assert (taken.epochs, taken.traces, taken.parked.scaler, taken.parked.update) == (2, put.traces, put.parked.scaler, put.parked.update)
    assert torch.equal(taken.random[0], put.random[0])
    for name, tensor in put.parked.model.items():
        assert torch.equal(taken.parked.model[name], tensor)
    assert str(taken.parked.optimizer) == str(put.parked.optimizer)
    others = [Shelf(tmp_path / "new" / "sweep.json", "another job", rank=1), Shelf(tmp_path / "new" / "sweep.json", "now", rank=11)]
    assert [other.latest(3, 0) for other in others] == [BEGINNING, BEGINNING]
    assert [shelf.latest(arm, turn) for arm, turn in ((3, 1), (33, 0))] == [BEGINNING, BEGINNING]


def test_a_file_that_is_not_whole_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "sweep.json", "now", rank=0)
    for epochs in (1, 2, 3):
        shelf.put(0, 0, stand(epochs))
    content = shelf.path(0, 0, 3).read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"no training"):
        shelf.path(0, 0, 3).write_bytes(damaged)
        assert shelf.latest(0, 0).epochs == 2
    (tmp_path / f".{shelf.path(0, 0, 4).name}.x.tmp").write_bytes(b"half")
    shelf.keep_only(0, 0, 2)
    assert list(tmp_path.iterdir()) == [shelf.path(0, 0, 2)]
    shelf.clear(0, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_once_and_the_training_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    world, told = world_of_one(), list[str]()
    shelf = Shelf(tmp_path / "sweep.json", "now", rank=0)
    legs = Legs(0, 3, shelf, world, Pulse(60.0), LegHooks(lambda: True, lambda next_s: None, told.append))
    live = session(world, config())
    warm_up_again(live)
    with no_room():
        whole = legs.train(live, 0, BEGINNING, steps_an_epoch=2)
        legs.train(live, 1, BEGINNING, steps_an_epoch=2)
    live.discard()
    assert whole.steps == 6
    assert told[0] == "epoch 1 of 3"
    assert capfd.readouterr().err.count("ddpbench: note: cannot save") == 1
    assert list(tmp_path.iterdir()) == []
