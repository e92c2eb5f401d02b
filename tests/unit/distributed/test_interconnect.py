"""Interconnects: NCCL logs, transports, and the check for unused InfiniBand.

Log lines are taken from public issues of NCCL and of projects that use it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import records
import torch
from launches import PLAIN, only_record
from msgspec.structs import replace
from torch import distributed as dist

from ddpbench.analysis.checks.rules import run_checks
from ddpbench.bench.transport import with_transport
from ddpbench.distributed.interconnect import (
    Interconnect,
    NcclChannel,
    active_infiniband_devices,
    capture_nccl_log,
    gather_interconnect,
    gloo_transports,
    nic_type,
    parse_channels,
)
from ddpbench.distributed.rank_store import RankInfo, RankStore
from ddpbench.distributed.world import World
from ddpbench.machine.device import open_device
from ddpbench.machine.rank_env import RankEnv
from ddpbench.record.checks import Imbalance, NoInfiniband, UnequalNodes
from ddpbench.record.environment import Environment, Transport
from ddpbench.record.record import Record
from ddpbench.report.layout import Page
from ddpbench.report.pages.header import header_lines

P2P, SHM = Transport(via="P2P/CUMEM", inter_node=False), Transport(via="SHM/direct/direct", inter_node=False)
IB, SOCKET = Transport(via="NET/IB/GDRDMA", inter_node=True), Transport(via="NET/Socket", inter_node=True)
NVLINK, PCIE = replace(P2P, link_type="NVLink"), replace(P2P, link_type="PCIe")

TWO_NODES = """\
H20-GPU-06:4015539:4015652 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.4.7<0>
H20-GPU-06:4015540:4015653 [1] NCCL INFO Channel 00/02 :    0   1   3   2
H20-GPU-06:4015540:4015653 [1] NCCL INFO Trees [0] -1/-1/-1->3->2 [1] -1/-1/-1->3->2
H20-GPU-06:4015540:4015653 [1] NCCL INFO Channel 00/0 : 1[1] -> 3[1] [receive] via NET/IB/2/GDRDMA
H20-GPU-06:4015540:4015653 [1] NCCL INFO Channel 01/0 : 3[1] -> 1[1] [send] via NET/IB/2/GDRDMA
H20-GPU-06:4015540:4015653 [1] NCCL INFO Channel 00/0 : 3[1] -> 2[0] via P2P/CUMEM
H20-GPU-06:4015540:4015653 [1] NCCL INFO Channel 01/0 : 3[1] -> 2[0] via P2P/CUMEM
H20-GPU-06:4015540:4015653 [1] NCCL INFO Connected all rings
"""


# NCCL log lines


@pytest.mark.parametrize(
    ("line", "channel"),
    [
        (
            "swat1-04:2017630:2017697 [7] NCCL INFO Channel 00/0 : 7[7] -> 6[6] via P2P/direct pointer/read",
            (7, 6, "P2P/direct pointer/read"),
        ),
        ("<cluster_name>:919:1150 [0] NCCL INFO Channel 01/0 : 8[0] -> 15[7] via P2P/IPC/read", (8, 15, "P2P/IPC/read")),
        ("gpu-dev-a1069b08:1768:1768 [6] NCCL INFO Channel 21/0 : 6[6] -> 7[7] via P2P/CUMEM", (6, 7, "P2P/CUMEM")),
        ("[2026-05-05 06:16:47] n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", (0, 1, "P2P/CUMEM/read")),
        ("m27xf:3884652:3884740 [7] NCCL INFO Channel 01 : 7[7] -> 2[2] via SHM/direct/direct", (7, 2, "SHM/direct/direct")),
        ("swat1-04:2017630:2017699 [5] NCCL INFO Channel 03/0 : 5[5] -> 12[4] [send] via NET/IB/3", (5, 12, "NET/IB")),
        (
            "deepseek-v2-5-0:5969:23467 [0] NCCL INFO Channel 00/1 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA/Shared",
            (0, 1, "NET/IB/GDRDMA/Shared"),
        ),
        ("hostname-test:987:1260 [7] NCCL INFO Channel 03/0 : 47[7] -> 39[7] [receive] via NET/IBext_v8/2", (47, 39, "NET/IBext_v8")),
        ("ubuntu:9621:9692 [7] NCCL INFO Channel 14/0 : 15[7] -> 0[0] [send] via NET/Socket/0", (15, 0, "NET/Socket")),
        (
            "vm-host38:33958:34017 [1] NCCL INFO Channel 01/1 : 3[0] -> 0[1] [send] via NET/NCCL RDMA Plugin v6/0(2)/GDRDMA/Shared",
            (3, 0, "NET/NCCL RDMA Plugin v6/GDRDMA/Shared"),
        ),
        (
            "nccl-tests-efa-worker-0:27:72 [1] NCCL INFO Channel 00 : 1[101d0] -> 8[101c0] [send] via NET/AWS Libfabric/0/GDRDMA",
            (1, 8, "NET/AWS Libfabric/GDRDMA"),
        ),
        (
            "macpro:253809:253907 [3] NCCL INFO Channel 00/0 : 3[1e000] -> 0[b000] via P2P/direct pointer comm 0x588ff95e26d0 nRanks 04",
            (3, 0, "P2P/direct pointer"),
        ),
    ],
)
def test_nccl_channel_line_is_parsed(line: str, channel: tuple[int, int, str]) -> None:
    assert parse_channels(f"before\n{line}\nafter\n") == {NcclChannel(*channel)}


def test_other_log_lines_are_ignored() -> None:
    assert parse_channels(TWO_NODES) == {
        NcclChannel(1, 3, "NET/IB/GDRDMA"),
        NcclChannel(3, 1, "NET/IB/GDRDMA"),
        NcclChannel(3, 2, "P2P/CUMEM"),
    }


@pytest.mark.parametrize(
    ("using", "spoken"),
    [
        ("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eno1:101.262.0.9<0>", "InfiniBand"),
        ("NET/IB : Using [0]mlx5_0:1/RoCE ; OOB nmn0:10.252.1.67<0>", "RoCE"),
        ("NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/IB/SHARP ; OOB ib0:10.0.0.7<0>", ""),
        ("NET/Socket : Using [0]eth0:10.0.0.5<0>", ""),
    ],
)
def test_nic_type_is_parsed_from_the_log(using: str, spoken: str) -> None:
    assert nic_type(f"n1:1:257 [0] NCCL INFO {using}\n") == spoken


# capturing the log


def log_as_nccl_does(text: str) -> None:
    """Write to NCCL_DEBUG_FILE like NCCL."""
    with open(os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid())), "w") as file:
        file.write(text)


@pytest.fixture
def no_log_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("NCCL_DEBUG")]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_log_asked_for")
def test_nccl_log_is_captured_and_environment_restored() -> None:
    before = dict(os.environ)
    with capture_nccl_log() as log:
        assert os.environ["NCCL_DEBUG"] == "INFO"
        assert log() == ""
        log_as_nccl_does(TWO_NODES)
    assert log() == TWO_NODES
    assert dict(os.environ) == before


@pytest.mark.usefixtures("no_log_asked_for")
@pytest.mark.parametrize(("level", "read"), [("INFO", True), ("info", True), ("WARN", False)])
def test_user_requested_log_file_is_kept(level: str, read: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NCCL_DEBUG", level)
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(tmp_path / "nccl.%p"))
    before = dict(os.environ)
    with capture_nccl_log() as log:
        assert dict(os.environ) == before
        assert log() == ""
        log_as_nccl_does(TWO_NODES)
    assert log() == (TWO_NODES if read else "")


@pytest.mark.usefixtures("no_log_asked_for")
def test_log_to_the_terminal_is_not_redirected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    with capture_nccl_log() as log:
        assert "NCCL_DEBUG_FILE" not in os.environ
    assert log() == ""


# transports


def world(places: Environment) -> World:
    """A world of these ranks in which this process is rank 0."""
    seat = RankEnv(host="node-01")
    notices = [RankInfo(place, records.SOFTWARE) for place in places.placements]
    return World(seat, open_device("cpu", seat, share_gpu=False), RankStore(dist.HashStore(), seat), notices, "none", 60.0)


def test_rank_reports_its_transports_to_other_hosts() -> None:
    seen = gather_interconnect(world(records.environment(4, nodes=2)), TWO_NODES)
    assert seen.transports == [P2P, replace(IB, link_type="RoCE")]
    far = TWO_NODES.replace("3[1]", "4[1]")
    assert gather_interconnect(world(records.environment(4, nodes=2)), far).transports == [], "ranks outside this world"


@pytest.mark.parametrize(
    ("ranks", "nodes", "across"), [(1, 1, []), (2, 1, [False]), (2, 2, [True]), (4, 2, [False, True])], ids=["one", "host", "nodes", "both"]
)
def test_gloo_uses_sockets(ranks: int, nodes: int, across: list[bool]) -> None:
    assert gloo_transports(records.environment(ranks, nodes=nodes).placements) == [Transport(via="TCP", inter_node=each) for each in across]


def test_environment_includes_transports_between_its_ranks() -> None:
    fabric = Interconnect([NVLINK, IB], ["mlx5_0"])
    both = with_transport(records.environment(4, nodes=2, transport=[SOCKET]), fabric)
    assert (both.transport, both.infiniband_devices) == ([NVLINK, IB, SOCKET], ["mlx5_0"])
    assert with_transport(records.environment(2), fabric).transport == [NVLINK]
    assert with_transport(records.environment(1), fabric).transport == []
    assert with_transport(records.environment(2, device="Xeon CPU"), fabric).transport == []


# headers and checks


@pytest.mark.parametrize(
    ("ranks", "nodes", "ways", "text"),
    [
        (4, 1, [NVLINK], "NCCL over NVLink"),
        (4, 1, [PCIE], "NCCL over PCIe"),
        (4, 1, [P2P], "NCCL over P2P"),
        (4, 1, [NVLINK, SHM], "NCCL over NVLink and shared memory"),
        (4, 2, [NVLINK, replace(IB, link_type="InfiniBand")], "NCCL over NVLink, InfiniBand between nodes"),
        (2, 2, [IB], "NCCL over IB"),
        (4, 2, [SHM, SOCKET], "NCCL over shared memory, sockets between nodes"),
        (2, 2, [Transport(via="NET/AWS Libfabric/GDRDMA", inter_node=True)], "NCCL over AWS Libfabric"),
        (4, 1, [], ""),
    ],
)
def test_header_names_the_transports(ranks: int, nodes: int, ways: list[Transport], text: str) -> None:
    record = records.record([records.BUSY] * ranks, environment=records.environment(ranks, nodes=nodes, transport=ways))
    printed = "\n".join(line.plain for line in header_lines(record, Page(200, unicode=True, verbose=True)))
    assert (f"     {text}     " in printed) if text else (" over " not in printed)


def test_gloo_over_sockets_is_printed_once() -> None:
    ways = [Transport(via="TCP", inter_node=False), Transport(via="TCP", inter_node=True)]
    place = records.environment(4, nodes=2, device="Xeon CPU", transport=ways)
    printed = "\n".join(
        line.plain
        for line in header_lines(records.cpu_run(ranks=[records.BUSY] * 4, environment=place), Page(200, unicode=True, verbose=True))
    )
    assert "     gloo over sockets     " in printed


def on_two_nodes(ways: Sequence[Transport], **changes: Any) -> Record:
    environment = records.environment(4, nodes=2, transport=list(ways), **changes)
    return records.record(environment=environment)


def test_sockets_despite_infiniband_are_a_warning() -> None:
    unused = on_two_nodes([NVLINK, SOCKET], infiniband_devices=["mlx5_0"])
    assert run_checks(unused) == [NoInfiniband(severity="warning", disabled_by=[])]
    off = on_two_nodes([SOCKET], infiniband_devices=["mlx5_0", "mlx5_1"], variables={"NCCL_IB_DISABLE": "1"})
    assert run_checks(off) == [NoInfiniband(severity="warning", disabled_by=["NCCL_IB_DISABLE"])]


@pytest.mark.parametrize(
    ("ways", "infiniband"),
    [([NVLINK, IB], ["mlx5_0"]), ([NVLINK, SOCKET], []), ([NVLINK], ["mlx5_0"]), ([], ["mlx5_0"])],
    ids=["used", "not there", "one host", "unknown"],
)
def test_expected_transports_give_no_check(ways: list[Transport], infiniband: list[str]) -> None:
    assert run_checks(on_two_nodes(ways, infiniband_devices=infiniband)) == []


def test_unequal_nodes_are_info() -> None:
    environment = records.environment(4, nodes=2)
    places = [replace(place, host=f"node-{1 + (place.rank > 0):02}") for place in environment.placements]
    ranks = Imbalance(least=1, least_host="node-01", most=3, most_host="node-02")
    unequal = records.record(environment=replace(environment, placements=places))
    assert run_checks(unequal) == [UnequalNodes(severity="info", ranks=ranks)]
    places = [replace(place, usable_cores=16.0 if place.node_rank else 60.0) for place in environment.placements]
    cores = Imbalance(least=16.0, least_host="node-02", most=60.0, most_host="node-01")
    unequal = records.record(environment=replace(environment, placements=places))
    assert run_checks(unequal) == [UnequalNodes(severity="info", usable_cores=cores)]


# InfiniBand devices in sysfs


def test_only_active_infiniband_ports_count(tmp_path: Path) -> None:
    cards = {"mlx5_0": ("InfiniBand", "4: ACTIVE"), "mlx5_1": ("InfiniBand", "1: DOWN"), "mlx5_2": ("Ethernet", "4: ACTIVE")}
    for card, (layer, state) in cards.items():
        port = tmp_path / card / "ports" / "1"
        port.mkdir(parents=True)
        (port / "link_layer").write_text(f"{layer}\n")
        (port / "state").write_text(f"{state}\n")
    assert active_infiniband_devices(tmp_path) == ["mlx5_0"]
    assert active_infiniband_devices(tmp_path / "nowhere") == []


# real GPUs


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two ranks need two GPUs")
def test_two_gpus_of_one_host_use_p2p_or_shared_memory(launch: Callable[..., Any], results: Path) -> None:
    words = ["resnet18", "--gpus", "2", "-b", "8", "--steps", "2", "--rounds", "1", "--warmup", "1"]
    done = launch([*PLAIN, *words, "-v", "-o", str(results)])
    assert done.returncode == 0, done.stderr
    environment = only_record(results).environment
    assert environment.transport
    assert {way.via.partition("/")[0] for way in environment.transport} <= {"P2P", "SHM"}
    assert not any(way.inter_node for way in environment.transport)
    assert "NCCL over " in done.stdout
    assert not any(name.startswith("NCCL_DEBUG") for name in environment.variables)
