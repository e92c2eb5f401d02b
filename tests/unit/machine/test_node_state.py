"""State of a node: cores, memory, NUMA and other processes."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

import psutil
import pytest
from core_load import busy_process, idle_process

from ddpbench.machine import cgroup
from ddpbench.machine.host import cpu_seconds, host_memory_bytes, shared_memory_free_bytes, usable_memory_bytes
from ddpbench.machine.node_state import collect_node_state, numa_nodes_of_cores, numa_nodes_of_gpu
from ddpbench.record.diagnosis import RankNumaNodes
from ddpbench.record.environment import RankPlacement


def place(pid: int, rank: int = 0, device_id: str = "") -> RankPlacement:
    return RankPlacement(rank=rank, host="n1", pid=pid, local_rank=rank, node_rank=0, device_name="some", device_id=device_id)


def test_node_state_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "3")
    free = shared_memory_free_bytes()
    monkeypatch.setattr("ddpbench.machine.node_state.shared_memory_free_bytes", lambda: free)  # other processes change it at any time
    found = collect_node_state([place(os.getpid())], sample_s=0.05)
    assert (found.host, found.slurm_cores, found.affinity_cores) == ("n1", 3, len(os.sched_getaffinity(0)))
    assert found.cpu_quota_cores == min(cgroup.cpu_quotas(), default=None)
    assert found.usable_memory_bytes is not None
    assert 2**28 < found.usable_memory_bytes <= psutil.virtual_memory().total
    assert found.shm_free_bytes == free


def test_affinity_of_all_ranks_is_combined() -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core only")
    with ExitStack() as running:
        pids = [running.enter_context(idle_process(core)) for core in cores[:2]]
        found = collect_node_state([place(pid, rank) for rank, pid in enumerate(pids)], sample_s=0.05)
        assert found.affinity_cores == 2
        assert collect_node_state([place(pids[0])], sample_s=0.05).affinity_cores == 1
    if Path("/sys/devices/system/node/node0").is_dir():
        assert [(each.rank, bool(each.core_nodes)) for each in found.numa] == [(0, True), (1, True)]


def test_busy_cores_of_others_exclude_the_job() -> None:
    with busy_process(), idle_process() as rank:
        found = collect_node_state([place(rank)])
    if found.other_busy_cores is None:
        pytest.skip("the kernel tells nothing of these cores")
    assert 0.5 < found.other_busy_cores < 1.2, "the rank may use only one core"


def test_invisible_rank_makes_other_busy_cores_unknown() -> None:
    """As in another container, whose PIDs are not visible here."""
    with idle_process() as gone:
        pass
    found = collect_node_state([place(os.getpid()), place(gone, rank=1)], sample_s=0.05)
    assert (found.affinity_cores, found.other_busy_cores) == (len(os.sched_getaffinity(0)), None), (
        "its CPU use would count as that of others"
    )
    assert found.numa[1] == RankNumaNodes(rank=1)
    assert collect_node_state([place(gone)], sample_s=0.05).affinity_cores == len(os.sched_getaffinity(0))


def test_cpu_use_of_the_job_is_not_counted_as_others() -> None:
    with busy_process() as rank:
        began, before = perf_counter(), cpu_seconds([rank])
        found = collect_node_state([place(rank)])
        own = (cpu_seconds([rank]) - before) / (perf_counter() - began)
    if found.other_busy_cores is None:
        pytest.skip("the kernel tells nothing of these cores")
    assert own > 0.05
    assert found.other_busy_cores + own < 1.25, "not counted twice"


def write_cgroups(root: Path, layout: dict[str, str], own: str) -> None:
    """The files of ``layout``, and in ``own`` the cgroups of a process."""
    for name, text in layout.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "own").write_text(own)


@pytest.mark.parametrize(
    ("layout", "own", "limits"),
    [
        ({"memory.max": "max", "job/memory.max": "4096"}, "0::/job", [4096]),
        (
            {"memory/memory.limit_in_bytes": "9223372036854771712", "memory/job/memory.limit_in_bytes": "8192"},
            "4:memory:/job",
            [8192, 9223372036854771712],
        ),
        ({"job/memory.max": "4096"}, "2:cpu:/job", []),
    ],
    ids=["v2", "v1", "another controller"],
)
def test_memory_limits_of_parent_cgroups(tmp_path: Path, layout: dict[str, str], own: str, limits: list[int]) -> None:
    write_cgroups(tmp_path, layout, own)
    assert list(cgroup.memory_limits(tmp_path, tmp_path / "own")) == limits


def test_usable_memory_is_at_most_host_memory() -> None:
    assert 0 < usable_memory_bytes() <= host_memory_bytes()


def test_missing_shm_has_no_size() -> None:
    assert shared_memory_free_bytes("/nowhere") is None


def test_numa_nodes_of_cores(tmp_path: Path) -> None:
    for node, cores in {0: "0-3,8", 1: "4-7", 10: "9"}.items():
        folder = tmp_path / "devices/system/node" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cores}\n")
    assert numa_nodes_of_cores({2, 8}, tmp_path) == [0]
    assert numa_nodes_of_cores({3, 4, 9}, tmp_path) == [0, 1, 10]
    assert numa_nodes_of_cores({2}, tmp_path / "none") == []


def test_unknown_gpu_has_no_numa_node() -> None:
    assert numa_nodes_of_gpu("GPU-00000000-0000-0000-0000-000000000000") == []


@pytest.mark.cuda
def test_numa_node_of_gpu_is_read_from_the_kernel() -> None:
    import torch

    from ddpbench.machine.gpu import Gpu

    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    gpu, why = Gpu.find(uuid)
    assert gpu, why
    address = gpu.pci_address()
    assert address
    numa_file = Path("/sys/bus/pci/devices") / address / "numa_node"
    if not numa_file.exists():
        pytest.skip("the kernel shows no buses here")
    assert numa_nodes_of_gpu(uuid) == [int(numa_file.read_text())] * (int(numa_file.read_text()) >= 0)
    assert collect_node_state([place(os.getpid(), device_id=uuid)], sample_s=0.05).numa[0].gpu_nodes == numa_nodes_of_gpu(uuid)


@pytest.mark.parametrize(
    ("layout", "own"),
    [
        ({"job/memory.max": "4096", "job/memory.current": "3000", "job/memory.stat": "anon 900\ninactive_file 1000"}, "0::/job"),
        (
            {
                "memory/job/memory.limit_in_bytes": "4096",
                "memory/job/memory.usage_in_bytes": "3000",
                "memory/job/memory.stat": "inactive_file 0\ntotal_inactive_file 1000",
            },
            "4:memory:/job",
        ),
    ],
    ids=["v2", "v1"],
)
def test_memory_that_a_cgroup_has_left(tmp_path: Path, layout: dict[str, str], own: str) -> None:
    write_cgroups(tmp_path, layout, own)
    assert list(cgroup.free_memory(tmp_path, tmp_path / "own")) == [2096]
