"""Sentences about samples that workers read, files that they share, and memory that they need."""

from __future__ import annotations

import pytest

from ddpbench.record.diagnosis import WorkerMemory
from ddpbench.record.script import SampleComparison, SharedHandle
from ddpbench.record.verdict import ChangeDataLoader
from ddpbench.report.messages.sample_comparison import comparison_text
from ddpbench.report.messages.shared_handles import open_text, shared_text
from ddpbench.report.messages.verdict import next_step_text
from ddpbench.report.messages.worker_memory import memory_limit_text, room_text

FILE, MAP = SharedHandle(name="Records.file", kind="file"), SharedHandle(name="Records.map", kind="memory-map")
OF_LIBRARY = SharedHandle(name="Records", kind="descriptor", path="/data/records.bin")
MEMORY = WorkerMemory(batch_bytes=2**28, worker_bytes=2**29, shm_bytes=2**30, memory_bytes=2**33)


@pytest.mark.parametrize(
    ("comparison", "text"),
    [
        (SampleComparison(workers=3, samples=300), "no difference in 300 samples that 3 workers read at once"),
        (
            SampleComparison(workers=3, samples=260, unsteady=40),
            "no difference in 260 samples that 3 workers read at once; 40 others differ from one read to the next",
        ),
        (SampleComparison(workers=3, samples=300, different=24), "24 of 300 samples differ if 3 workers read them at once"),
        (
            SampleComparison(workers=3, samples=300, not_compared="random"),
            "not compared: 300 samples of the dataset differ from one read to the next, by random transforms with their own state",
        ),
        (
            SampleComparison(workers=3, not_compared="failed", error="BadZipFile: Bad magic number"),
            "samples of 3 workers could not be compared: BadZipFile: Bad magic number",
        ),
        (
            SampleComparison(workers=2, samples=300, is_stream=True),
            "no sample of 300 samples was yielded by both of 2 workers",
        ),
        (
            SampleComparison(workers=2, samples=300, different=150, is_stream=True),
            "2 workers yield the same samples: the stream is not divided among them",
        ),
        (
            SampleComparison(workers=2, samples=300, not_compared="repetitive", is_stream=True),
            "not compared: one worker alone yields the same samples several times, so that those of two cannot be distinguished",
        ),
        (
            SampleComparison(workers=2, samples=300, not_compared="shuffled", is_stream=True),
            "not compared: 2 workers draw the samples of the stream at random, and nothing shows that they are divided among them",
        ),
    ],
)
def test_comparison_of_samples(comparison: SampleComparison, text: str) -> None:
    assert comparison_text(comparison) == text


def test_what_workers_share_and_how_they_do_not() -> None:
    assert shared_text([FILE]) == "forked workers would share the file Records.file, which is open before they start"
    both = "the file records.bin of Records and the writable memory map Records.map, which are"
    assert shared_text([OF_LIBRARY, MAP]) == f"forked workers would share {both} open before they start"
    assert open_text([FILE, MAP]) == "open Records.file in each worker, open Records.map read-only"


def test_changes_of_the_dataset_come_before_those_of_the_loader() -> None:
    call = "DataLoader(..., num_workers=4)"
    assert next_step_text(ChangeDataLoader(num_workers=4, shared_handles=[FILE])) == f"open Records.file in each worker, then {call}"
    divided = next_step_text(ChangeDataLoader(num_workers=4, divide_samples=True))
    assert divided == f"divide the samples among workers (torch.utils.data.get_worker_info), then {call}"


def test_limits_of_memory() -> None:
    assert memory_limit_text("shm", 4, 2, MEMORY) == (
        "4 workers with prefetch_factor=2 hold up to 8 batches, 2 GiB; /dev/shm has room for 1 GiB; "
        "docker run --shm-size=5g, or --ipc=host, raises it"
    )
    assert memory_limit_text("memory", 20, 1, MEMORY) == (
        "20 workers with prefetch_factor=1 hold up to 20 batches and need 15 GiB of memory; half of what is free is 8 GiB"
    )
    assert room_text("memory", 10, 20, 1, MEMORY) == "the free memory has room for 10"
