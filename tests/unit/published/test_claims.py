"""Published rows and claims, compared with examples of known figures and with themselves."""

from __future__ import annotations

import re

import pytest
import sweeps
from msgspec.structs import replace

from ddpbench.analysis.metrics import (
    ACCURACY,
    ALLOCATED,
    MAX_STEP_SAMPLES_PER_S,
    MIN_STEP_SAMPLES_PER_S,
    PROCESS_MEMORY,
    SECONDS,
    mean_std,
    memory_metric,
    paired_ratio,
)
from ddpbench.analysis.stats import PairedRatio, ratio_of
from ddpbench.cli import main
from ddpbench.published.claims import ClaimResult, check_claims
from ddpbench.published.effect_size import PublishedRatio
from ddpbench.published.publications import load_publication
from ddpbench.published.reproduction import compare_rows, protocol_deviations, substituted_workloads
from ddpbench.record.errors import UsageError
from ddpbench.record.record import DatasetInfo, Job
from ddpbench.record.roles import EARLIER_MODEL_ALIVE

T4, WRN, VGG = "t4-tensor-cores", "wrn-cifar10-apex-levels", "vgg16-cifar10-batch-sweep"
DISC, IMAGENET = "disc-mlp-cpu-vs-gpu", "imagenet-resnet-slurm-vs-container"


def about(results: list[ClaimResult], words: str) -> ClaimResult:
    return next(result for result in results if words in result.claim)


def test_published_v100_rows_match_themselves() -> None:
    results = [result for result in compare_rows(VGG, sweeps.published_vgg("V100")) if result.row.gpu == "V100"]
    assert len(results) == 15
    for result in results:
        assert set(result.figures) == {"seconds", "memory", "accuracy"}
        for compared in result.figures.values():
            assert compared.ratio == pytest.approx(1, abs=1e-3)
    slower = next(result for result in compare_rows(VGG, sweeps.published_vgg("V100")) if result.row.gpu == "1080 Ti")
    assert slower.figures["seconds"].ratio == pytest.approx(3.93 / 5.16)


@pytest.mark.parametrize(("gpu", "pays", "does_not"), [("V100", True, False), ("1080 Ti", False, True), ("TITAN X", False, True)])
def test_batch_sweep_claims_hold_on_their_gpus(gpu: str, pays: bool, does_not: bool) -> None:
    ours, before = check_claims(VGG, sweeps.published_vgg(gpu))
    assert (ours.holds, before.holds) == (pays, does_not)
    assert "at batch 2048" in ours.explanation
    published = [each.published for each in ours.ratios]
    assert published == pytest.approx([1.3245, 0.5563, 1.0821, 0.6355], abs=1e-4)


def test_leftover_memory_is_separated_from_the_clean_peak() -> None:
    result = about(check_claims(T4, sweeps.t4()), "1.17 times the memory")
    assert result.holds is True
    assert result.explanation == (
        "here 1.16 with the earlier model alive as published, 1.03 clean: most of the increase, 80%, comes from the earlier model"
    )


def test_published_leftover_row_matches_the_leftover_arm() -> None:
    amp = next(result for result in compare_rows(T4, sweeps.t4()) if result.row.max_memory_allocated_bytes == 1_577_232_384)
    assert amp.record is not None
    assert amp.record.role == EARLIER_MODEL_ALIVE
    assert amp.figures["allocated"].ratio == pytest.approx(1_619_000_000 / 1_577_232_384)


def test_mnist_time_is_equal_because_of_the_loader() -> None:
    result = about(check_claims(T4, sweeps.t4(wait=0.83)), "0.98 of the time")
    assert result.holds is True
    assert result.explanation.endswith("because 83% of the step is data wait")
    assert about(check_claims(T4, sweeps.t4(wait=0.83)), "does not name one").holds is True
    computes = check_claims(T4, sweeps.t4(wait=0.01))
    assert ", although compute takes" in about(computes, "0.98 of the time").explanation
    assert about(computes, "does not name one").holds is False


def test_inconclusive_arm_names_no_bottleneck() -> None:
    job = sweeps.t4(wait=0.83)
    one = next(record for record in job.records if record.config.workload == "mnist-cnn")
    one.rounds = [replace(timed, traces=[replace(trace, steps=2) for trace in timed.traces]) for timed in one.rounds[:1]]
    assert about(check_claims(T4, job), "does not name one").holds is None


