"""Two emulated hosts: rendezvous, the verdict on a slow network, and the error after cutting it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import two_hosts
from launches import errors, only_job

from ddpbench.record.io import load
from ddpbench.record.roles import ddp_role
from ddpbench.report.messages.scaling import explain_loss

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


@pytest.fixture
def across() -> Any:
    if why := two_hosts.why_not():
        pytest.skip(why)
    with two_hosts.cable(megabits=100):
        yield


@pytest.mark.usefixtures("across")
def test_slow_network_is_the_bottleneck_between_two_hosts(start: Callable[..., Any], results: Path, tmp_path: Path) -> None:
    words = ["scale", "mnist-cnn", "--device", "cpu", "-b", "8", "--rounds", "3", "--steps", "4", "--time-limit", "150", "-o", str(results)]
    names = two_hosts.names_in(tmp_path)
    left, right = [start(two_hosts.torchrun(host, names, words)) for host in two_hosts.HOSTS]
    done = [left.wait(240), right.wait(30)]
    assert [each.returncode for each in done] == [0, 0], "\n".join(each.stderr for each in done)
    assert [error for each in done for error in errors(each.stderr)] == []
    job = only_job(results)
    full = next(record for record in job.records if record.role == ddp_role(2))
    assert (full.environment.nodes, {place.host for place in full.environment.placements}) == (2, set(two_hosts.HOSTS))
    assert {place.node_rank for place in full.environment.placements} == {0, 1}
    found = job.scaling
    assert found is not None
    assert found.verdict is not None
    assert found.verdict.kind == "network-bound"
    claim = explain_loss(found.verdict.evidence, job).claim
    assert all(host in claim for host in two_hosts.HOSTS)
    assert 4e6 < max(found.allreduce_busbw.values()) < 12.5e6 * 1.3, "limited by the emulated network"
    assert any("NETWORK-BOUND" in each.stdout for each in done)


@pytest.mark.usefixtures("across")
def test_two_hosts_with_one_name_are_distinguished(start: Callable[..., Any], results: Path, tmp_path: Path) -> None:
    words = ["mnist-cnn", "--device", "cpu", "-b", "8", "--rounds", "2", "--steps", "3", "-o", str(results)]
    names = {host: two_hosts.names_in(tmp_path, vm=address) for host, address in two_hosts.HOSTS.items()}
    left, right = [start(two_hosts.torchrun(host, names[host], words, called="vm")) for host in two_hosts.HOSTS]
    done = [left.wait(90), right.wait(30)]
    assert [(each.returncode, errors(each.stderr)) for each in done] == [(0, [])] * 2
    place = only_job(results).records[0].environment
    assert [each.host for each in place.placements] in (["vm#0", "vm#1"], ["vm#1", "vm#0"])
    assert [(way.via, way.inter_node) for way in place.transport] == [("TCP", True)]


def ranks_of(host: Any) -> list[int]:
    """PIDs of the ranks, without torchrun, which waits for its rendezvous for minutes."""
    return [each.pid for each in host.survivors() if "torch.distributed.run" not in each.cmdline()]


@pytest.mark.usefixtures("across")
def test_cut_network_ends_all_ranks_with_one_error(start: Callable[..., Any], results: Path, tmp_path: Path) -> None:
    words = ["scale", "mnist-cnn", "--device", "cpu", "-b", "8", "--rounds", "50", "--hang-timeout", "4", "-o", str(results)]
    names = two_hosts.names_in(tmp_path)
    left, right = [start(two_hosts.torchrun(host, names, words)) for host in two_hosts.HOSTS]
    left.until(lambda: any(record.rounds for path in results.glob("*.json") if path.stat().st_size for record in load(path).records), 90)
    assert len(ranks_of(right)) == 1
    two_hosts.cut()
    done = left.wait(60)
    right.until(lambda: not ranks_of(right), 60)
    assert done.returncode != 0
    (error,) = errors(done.stderr)
    assert any(host in error for host in two_hosts.HOSTS)
    job = only_job(results)
    assert {record.status for record in job.records} <= {"failed", "hung", "ok"}
    assert any(record.fault for record in job.records)
