"""Protocols of the published experiments: every published row has an arm that matches its source."""

from __future__ import annotations

import msgspec
import pytest
import records

from ddpbench.bench.arm_specs import ArmSpec, build_request
from ddpbench.bench.resolve import resolve_config
from ddpbench.published.crossover_sides import crossover_arms as crossover_cells
from ddpbench.published.crossover_sides import resolve_sides
from ddpbench.published.protocols import PROTOCOLS, reproduction_request
from ddpbench.published.publications import load_publication, published_names
from ddpbench.published.sweep_points import match_row
from ddpbench.record.config import Config
from ddpbench.record.errors import UsageError
from ddpbench.record.record import Job
from ddpbench.record.request import OutputOptions
from ddpbench.record.roles import EARLIER_MODEL_ALIVE, RUN
from ddpbench.training.optimizer import lr_factor
from ddpbench.workloads.model_cost import workload_cost

FULL = [(name, cell) for name, protocol in PROTOCOLS.items() for cell in protocol(False)]


def job_of(name: str, quick: bool) -> Job:
    """The requested job of a protocol, without measurements."""
    command = ["ddpbench", "reproduce", name, *(["--quick"] if quick else [])]
    request = build_request(PROTOCOLS[name](quick), {}, OutputOptions(), command)
    kept = []
    for config, role in zip(request.arms, request.roles, strict=True):
        made = records.record([{"forward": 1.0}], config=config)
        made.role, made.num_parameters = role, workload_cost(config.workload, resolve_config(config, False, 1).image_size).parameters
        kept.append(made)
    return Job(started="", command=command, records=kept)


def only(name: str, **wanted: object) -> list[ArmSpec]:
    return [cell for cell in PROTOCOLS[name](False) if all(getattr(cell.config, field) == value for field, value in wanted.items())]


def test_every_published_experiment_has_a_protocol() -> None:
    assert set(published_names()) == {*PROTOCOLS, "disc-mlp-cpu-vs-gpu"}


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_published_row_has_an_arm(name: str, quick: bool) -> None:
    job = job_of(name, quick)
    for experiment in load_publication(name).experiments:
        batches = sorted({row.batch_size for row in experiment.rows if row.batch_size is not None})
        for row in experiment.rows:
            cut = quick and row.batch_size is not None and batches.index(row.batch_size) >= 2  # --quick has only the two smallest of five
            assert (match_row(row, experiment, job) is None) == cut, row


@pytest.mark.parametrize(("name", "cell"), FULL, ids=[f"{name}-{number}" for number, (name, _) in enumerate(FULL)])
def test_every_arm_trains_from_scratch_in_channels_first_layout(name: str, cell: ArmSpec) -> None:
    assert cell.config.fresh
    assert cell.config.channels_last is False
    assert (cell.config.steps is None) != (cell.config.epochs is None)


@pytest.mark.parametrize("workload", ["vgg16-cifar10", "resnet18", "resnet50", "gemm-mlp"])
def test_default_length_is_the_published_number_of_steps(workload: str) -> None:
    (published,) = {cell.config.steps for _, cell in FULL if cell.config.workload == workload}
    sizes = [resolve_config(Config(workload=workload, fresh=True, batch_size=batch), True, 1) for batch in (16, 128)]
    assert [config.steps for config in sizes] == [published, published]


def test_default_lengths_are_equal_between_precisions() -> None:
    whole = Config(workload="mnist-cnn", fresh=True)
    for cuda in (True, False):
        lengths = {resolve_config(msgspec.structs.replace(whole, precision=name), cuda, 1).steps for name in ("fp32", "amp-bf16")}
        assert len(lengths) == 1
        assert None not in lengths
    assert resolve_config(msgspec.structs.replace(whole, epochs=2), True, 1).steps is None
    assert resolve_config(msgspec.structs.replace(whole, steps=7), True, 1).steps == 7
    assert resolve_config(msgspec.structs.replace(whole, fresh=False), True, 1).steps is None


def test_gemm_arms_match_the_published_script() -> None:
    cells = only("t4-tensor-cores", workload="gemm-mlp")
    assert [(cell.config.precision, cell.role) for cell in cells] == [("fp32", RUN), ("amp-fp16", EARLIER_MODEL_ALIVE), ("amp-fp16", RUN)]
    for cell in cells:
        settled = resolve_config(cell.config, True, 1)
        assert (settled.batch_size, settled.steps, settled.lr, settled.momentum, settled.set_to_none) == (512, 150, 1e-3, 0.0, False)