def test_unmeasured_claims_are_open() -> None:
    empty = sweeps.job(sweeps.sweep_point(), command="reproduce t4-tensor-cores")
    assert {result.holds for name in (T4, WRN, DISC, IMAGENET) for result in check_claims(name, empty)} == {None}
    assert all(result.record is None for result in compare_rows(T4, empty))


def test_o3_that_diverges_confirms_its_claim() -> None:
    result = about(check_claims(WRN, sweeps.wrn()), "O3 does not converge")
    assert result.holds is True
    assert "not finite from step 41" in result.explanation


@pytest.mark.parametrize(("reached", "holds"), [(0.10, True), (0.86, False)])
def test_o3_is_compared_with_the_accuracy_of_o0(reached: float, holds: bool) -> None:
    job = sweeps.wrn()
    job.records = [record for record in job.records if record.config.precision != "fp16"]
    job.records.append(sweeps.sweep_point("wrn28x10-cifar10", "O3", accuracy=[reached] * 5, num_parameters=36_500_000))
    assert about(check_claims(WRN, job), "O3 does not converge").holds is holds


def test_o3_is_open_if_o0_did_not_learn() -> None:
    short = [sweeps.sweep_point("wrn28x10-cifar10", level, accuracy=[0.12] * 5) for level in ("O0", "O3")]
    assert about(check_claims(WRN, sweeps.job(*short)), "O3 does not converge").holds is None


def test_two_cores_hide_the_precision_for_both_models() -> None:
    result = about(check_claims(WRN, sweeps.wrn()), "two weak vCPUs")
    assert result.holds is True
    assert "wrn16x4-cifar10" in result.explanation
    assert "waits 83% of a step for 2 workers" in result.explanation
    cells = sweeps.wrn()
    cells.records = [record for record in cells.records if record.config.workload == "wrn28x10-cifar10"]
    assert about(check_claims(WRN, cells), "two weak vCPUs").holds is None


def test_precision_gains_contradict_the_p100_claim() -> None:
    t4, p100, *_ = check_claims(WRN, sweeps.wrn())
    assert (t4.holds, p100.holds) == (True, False)


def test_loader_explains_the_gain_attributed_to_model_size() -> None:
    doubled, environments, size = check_claims(IMAGENET, sweeps.imagenet())
    assert doubled.holds is True
    assert doubled.explanation.endswith("as in the published slurm environment")
    assert environments.holds is None
    assert size.holds is False
    assert "the loader is the reason" in size.explanation
    free = check_claims(IMAGENET, sweeps.imagenet(gains=(1.02, 2.1), phases=sweeps.COMPUTES))
    assert free[0].explanation.endswith("as in the published container environment")
    assert free[2].holds is True
    both = check_claims(IMAGENET, sweeps.imagenet(gains=(1.9, 2.1), phases=sweeps.COMPUTES))
    assert (both[0].holds, both[2].holds) == (False, False)


def test_uncertain_gain_leaves_the_model_size_claim_open() -> None:
    job = sweeps.imagenet(gains=(1.04, 1.06), phases=sweeps.COMPUTES)
    for record in job.records:
        slow = [1.0, 1.5, 0.7] if record.config.precision == "o2" else [1.0, 1.0, 1.0]
        first = record.rounds[0]
        record.rounds = [replace(first, index=index, wall_s=first.wall_s * times) for index, times in enumerate(slow)]
    assert check_claims(IMAGENET, job)[2].holds is None


def test_step_speeds_and_losses_are_compared_with_the_published() -> None:
    slurm = next(result for result in compare_rows(IMAGENET, sweeps.imagenet()) if result.row.environment == "slurm")
    assert set(slurm.figures) == {"speed", "least-speed", "greatest-speed", "last-loss", "mean-loss"}
    container = [result for result in compare_rows(IMAGENET, sweeps.imagenet()) if result.row.environment == "container"][-1]
    assert container.figures["least-speed"].published is None
    record = slurm.record
    assert record is not None
    assert MIN_STEP_SAMPLES_PER_S.values(record) == pytest.approx(MAX_STEP_SAMPLES_PER_S.values(record))


def test_crossover_near_ten_layers_confirms_the_claim() -> None:
    crossing, errors = check_claims(DISC, sweeps.crossing_disc())
    assert crossing.holds is True
    assert "9.9 layers" in crossing.explanation
    assert errors.holds is True
    early = sweeps.disc([1.0, 2.0], [1.5, 1.0], [3, 4])
    assert check_claims(DISC, early)[0].holds is False
    never = sweeps.disc([1.0, 2.0], [1.5, 2.5], [2, 12])
    assert check_claims(DISC, never)[0].holds is False


