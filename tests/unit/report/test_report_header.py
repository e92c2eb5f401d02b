"""Page headers: DDP, threads and flags."""

from __future__ import annotations

import re

import pytest
import records
from msgspec.structs import replace

from ddpbench.record.config import Config
from ddpbench.record.record import Record
from ddpbench.report.layout import Page
from ddpbench.report.messages.fast_gains import GAINS
from ddpbench.report.pages.header import header_lines, shared_header_lines

PAGE = Page(100, unicode=True, verbose=True)


def run(ranks: int, engine: str, launched: bool) -> Record:
    place = records.environment(ranks, backend="nccl" if launched else "none", launcher="torchrun" if launched else "python")
    return records.record([records.BUSY] * ranks, environment=place, config=replace(records.RESNET50, engine=engine))


@pytest.mark.parametrize(
    ("ranks", "engine", "launched", "text"),
    [
        (4, "ddp", True, "  ddp, buffer broadcast on"),
        (1, "ddp", True, "  ddp  channels-last"),
        (1, "ddp", False, "  no DDP: one process"),
        (4, "accelerate", True, "  accelerate, buffer broadcast on"),
        (1, "accelerate", True, "  accelerate, no DDP: one rank"),
        (1, "accelerate", False, "  accelerate, no DDP: one process"),
    ],
)
def test_header_states_whether_ddp_wraps_the_model(ranks: int, engine: str, launched: bool, text: str) -> None:
    printed = "\n".join(line.plain for line in header_lines(run(ranks, engine, launched), PAGE))
    assert text in printed


@pytest.mark.parametrize(
    ("setting", "text"),
    [("fused_kernels", "  fused kernels"), ("cuda_graph", "  CUDA graphs (phases as in the last step of a round)")],
)
def test_header_states_how_kernels_run_on_a_gpu(setting: str, text: str) -> None:
    gpu, cpu = run(4, "ddp", True), records.cpu_run()
    for record in (gpu, cpu):
        record.config = replace(record.config, **{setting: True})
    pages = ["\n".join(line.plain for line in header_lines(record, PAGE)) for record in (gpu, cpu)]
    assert [text in page for page in pages] == [True, False]


@pytest.mark.parametrize(
    ("given", "chosen", "line"),
    [
        ({}, {"fused_kernels": True, "cuda_graph": True}, "fast  fused kernels {fused_kernels}   CUDA graphs {cuda_graph}"),
        ({"cuda_graph": False}, {"fused_kernels": True}, "fast  fused kernels {fused_kernels}   --no-cuda-graph as you set it"),
        ({}, {"fused_kernels": True, "broadcast_buffers": False}, "fast  fused kernels {fused_kernels}   no buffer broadcast\n"),
        ({}, {"fused_kernels": True, "precision": "tf32"}, "fast  fused kernels"),
        ({}, {"compile": "default", "cuda_graph": True}, "fast  compiled kernels   CUDA graphs"),
        ({}, {"compile": "default", "combo_kernels": True}, "fast  compiled kernels   combo kernels"),
        ({}, {"cudnn_benchmark_limit": 0}, "fast  all algorithms of cuDNN tried\n"),
        ({"cudnn_benchmark_limit": 10}, {}, "fast  --cudnn-benchmark-limit 10 as you set it\n"),
        ({}, {"optimizer_impl": "triton"}, "fast  SGD in Triton\n"),
        ({}, {"cuda_graph": True, "broadcast_buffers": False}, "fast  CUDA graphs   no buffer broadcast"),
        ({"compile": "off"}, {"cuda_graph": True}, "fast  --compile off as you set it   CUDA graphs"),
    ],
)
def test_header_lists_what_fast_has_chosen_and_what_it_gains(given: dict[str, bool], chosen: dict[str, object], line: str) -> None:
    record = run(4, "ddp", True)
    record.requested = replace(Config(workload="resnet50", fast=True), **given)
    record.config = replace(record.config, fast=True, **{"cuda_graph": False, **chosen})
    measured = GAINS["resnet50"]
    printed = "\n".join(line.plain for line in header_lines(record, PAGE))
    assert line.format(**{name: f"{center:.2f}x" for name, (center, _, _) in measured.gains.items()}) in printed
    assert ("(gains measured with resnet50 amp-fp16 -b 256" in " ".join(printed.split())) == ("{" in line)