def test_mnist_arms_match_the_published_script() -> None:
    for cell in only("t4-tensor-cores", workload="mnist-cnn"):
        config = cell.config
        assert (config.epochs, config.workers, config.pin_memory, config.log_loss, config.schedule) == (20, 2, False, True, "step")
        assert lr_factor(config.schedule, 117, 2340, 117) == 0.7, "one scheduler step per epoch"


def test_wide_resnet_arms_match_the_published_scripts() -> None:
    levels = ["fp32", "amp-fp16", "o2", "fp16"]
    whole = only("wrn-cifar10-apex-levels", batch_size=128)
    assert [cell.config.precision for cell in whole] == levels
    assert {(cell.config.epochs, cell.config.schedule, cell.config.momentum) for cell in whole} == {(10, "linear", None)}
    assert {resolve_config(cell.config, True, 1).momentum for cell in whole} == {0.9}
    starved = only("wrn-cifar10-apex-levels", batch_size=512)
    assert [cell.config.precision for cell in starved] == levels[:3] * 2
    assert {(cell.config.cores, cell.config.workers) for cell in starved} == {(2, 2)}
    assert len({cell.config.workload for cell in starved}) == 2, "and a smaller model"


def test_vgg16_batch_sweep_arms_match_the_published_script() -> None:
    for precision, scale in (("fp32", None), ("o2", 128.0), ("amp-fp16", None)):
        cells = only("vgg16-cifar10-batch-sweep", precision=precision)
        assert [cell.config.batch_size for cell in cells] == [128, 256, 512, 1024, 2048]
        for config in (cell.config for cell in cells):
            assert (config.steps, config.rounds, config.lr, config.momentum, config.static_loss_scale) == (100, 5, 0.01, 0.9, scale)
            assert (config.workers, config.shuffle, config.augment) == (0, False, False)


def test_imagenet_arms_match_the_published_script() -> None:
    cells = PROTOCOLS["imagenet-resnet-slurm-vs-container"](False)
    assert [(cell.config.workload, cell.config.precision) for cell in cells] == [
        ("resnet18", "fp32"),
        ("resnet18", "o2"),
        ("resnet50", "fp32"),
        ("resnet50", "o2"),
    ]
    assert {(cell.config.batch_size, cell.config.steps, cell.config.workers, cell.config.static_loss_scale) for cell in cells} == {
        (128, 360, 4, 256.0)
    }


def test_disc_arms_match_the_published_script() -> None:
    cells = crossover_cells("disc-mlp", [("cpu", 4), ("cuda", None)], range(2, 13))
    assert [cell.config.workload for cell in cells[::2]] == [f"disc-mlp-{layers}" for layers in range(2, 13)]
    assert [cell.role.side for cell in cells[:2]] == ["CPU, 4 threads", "GPU"]
    for config in (cell.config for cell in cells):
        assert (config.epochs, config.batch_size, config.shuffle, resolve_config(config, False, 1).lr) == (100, 100, False, 0.1)


def test_given_flags_apply_to_every_arm() -> None:
    request = build_request(PROTOCOLS["t4-tensor-cores"](True), {"device": "cpu", "seed": 7}, OutputOptions(), [])
    assert {(arm.device, arm.seed) for arm in request.arms} == {("cpu", 7)}
    assert [msgspec.structs.replace(arm, device="auto", seed=0) for arm in request.arms] == [
        cell.config for cell in PROTOCOLS["t4-tensor-cores"](True)
    ]


@pytest.mark.parametrize(("devices", "threads"), [(["cpu"], [2]), (["cpu"], [1, 2, 4]), (["cpu", "cuda"], [1, 2]), (["cuda"], [])])
def test_crossover_requires_exactly_two_sides(devices: list[str], threads: list[int]) -> None:
    with pytest.raises(UsageError, match="two sides"):
        resolve_sides(devices, threads)


def test_disc_reproduction_requires_a_cpu_side() -> None:
    with pytest.raises(UsageError, match="leaves the GPU alone") as refused:
        reproduction_request("disc-mlp-cpu-vs-gpu", False, {"device": "cuda"}, OutputOptions(), [])
    assert refused.value.hint == "leave --device out"