def test_models_below_the_published_crossover_leave_it_open() -> None:
    small = check_claims(DISC, sweeps.disc([1.0, 2.0], [1.5, 2.5], [2, 6]))[0]
    assert (small.holds, small.explanation) == (None, "here no crossing: CPU is faster than GPU at every model, 22 to 2,982 parameters")
    large = check_claims(DISC, sweeps.disc([1.0, 2.0], [0.5, 0.4], [11, 12]))[0]
    assert large.holds is None
    threads = check_claims(DISC, sweeps.crossing_threads())[0]
    assert threads.holds is None
    assert threads.explanation.startswith(
        "here CPU with 2 threads is faster than CPU with 1 thread from 13,600 parameters (10,800 to 16,000)"
    )


def test_training_error_is_reported_for_every_depth() -> None:
    job = sweeps.crossing_disc()
    for record in job.records[:2]:
        record.rounds = sweeps.sweep_point("disc-mlp-2", batch=100, accuracy=[0.869] * 5).rounds
    errors = check_claims(DISC, job)[1]
    assert errors.holds is False
    assert "2: 13.1%, 3: 0.2%" in errors.explanation


def test_quick_batch_sizes_match_published_rows_in_order_without_ratio() -> None:
    cells = [sweeps.sweep_point(name=name, batch=batch, process=1) for name in ("fp32", "o2", "amp-fp16") for batch in (4, 8)]
    quick = sweeps.job(*cells, command="reproduce vgg16-cifar10-batch-sweep --quick")
    results = {(result.row.gpu, result.row.precision, result.row.batch_size): result for result in compare_rows(VGG, quick)}
    first, second, third = (results["V100", "fp32", batch] for batch in (128, 256, 512))
    assert first.record is not None
    assert second.record is not None
    assert (first.record.config.batch_size, second.record.config.batch_size, third.record) == (4, 8, None)
    assert first.figures["seconds"].measured is not None
    assert first.figures["seconds"].ratio is None
    assert protocol_deviations(quick)[0].startswith("quick")


def test_smaller_wide_resnet_substitutes_the_published_one() -> None:
    small = [sweeps.sweep_point(f"wrn{depth}x1-cifar10", "O0", 8, num_parameters=parameters) for depth, parameters in ((10, 80), (16, 170))]
    quick = sweeps.job(*small, command="reproduce wrn-cifar10-apex-levels --quick")
    record = compare_rows(WRN, quick)[0].record
    assert record is not None
    assert record.config.workload == "wrn16x1-cifar10"
    assert substituted_workloads(load_publication(WRN), quick) == {"wrn28x10-cifar10": "wrn16x1-cifar10"}
    assert substituted_workloads(load_publication(WRN), sweeps.wrn()) == {}


def test_narrow_vgg16_substitutes_the_published_one_only_on_cifar10() -> None:
    cells = [sweeps.sweep_point("vgg16-4-cifar10", num_parameters=4), sweeps.sweep_point("vgg16", num_parameters=138_357_544)]
    quick = sweeps.job(*cells, command="reproduce vgg16-cifar10-batch-sweep --quick")
    assert substituted_workloads(load_publication(VGG), quick) == {"vgg16-cifar10": "vgg16-4-cifar10"}


def test_protocol_deviations_are_listed() -> None:
    made = sweeps.sweep_point(device="Some CPU", data=DatasetInfo(loader="tensor", dataset="cifar10", num_samples=50_000, generated=True))
    said = " ".join(protocol_deviations(sweeps.job(made)))
    assert "generated data" in said
    assert "CPU ranks" in said
    assert protocol_deviations(sweeps.published_vgg("V100")) == []


def test_ratio_agrees_only_if_its_whole_interval_does() -> None:
    def agrees(published: float, low: float, high: float) -> bool | None:
        return PublishedRatio("", published, PairedRatio((low + high) / 2, low, high, pairs=5)).agrees

    assert agrees(0.98, 0.96, 1.0) is True
    assert agrees(1.8, 2.5, 2.6) is True
    assert agrees(1.8, 1.01, 1.02) is False
    assert agrees(0.98, 1.01, 1.2) is None
    assert agrees(1.0, 0.8, 1.3) is None, "the interval spans both directions"
    assert PublishedRatio("", 1.8, None).agrees is None


