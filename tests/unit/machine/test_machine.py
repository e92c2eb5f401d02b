"""Rank environment, cores, rank store, watchdog and GPU telemetry."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch
from polling import wait_until
from torch import distributed as dist

from ddpbench.distributed.rank_store import FailureReport, RankInfo, RankStore, open_store
from ddpbench.distributed.world import check_ranks_match, disambiguate_hosts
from ddpbench.machine.device import open_device
from ddpbench.machine.gpu import Gpu, GpuTelemetry
from ddpbench.machine.host import usable_cores
from ddpbench.machine.progress_marker import Position, ProgressMarker, Watchdog
from ddpbench.machine.rank_env import RankEnv, from_env
from ddpbench.record.environment import RankPlacement, Software
from ddpbench.record.errors import RendezvousError, UsageError
from ddpbench.record.record import Fault
from ddpbench.record.trace import Health

SOFTWARE = Software(ddpbench="0.1.0", python="3.12", torch="2.11")
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "1",
}


def place(rank: int, **changes: object) -> RankPlacement:
    standing = {"host": "n1", "pid": os.getpid(), "local_rank": rank, "node_rank": 0, "device_name": "H200", "device_id": f"GPU-{rank}"}
    return RankPlacement(rank=rank, **{**standing, **changes})  # type: ignore[arg-type]


def test_rank_env_is_read_from_torchrun_variables() -> None:
    seat = from_env(TORCHRUN)
    assert (seat.rank, seat.world_size, seat.local_rank, seat.node_rank) == (5, 8, 1, 1)
    assert (seat.launched, seat.launcher, seat.is_rank0) == (True, "torchrun", False)
    assert from_env({**TORCHRUN, "SLURM_JOB_ID": "7"}).launcher == "slurm"
    assert not from_env({}).launched


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"RANK": "8"}, "RANK=8 is out of range for WORLD_SIZE=8"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "RANK=0 is out of range for WORLD_SIZE=0"),
        ({"RANK": "-1"}, "not a number: RANK=-1"),
        ({"LOCAL_WORLD_SIZE": "two"}, "not a number: LOCAL_WORLD_SIZE=two"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT=65536 is not a valid port"),
    ],
)
def test_invalid_rank_variables_are_rejected(changes: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        from_env({**TORCHRUN, **changes})


def test_invalid_slurm_numbers_are_rejected() -> None:
    with pytest.raises(UsageError, match="not a number: SLURM_STEP_NUM_TASKS=abc"):
        from_env({"SLURM_STEP_NUM_TASKS": "abc"})
    for broken in ("abc", "0", "-2"):
        with pytest.raises(UsageError, match=f"SLURM_CPUS_ON_NODE is not a number of cores: '{broken}'"):
            usable_cores({"SLURM_CPUS_ON_NODE": broken})


def test_single_process_of_a_multi_process_accelerate_launch_is_rejected() -> None:
    alone = {"ACCELERATE_MIXED_PRECISION": "no"}
    assert not from_env(alone).launched
    with pytest.raises(UsageError, match="asked for several processes but started one"):
        from_env({**alone, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"})


def test_master_addr_set_before_accelerate_does_not_mean_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "from ddpbench.machine.rank_env import from_env; print(from_env().launched)"
    shell = ["sh", "-c", f'ACCELERATE_MIXED_PRECISION=no {sys.executable} -c "$0"; true', script]
    monkeypatch.setenv("MASTER_ADDR", "n1")
    assert subprocess.run(shell, capture_output=True, text=True, timeout=60).stdout == "False\n"


def test_srun_without_torchrun_is_rejected() -> None:
    with pytest.raises(UsageError, match="4 tasks would each run alone"):
        from_env({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"})


@pytest.mark.parametrize(
    ("layout", "cgroup", "cores"),
    [
        ({"cpu.max": "max 100000", "job/cpu.max": "150000 100000"}, "0::/job/step", 1.5),
        ({"job/cpu.max": "50000 100000", "job/step/cpu.max": "max 100000"}, "0::/job/step", 0.5),
        ({"cpu,cpuacct/job/cpu.cfs_quota_us": "25000", "cpu,cpuacct/job/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/job", 0.25),
        ({"cpu,cpuacct/job/cpu.cfs_quota_us": "-1", "cpu,cpuacct/job/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/job", None),
        ({}, "", None),
    ],
    ids=["v2 above", "v2 tree", "v1", "v1 without", "none"],
)
def test_usable_cores_respect_quotas_of_parent_cgroups(tmp_path: Path, layout: dict[str, str], cgroup: str, cores: float | None) -> None:
    for name, text in layout.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    own = tmp_path / "own"
    own.write_text(cgroup)
    assert usable_cores({}, tmp_path, own) == (cores or len(os.sched_getaffinity(0)))


def test_usable_cores_respect_slurm_and_affinity() -> None:
    nowhere = Path("/nowhere")
    assert usable_cores({"SLURM_CPUS_ON_NODE": "1"}, nowhere, nowhere) == 1
    one = subprocess.run(
        ["taskset", "-c", "0", sys.executable, "-c", "from ddpbench.machine.host import usable_cores; print(usable_cores({}))"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert float(one.stdout) <= 1


def test_ranks_with_different_software_are_rejected_with_both_versions() -> None:
    other = RankInfo(place(1, host="n2"), Software(ddpbench="0.1.0", python="3.12", torch="2.15"))
    with pytest.raises(UsageError) as refused:
        check_ranks_match([RankInfo(place(0), SOFTWARE), other], share_gpu=False)
    assert "rank 0 (n1)  torch 2.11" in str(refused.value)
    assert "rank 1 (n2)  torch 2.15" in str(refused.value)


def test_different_gpu_models_are_rejected() -> None:
    notices = [RankInfo(place(rank, host=f"n{rank}", device_name=device), SOFTWARE) for rank, device in enumerate(("H200", "H100"))]
    with pytest.raises(UsageError, match=r"rank 0 \(n0\)  device H200\n  rank 1 \(n1\)  device H100"):
        check_ranks_match(notices, share_gpu=False)


def test_two_ranks_on_one_gpu_require_share_gpu() -> None:
    notices = [RankInfo(place(rank, device_id="GPU-a"), SOFTWARE) for rank in range(2)]
    with pytest.raises(UsageError, match="ranks 0 and 1 are on one GPU"):
        check_ranks_match(notices, share_gpu=False)
    check_ranks_match(notices, share_gpu=True)


def test_cpu_ranks_may_share_a_cpu() -> None:
    check_ranks_match([RankInfo(place(rank, device_name="EPYC", device_id=""), SOFTWARE) for rank in range(2)], share_gpu=False)


def test_ranks_with_different_data_are_rejected() -> None:
    notices = [RankInfo(place(rank, host=f"n{rank}"), SOFTWARE, f"{8 - rank} images") for rank in range(2)]
    with pytest.raises(UsageError) as refused:
        check_ranks_match(notices, share_gpu=False)
    assert "rank 0 (n0)  data 8 images\n  rank 1 (n1)  data 7 images" in str(refused.value)
    assert "the same files on every node" in (refused.value.hint or "")


def test_ranks_with_different_requests_are_rejected() -> None:
    asked = ({"--workload": "mnist-cnn", "--batch-size": "32"}, {"--workload": "mnist-cnn", "--precision": "amp-bf16"})
    notices = [RankInfo(place(rank, host=f"n{rank}"), SOFTWARE, requested=flags) for rank, flags in enumerate(asked)]
    with pytest.raises(UsageError) as refused:
        check_ranks_match(notices, share_gpu=False)
    assert "rank 0 (n0)  --batch-size 32  --precision not set\n" in str(refused.value)
    assert "rank 1 (n1)  --batch-size not set  --precision amp-bf16" in str(refused.value)
    assert refused.value.hint == "use the same command on every node"
    check_ranks_match([notices[0]] * 2, share_gpu=True)


@pytest.fixture
def rank_stores() -> list[RankStore]:
    """Rank stores of two ranks over one HashStore."""
    store = dist.HashStore()
    return [RankStore(store, RankEnv(rank=rank, world_size=2, host="n1")) for rank in range(2)]


def test_dead_rank_differs_from_deregistered_rank(rank_stores: list[RankStore]) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        places = [place(0), place(1, pid=other.pid)]
        assert rank_stores[0].dead_ranks(places) == []
        other.kill()
        assert wait_until(lambda: bool(rank_stores[0].dead_ranks(places)), 10)
        assert rank_stores[0].dead_ranks(places) == [1]
        rank_stores[1].deregister()
        assert rank_stores[0].dead_ranks(places) == []


@contextmanager
def sending_heartbeats(store: RankStore) -> Iterator[None]:
    stop = threading.Event()

    def send() -> None:
        while not stop.wait(0.1):
            store.heartbeat(Position(1, 1, "forward"))

    sending = threading.Thread(target=send)
    sending.start()
    time.sleep(0.3)
    try:
        yield
    finally:
        stop.set()
        sending.join()


@pytest.mark.slow
def test_rank_on_another_host_is_dead_without_heartbeat(rank_stores: list[RankStore]) -> None:
    places = [place(0), place(1, host="n2", pid=2**22 + 1)]
    with sending_heartbeats(rank_stores[1]):
        assert rank_stores[0].dead_ranks(places) == []
    assert rank_stores[0].dead_ranks(places) == [1]


@pytest.mark.slow
def test_ended_rank_on_this_host_does_not_make_other_hosts_dead(rank_stores: list[RankStore]) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    places = [place(0), place(1, host="n2"), place(2, pid=ended.pid)]
    with sending_heartbeats(rank_stores[1]):
        assert rank_stores[0].dead_ranks(places) == [2]
        rank_stores[0].set("left/2", "1")
        assert rank_stores[0].dead_ranks(places) == []


def test_one_rank_reports_and_the_first_failure_is_kept(rank_stores: list[RankStore]) -> None:
    assert [board.claim_reporter() for board in rank_stores] == [True, False]
    rank_stores[1].report_failure(FailureReport("failed", Fault(message="first")))
    rank_stores[0].report_failure(FailureReport("hung", Fault(message="second")))
    blame = rank_stores[0].get_failure_report()
    assert blame is not None
    assert (blame.status, blame.fault.message) == ("failed", "first")


def test_missing_ranks_are_listed(rank_stores: list[RankStore]) -> None:
    rank_stores[0].register(RankInfo(place(0), SOFTWARE))
    with pytest.raises(UsageError, match=r"1 of 2 ranks joined the rendezvous at .* missing rank: 1"):
        rank_stores[0].wait_for_ranks(0.1)


def test_unreachable_store_is_reported_in_one_line(free_port: int, capfd: pytest.CaptureFixture[str]) -> None:
    seat = RankEnv(rank=1, world_size=2, master_addr="127.0.0.1", master_port=free_port)
    with pytest.raises(RendezvousError) as unreachable:
        open_store(seat, timeout_s=0.5)
    assert unreachable.value.message == f"rank 1 of 2 cannot reach 127.0.0.1:{free_port}: Connection refused"
    assert capfd.readouterr().err == "", "torch's own wait would print C++ stack frames"


def test_late_store_is_waited_for(free_port: int) -> None:
    first, second = (RankEnv(rank=rank, world_size=2, master_addr="127.0.0.1", master_port=free_port) for rank in (0, 1))
    served = []
    late = threading.Timer(0.5, lambda: served.append(open_store(first, timeout_s=10.0, serve=True)))
    late.start()
    RankStore(open_store(second, timeout_s=10.0), second).set("here", "1")
    late.join()
    host = RankStore(served[0], first)
    host.wait_for_key("here", 10.0)  # `set` returns before the store has the key
    assert host.try_get("here") == "1"


def test_oom_description_states_peak_and_requested_size() -> None:
    device = open_device("cpu", RankEnv(), share_gpu=False)
    for asked, text in ((2**50, "1,048,576 GiB more requested"), (600 * 2**30, "600 GiB more requested"), (10, "0.01 GiB more requested")):
        short = device.describe_oom(RuntimeError(f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {asked} bytes."))
        peak = re.fullmatch(rf"peak ([\d.]+) of [\d.,]+ GiB, {text}", short)
        assert peak is not None, short
        assert float(peak[1]) == pytest.approx(psutil.Process().memory_info().rss / 2**30, rel=0.5)
    assert device.describe_oom(ValueError("no")) == ""


def test_watchdog_reports_a_stall_once_and_only_without_progress() -> None:
    pulse, stalls, ticks = ProgressMarker(timeout_s=0.6), [], []
    watchdog = Watchdog(pulse, ticks.append, stalls.append, lambda: None)
    watchdog.start()
    for _ in range(6):  # 1.2 s of progress, twice the timeout
        time.sleep(0.2)
        pulse.enter("moving")
    assert stalls == []
    assert wait_until(lambda: bool(stalls), 10)
    assert len(stalls) == 1
    assert ticks[-1].phase == "moving"


def test_paused_marker_is_no_stall_and_is_polled_repeatedly() -> None:
    pulse, stalls, looks = ProgressMarker(timeout_s=0.1), [], threading.Semaphore(0)
    watchdog = Watchdog(pulse, lambda mark: None, stalls.append, looks.release)
    pulse.pause()
    watchdog.start()
    assert looks.acquire(timeout=10)
    assert looks.acquire(timeout=10)
    watchdog.stop()
    assert stalls == []


def test_position_round_trips_through_its_encoding() -> None:
    mark = Position(12, 3, "gathering | the round")
    assert Position.decode(mark.encode(7)) == (7, mark)


def test_health_is_missing_without_nvml_with_the_reason() -> None:
    gpu, why = Gpu.find("GPU-00000000-0000-0000-0000-000000000000")
    assert gpu is None, "no GPU has this UUID, with or without a driver"
    assert why
    watch = GpuTelemetry(gpu, ranks_on_gpu=1)
    watch.start()
    assert watch.finish() is None


def test_unavailable_nvml_values_are_missing() -> None:
    watch = GpuTelemetry(Gpu(None), ranks_on_gpu=1)  # not a valid handle
    watch.start()
    assert watch.finish() == Health(samples=0)


@pytest.mark.cuda
def test_nvml_measures_a_busy_gpu() -> None:
    device = open_device("cuda", RankEnv(host="here"), share_gpu=False)
    assert device.health_unavailable_reason == ""
    watch = GpuTelemetry(device.gpu, ranks_on_gpu=1)
    busy = torch.randn(4096, 4096, device=device.torch_device)
    watch.start()
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        busy = busy @ busy * 1e-3
        device.synchronize()
    health = watch.finish()
    assert health is not None
    assert health.samples >= 2
    assert health.sm_mhz
    assert health.watts
    assert health.energy_j


def test_hosts_with_equal_names_are_distinguished_by_machine() -> None:
    def met(*standing: tuple[str, int, str]) -> list[str]:
        notices = [RankInfo(place(rank, host=host, node_rank=node), SOFTWARE, "", on) for rank, (host, node, on) in enumerate(standing)]
        return [notice.placement.host for notice in disambiguate_hosts(notices)]

    assert met(("vm", 0, "a"), ("vm", 0, "a"), ("vm", 1, "b")) == ["vm#0", "vm#0", "vm#1"]
    assert met(("vm", 0, "a"), ("vm", 1, "a")) == ["vm", "vm"], "two launchers on one machine"
    assert met(("vm", 0, "a"), ("vm", 0, "b")) == ["vm", "vm"], "one container per rank of a node"
    assert met(("n1", 0, "a"), ("n2", 1, "b")) == ["n1", "n2"]
