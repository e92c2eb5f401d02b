"""What a job does once, after its first step."""

from __future__ import annotations

from pathlib import Path

import records
import torch
from msgspec.structs import replace
from training import world_of_one

from ddpbench.bench.after_first_step import AfterFirstStep, record_model_costs, record_peaks
from ddpbench.bench.job_spec import JobContext
from ddpbench.bench.journal import Journal
from ddpbench.bench.time_budget import RoundTimer
from ddpbench.machine.backends import get_tf32
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.record.record import Job
from ddpbench.report.progress import NullProgress


def journal_of(path: Path, *arms: records.Record) -> Journal:
    return Journal(Job(started="", command=[], records=list(arms)), path / "record.json")


def test_models_of_all_arms_are_counted_once(tmp_path: Path) -> None:
    uncounted, counted = (records.record(num_parameters=0, flops_per_sample=None), records.record(num_parameters=1, flops_per_sample=2.0))
    uncounted.config = replace(uncounted.config, workload="disc-mlp-3", image_size=None)
    journal = journal_of(tmp_path, uncounted, counted)
    context = JobContext([each.config for each in (uncounted, counted)], world_of_one(), ProgressMarker(60.0), journal, NullProgress(), 0.0)
    after_first_step = AfterFirstStep(context, RoundTimer())
    after_first_step()
    assert (uncounted.num_parameters, counted.num_parameters, counted.flops_per_sample) == (70, 1, 2.0)
    assert uncounted.flops_per_sample
    uncounted.flops_per_sample = None
    after_first_step()
    assert uncounted.flops_per_sample is None


def test_nothing_is_counted_once_a_signal_ends_the_run(tmp_path: Path) -> None:
    record = records.record(flops_per_sample=None)
    journal = journal_of(tmp_path, record)
    journal.freeze()
    record_model_costs(journal)
    assert record.flops_per_sample is None


def test_peaks_of_this_job_leave_arms_of_an_earlier_one_and_the_settings_alone(tmp_path: Path) -> None:
    earlier, present, cpu = (records.record(status=status, peak_throughput=None) for status in ("ok", "running", "running"))
    cpu.config = replace(cpu.config, device="cpu")
    journal = journal_of(tmp_path, earlier, present, cpu)
    configs = [replace(present.config, precision=precision) for precision in ("fp32", "amp-bf16")]
    settings = get_tf32(), torch.get_rng_state().tolist()
    record_peaks(JobContext(configs, world_of_one(), ProgressMarker(60.0), journal, NullProgress(), 0.0))
    assert [each.peak_throughput is None for each in journal.job.records] == [True, False, True]
    assert present.peak_throughput
    assert present.peak_throughput.matmul_tflops.keys() == {"float32", "bfloat16"}
    assert (get_tf32(), torch.get_rng_state().tolist()) == settings