def test_ratios_pair_rounds_and_invalid_arms_have_no_speed_ratio() -> None:
    base = sweeps.sweep_point(seconds=(1.0, 2.0, 4.0), allocated=100)
    other = sweeps.sweep_point(name="o2", seconds=(0.5, 1.0, 2.0), allocated=50)
    paired = paired_ratio(SECONDS, base, other)
    assert paired is not None
    assert (paired.low, paired.high) == (pytest.approx(0.5), pytest.approx(0.5))
    one = paired_ratio(SECONDS, base, sweeps.sweep_point(seconds=(3.0,)))
    assert one == PairedRatio(3.0, 3.0, 3.0, pairs=1)
    dead = replace(other, status="invalid")
    assert paired_ratio(SECONDS, base, dead) is None
    assert paired_ratio(ALLOCATED, base, dead) is not None


def test_memory_metric_is_common_to_all_arms() -> None:
    with_memory, without_memory = sweeps.sweep_point(process=5), sweeps.sweep_point()
    assert memory_metric([with_memory, with_memory]) is PROCESS_MEMORY
    assert memory_metric([with_memory, without_memory]) is not PROCESS_MEMORY
    assert memory_metric([with_memory, sweeps.no_memory("o2", 64)]) is PROCESS_MEMORY


def test_two_rounds_give_a_range_without_interval() -> None:
    assert ratio_of([1.0, 1.0], [0.9, 1.1]) == PairedRatio(pytest.approx(0.995, abs=1e-3), 0.9, 1.1, pairs=2)
    assert PublishedRatio("", None, ratio_of([1.0, 1.0], [0.9, 1.1])).text == "0.99 (2 rounds: 0.90 to 1.10)"
    assert PublishedRatio("", None, ratio_of([1.0], [0.9])).text == "0.90 (1 round)"
    three = ratio_of([1.0, 1.0, 1.0], [0.9, 1.0, 1.1])
    assert three.low < 0.9
    assert "rounds" not in PublishedRatio("", None, three).text


def test_mean_std_and_median_with_interval() -> None:
    assert mean_std([]) is None
    assert mean_std([3.0]).std is None  # type: ignore[union-attr]

    def middle(*seconds: float) -> tuple[float, float, float]:
        found = SECONDS.median_and_interval(sweeps.sweep_point(seconds=seconds))
        assert found is not None
        return found.center, found.low, found.high

    assert SECONDS.median_and_interval(sweeps.sweep_point(seconds=())) is None
    assert middle(5.0, 5.0, 5.0) == (5.0, 5.0, 5.0)
    assert middle(5.0, 5.4) == (5.2, 5.2, 5.2), "two rounds have no interval"
    center, low, high = middle(1.0, 1.1, 1.2)
    assert low < 1.0 < center == 1.1 < 1.2 < high


def test_accuracy_interval_is_within_0_and_1() -> None:
    def middle(*reached: float) -> tuple[float, float, float]:
        found = ACCURACY.median_and_interval(sweeps.sweep_point(seconds=(1.0,) * len(reached), accuracy=reached))
        assert found is not None
        return found.center, found.low, found.high

    assert middle(0.97, 0.99, 1.0) == (0.99, pytest.approx(0.9487, abs=1e-4), 1.0)
    assert middle(0.0, 0.01, 0.04) == (0.01, 0.0, pytest.approx(0.0684, abs=1e-4))
    center, low, high = middle(0.4, 0.5, 0.6)
    assert center - low == pytest.approx(high - center), "symmetric on the linear scale"


@pytest.mark.parametrize("name", sweeps.PUBLISHED)
def test_claims_on_unfinished_jobs_name_what_is_missing(name: str) -> None:
    whole = check_claims(name, sweeps.PUBLISHED[name]())
    for job in sweeps.unfinished(sweeps.PUBLISHED[name]):
        for result, finished in zip(check_claims(name, job), whole, strict=True):
            assert result.explanation
            assert not {"-", "None", "nan"} & set(result.explanation.replace(",", "").split()), result.explanation
            if result.holds is not finished.holds:
                assert finished.holds is not None, f"{result.explanation}: the complete job leaves it open"
                assert result.holds is None, f"{result.explanation}: a complete job decides differently"


