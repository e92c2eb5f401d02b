"""CPU usage, throttling and run-queue wait, from kernel files and real processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from core_load import busy_process, printed

from ddpbench.machine import cgroup
from ddpbench.machine.cpu import CLOCK_TICKS_PER_S, PROC_PRESSURE_CPU, PROC_SCHEDSTAT, CpuMonitor, cores_busy_s, runqueue_wait_s
from ddpbench.record.loader_stats import CpuUsage

BURN = """
import time, msgspec
from ddpbench.machine.cpu import CpuMonitor
watch = CpuMonitor()
watch.start()
end = time.monotonic() + 0.6
while time.monotonic() < end:
    pass
print(msgspec.json.encode(watch.finish()).decode())
"""


def burnt(before: str = "") -> CpuUsage:
    """CpuUsage of a program that computes on one core for 0.6 seconds."""
    return msgspec.json.decode(printed(before + BURN), type=CpuUsage)


def test_contended_core_is_busy_and_under_pressure() -> None:
    with busy_process():
        use = burnt()
    assert use.num_cores == 1, "only cores of the affinity set"
    assert use.busy_s == pytest.approx(use.wall_s, rel=0.2)
    if PROC_PRESSURE_CPU.exists():
        assert use.cpu_pressure_fraction is not None
        assert 0.2 < use.cpu_pressure_fraction <= 1


QUEUE = """
import time
from ddpbench.machine.cpu import runqueue_wait_s
before, end = runqueue_wait_s(), time.thread_time() + 0.3
while time.thread_time() < end:
    pass
worked = runqueue_wait_s()
time.sleep(0.3)
print(worked - before, runqueue_wait_s() - worked)
"""


@pytest.mark.skipif(not PROC_SCHEDSTAT.exists(), reason="this kernel does not count how long a thread waits for a core")
def test_runqueue_wait_counts_contention_but_not_sleep() -> None:
    with busy_process():
        working, sleeping = map(float, printed(QUEUE).split())
    assert working > 0.1
    assert working > 3 * sleeping


def test_runqueue_wait_is_unknown_without_kernel_counts(tmp_path: Path) -> None:
    counts = tmp_path / "schedstat"
    assert runqueue_wait_s(counts) is None
    counts.write_text("5000000 2500000000 7\n")
    assert runqueue_wait_s(counts) == 2.5


def test_only_work_counts_as_busy(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text(
        "cpu  99 99 99 99 99 99 99 99 99 99\n"
        "cpu0 1 2 4 1000 2000 8 16 32 7000 8000\n"  # user nice system idle iowait irq softirq steal guest guest_nice
        "cpu2 5 0 0 1000 0 0 0 0 0 0\n"
        "intr 4 5\n"
    )
    assert cores_busy_s({0}, stat) == 63 / CLOCK_TICKS_PER_S
    assert cores_busy_s({0, 2}, stat) == 68 / CLOCK_TICKS_PER_S
    assert cores_busy_s({0, 1}, stat) is None, "a core without counts"
    stat.write_text("cpu0 0 0 0 0 0 0 0 0 0 0\n")
    assert cores_busy_s({0}, stat) is None, "some containers write zeros"
    assert cores_busy_s({0}, tmp_path / "none") is None


@pytest.mark.parametrize(
    ("layout", "own", "seconds"),
    [
        ({"job/cpu.max": "50000 100000", "job/cpu.stat": "usage_usec 7\nthrottled_usec 2500000"}, "0::/job", 2.5),
        (
            {
                "job/cpu.max": "50000 100000",
                "job/cpu.stat": "throttled_usec 2500000",
                "job/step/cpu.max": "50000 100000",
                "job/step/cpu.stat": "throttled_usec 1",
            },
            "0::/job/step",
            2.5,
        ),
        (
            {
                "cpu/cpu.cfs_quota_us": "20000",
                "cpu/cpu.cfs_period_us": "100000",
                "cpu/cpu.stat": "nr_periods 3\nthrottled_time 1500000000",
            },
            "2:cpu:/",
            1.5,
        ),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000", "cpu/cpu.stat": "throttled_time 5"}, "2:cpu:/", None),
        ({"job/cpu.max": "50000 100000"}, "0::/job", 0.0),
    ],
    ids=["v2", "the worst of two", "v1", "no quota", "no counts"],
)
def test_throttled_time_belongs_to_the_cgroup_with_quota(tmp_path: Path, layout: dict[str, str], own: str, seconds: float | None) -> None:
    for name, text in layout.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").write_text(own)
    assert cgroup.throttled_s(tmp_path, tmp_path / "own") == seconds


@pytest.fixture
def fifth_of_a_core() -> Iterator[Path]:
    """A real cgroup with a quota of 0.2 cores; skips if it cannot be created."""
    root = cgroup.CGROUP_ROOT / "cpu" if (cgroup.CGROUP_ROOT / "cpu").is_dir() else cgroup.CGROUP_ROOT
    group = root / f"ddpbench-test-{uuid4().hex}"
    try:
        group.mkdir()
    except OSError as problem:
        pytest.skip(f"no control group can be made here: {problem}")
    try:
        try:
            if (group / "cpu.max").exists():
                (group / "cpu.max").write_text("20000 100000")
            else:
                (group / "cpu.cfs_period_us").write_text("100000")
                (group / "cpu.cfs_quota_us").write_text("20000")
        except OSError as problem:
            pytest.skip(f"no quota can be set here: {problem}")
        yield group
    finally:
        with suppress(OSError):
            group.rmdir()


def test_real_cgroup_quota_and_its_throttling_are_measured(fifth_of_a_core: Path) -> None:
    join = f"import os; open('{fifth_of_a_core}/cgroup.procs', 'w').write(str(os.getpid()))\n"
    use = burnt(join)
    assert use.throttled_s is not None
    assert use.throttled_s > 0
    usable = printed(f"{join}from ddpbench.machine.host import usable_cores; print(usable_cores({{}}))")
    assert float(usable) == 0.2


def test_throttled_time_is_missing_without_quota() -> None:
    watch = CpuMonitor()
    watch.start()
    use = watch.finish()
    assert use is None or (use.throttled_s is None) == (not list(cgroup.cpu_quotas()))