@pytest.mark.parametrize(("workload", "measured"), [("vgg16-cifar10", "vgg16-cifar10"), ("disc-mlp-20", "disc-mlp-10")])
def test_header_shows_what_compiled_kernels_gain_a_similar_workload(workload: str, measured: str) -> None:
    record = run(1, "ddp", True)
    record.requested = Config(workload=workload, fast=True)
    record.config = replace(record.config, workload=workload, fast=True, compile="default", cuda_graph=True)
    gains = {name: f"{center:.3g}x" for name, (center, _, _) in GAINS[measured].gains.items()}
    printed = " ".join("\n".join(line.plain for line in header_lines(record, PAGE)).split())
    assert f"fast compiled kernels {gains['compile']} CUDA graphs {gains['cuda_graph']} (gains measured with {measured} amp-fp16" in printed


def test_shared_header_lists_no_choice_of_fast_in_which_its_arms_differ() -> None:
    arms = [run(4, "ddp", True) for _ in range(3)]
    for record, compiled in zip(arms, ("off", "default"), strict=False):
        record.requested = Config(workload="resnet50", fast=True, compile=compiled, cuda_graph=True)
        record.config = replace(record.config, fast=True, compile=compiled, fused_kernels=compiled == "off", broadcast_buffers=False)
    for order in (arms, arms[::-1]):
        lines = [line.plain for line in shared_header_lines(order, PAGE)]
        assert "fast  --cuda-graph as you set it   no buffer broadcast" in lines


def test_shared_header_keeps_what_all_compiled_arms_have_in_common() -> None:
    modes, combined = [run(4, "ddp", True) for _ in range(2)], [run(4, "ddp", True) for _ in range(2)]
    for record, mode in zip(modes, ("default", "max-autotune"), strict=True):
        record.config = replace(record.config, compile=mode, combo_kernels=True)
    for record, on in zip(combined, (True, False), strict=True):
        record.config = replace(record.config, compile="default", combo_kernels=on)
    first, second = ("\n".join(line.plain for line in shared_header_lines(arms, PAGE)) for arms in (modes, combined))
    assert ("--compile" in first, "--combo-kernels" in first) == (False, True)
    assert ("--compile default" in second, "--combo-kernels" in second) == (True, False)


def test_broadcast_is_no_choice_without_ddp() -> None:
    record = run(1, "ddp", False)
    record.requested = Config(workload="resnet50", fast=True)
    record.config = replace(record.config, fast=True, cuda_graph=True, broadcast_buffers=False)
    assert "fast  CUDA graphs" in [line.plain for line in header_lines(record, PAGE)]


@pytest.mark.parametrize(
    ("ranks", "given", "threads", "text"),
    [
        (1, {}, None, "all 2 cores"),
        (1, {"OMP_NUM_THREADS": "1"}, None, "1 thread"),
        (1, {"OMP_NUM_THREADS": "1"}, 2, "2 threads"),
        (2, {"OMP_NUM_THREADS": "1"}, None, "1 thread per rank"),
        (2, {}, None, ""),
        (2, {}, 4, "4 threads per rank"),
    ],
)
def test_header_states_threads_of_cpu_ranks(ranks: int, given: dict[str, str], threads: int | None, text: str) -> None:
    place = records.environment(ranks, device="Xeon CPU", usable_cores=2.0, variables=given)
    record = records.cpu_run(ranks=[records.BUSY] * ranks, environment=place)
    record.config = replace(record.config, threads=threads)
    words = re.split(" {3,}|\n", "\n".join(line.plain for line in header_lines(record, PAGE)))
    assert [word for word in words if re.search(r"\bthreads?\b|\bcores\b", word)] == ([text] if text else [])


def test_header_shows_flags_as_typed() -> None:
    record = records.record()
    record.config = replace(record.config, fail_if_data_wait=5.0, shuffle=False)
    printed = "\n".join(line.plain for line in header_lines(record, PAGE))
    assert "--no-shuffle   --fail-if-data-wait 5.0%" in printed


def test_header_of_vector_samples_has_no_pixels() -> None:
    record = records.record()
    record.sample_unit, record.config = "point", replace(record.config, image_size=None)
    assert " px" not in "\n".join(line.plain for line in header_lines(record, PAGE))


@pytest.mark.parametrize(
    ("ranks", "launched", "text"), [(1, True, "no DDP in accelerate: one rank"), (1, False, "no DDP: one process"), (4, True, "")]
)
def test_shared_header_names_the_engine_without_ddp(ranks: int, launched: bool, text: str) -> None:
    arms = [run(ranks, engine, launched) for engine in ("ddp", "accelerate")]
    printed = "\n".join(line.plain for line in shared_header_lines(arms, PAGE))
    assert text in printed
    assert ("no DDP" in printed) == bool(text)