def test_missing_arms_are_named_with_the_reason() -> None:
    job = sweeps.t4()
    fp32 = job.records[0]
    job.records[0] = replace(fp32, rounds=[], status="failed", fault=sweeps.no_memory("fp32", 512).fault)
    assert check_claims(T4, job)[0].explanation == "missing: fp32 (out of memory)"
    job.records[0] = replace(fp32, status="invalid")
    assert check_claims(T4, job)[0].explanation == "missing: fp32 (invalid)"
    job.records[0] = replace(fp32, rounds=[], status="interrupted")
    assert check_claims(T4, job)[0].explanation == "missing: fp32 (no round)"
    del job.records[0]
    assert check_claims(T4, job)[0].explanation == "missing: fp32 (not measured)"
    processor = sweeps.job(*(sweeps.sweep_point("gemm-mlp", name, 512, device="Some CPU") for name in ("fp32", "amp-fp16")))
    memory = about(check_claims(T4, processor), "1.17 times the memory").explanation
    assert memory == "missing: fp32, amp-fp16 (no GPU memory figure), amp-fp16 with the earlier model alive (not measured)"


def test_failed_leftover_arm_falls_back_to_the_clean_arm() -> None:
    job = sweeps.t4()
    job.records[2] = replace(job.records[2], rounds=[], status="failed")
    assert check_claims(T4, job)[0].holds is True
    assert about(check_claims(T4, job), "1.17 times the memory").holds is None


def test_factor_far_from_the_published_one_is_reported() -> None:
    job = sweeps.wrn()
    assert check_claims(WRN, job)[0].far_ratios != [], "2.7 times as fast here, 1.83 published"
    for record in job.records[1:3]:
        record.rounds = sweeps.sweep_point(seconds=sweeps.repeats(301.0 / 1.9, 0.3), process=6_600 * sweeps.MIB).rounds
    near = check_claims(WRN, job)[0]
    assert (near.holds, near.far_ratios) == (True, [])
    assert PublishedRatio("", 1.83, PairedRatio(6.65, 6.6, 6.7, pairs=5)).is_far
    assert not PublishedRatio("", 1.83, PairedRatio(2.2, 2.2, 2.2, pairs=1)).is_far
    assert PublishedRatio("", 0.42, PairedRatio(0.31, 0.31, 0.31, pairs=1)).is_far


def test_every_published_batch_size_is_checked() -> None:
    job = sweeps.published_vgg("V100")
    first = check_claims(VGG, job)[0]
    assert first.holds is True
    assert (
        "at batch 128 o2 1.20 (1.17 to 1.23) times as fast with 0.97 (0.95 to 0.99) of the memory (published 1.20, 0.97)"
        in first.explanation
    )
    slow = next(record for record in job.records if (record.config.precision, record.config.batch_size) == ("o2", 512))
    slow.rounds = sweeps.sweep_point(batch=512, seconds=sweeps.repeats(30.0, 0.1), process=1000 * sweeps.MIB).rounds
    assert check_claims(VGG, job)[0].holds is False


@pytest.mark.parametrize("worst", [(0, 0), (1, 2)], ids=["CPU, first round", "GPU, a round in the midst"])
def test_training_errors_cover_every_round_on_both_devices(worst: tuple[int, int]) -> None:
    job, (place, turn) = sweeps.crossing_disc(), worst
    reached = [0.869 if at == turn else 0.998 for at in range(5)]
    job.records[place].rounds = sweeps.sweep_point("disc-mlp-2", batch=100, accuracy=reached).rounds
    errors = check_claims(DISC, job)[1]
    assert errors.holds is False
    assert "2: 0.2% to 13.1%, 3: 0.2%" in errors.explanation


def test_claims_on_two_records_name_existing_commands(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = check_claims(IMAGENET, sweeps.imagenet())[1].explanation
    for words in re.findall(r"'ddpbench ([^']+)'", sentence):
        assert main([words.split()[0], "--help"]) == 0
    assert IMAGENET in sentence


def test_batch_sizes_are_compared_only_with_equal_ones() -> None:
    job = sweeps.published_vgg("V100")
    job.records = [record for record in job.records if record.config.precision != "amp-fp16" or record.config.batch_size == 256]
    first = check_claims(VGG, job)[0]
    assert first.explanation.startswith("here at batch 256 o2 1.17 ")
    assert first.explanation.endswith("missing: amp-fp16 at batch 2048 (not measured)")
    assert first.holds is None


def test_quick_job_decides_no_claim() -> None:
    for name, whole in sweeps.PUBLISHED.items():
        job = whole()
        job.command.append("--quick")
        assert {result.holds for result in check_claims(name, job)} == {None}


def test_unknown_publication_is_rejected() -> None:
    with pytest.raises(UsageError):
        check_claims("t5", Job(started="", command=[], records=[]))
