"""The summary of a job, for programs: codes, and numbers with their units in their names.

``docs/summary.md`` documents every field, from the descriptions here. Within ``SUMMARY_VERSION`` fields are added, but none is removed
and none changes its meaning.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ddpbench.record.checks import Severity
from ddpbench.record.private import EntryName, FileMessage, FreeText, HostName, ShellCommand
from ddpbench.record.proof import ProofCode, ProofProblem
from ddpbench.record.remedy import AdviceCode, RemedyCode
from ddpbench.record.screening import CureCode
from ddpbench.record.script_diff import EditObstacle

SUMMARY_VERSION = 1


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A figure with its interval."""

    center: float
    low: float
    high: float


class SummaryMachine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where it ran."""

    device: Annotated[str, Meta(description="name of the device, such as NVIDIA H200, or of the CPU")]
    device_type: Annotated[str, Meta(description="cuda or cpu")]
    ranks: Annotated[int, Meta(description="processes that trained, one per GPU")]
    hosts: Annotated[list[HostName], Meta(description="names of the nodes")]
    usable_cores: Annotated[float | None, Meta(description="CPU cores that the ranks of the first node may use together")] = None
    torch: Annotated[str, Meta(description="version of torch")] = ""


class SummaryTraining(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was trained."""

    workload: Annotated[EntryName, Meta(description="name of the workload, or of the user's script")]
    is_script: Annotated[bool, Meta(description="whether it is a user's own script")] = False
    model: Annotated[str, Meta(description="class of the script's model")] = ""
    precision: Annotated[str, Meta(description="as observed in a script, else as requested")] = ""
    batch_size: Annotated[int | None, Meta(description="samples per rank and step; missing if unknown")] = None
    loader: Annotated[EntryName, Meta(description="loader of a workload; DataLoader of a script")] = ""
    workers: Annotated[int | None, Meta(description="loader workers per rank")] = None


class SummaryFigure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How fast it was."""

    samples_per_s: Annotated[float, Meta(description="throughput of all ranks together")]
    samples_per_s_low: Annotated[float | None, Meta(description="its 95% interval, or the range of the rounds without a confidence")] = None
    samples_per_s_high: Annotated[float | None, Meta(description="the other end")] = None
    confidence: Annotated[float | None, Meta(description="of the interval; missing with fewer than three rounds")] = None
    rounds: Annotated[int, Meta(description="timed rounds")]
    step_ms: Annotated[float | None, Meta(description="wall time of a step of the slowest rank")] = None
    sample: Annotated[str, Meta(description="what a sample is: image, point, sample")]


class SummaryVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What holds it back."""

    kind: Annotated[str, Meta(description="bottleneck, such as data-bound; of a scaling job its main loss; or inconclusive")]
    certainty: Annotated[
        Literal["certain", "probable", "inconclusive"], Meta(description="by the share of bootstrap resamples: 99%, 70%, less")
    ]
    share: Annotated[float | None, Meta(description="fraction of bootstrap resamples that name this bottleneck")] = None
    runner_up: Annotated[str | None, Meta(description="what the others name most often")] = None
    rank: Annotated[int | None, Meta(description="the slow rank, if one is the bottleneck")] = None
    cause: Annotated[str | None, Meta(description="cause of a data-bound verdict, such as too-few-workers")] = None
    cause_share: Annotated[float | None, Meta(description="fraction of the resamples of this bottleneck that name this cause")] = None
    text: Annotated[FreeText, Meta(description="verdict and reason in a sentence, as on the page; its wording may change")] = ""
    figures: Annotated[dict[str, Any], Meta(description="the numbers that show the bottleneck, with their units in their names")] = {}
    cause_figures: Annotated[dict[str, Any], Meta(description="likewise of the cause")] = {}


RemedyStatus = Literal[
    "as-predicted", "not-as-predicted", "measured", "too-wide", "failed", "not-tried", "cannot-be-tried", "screened", "screened-no-gain"
]


class SummaryRemedy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was considered against it."""

    code: Annotated[RemedyCode, Meta(description="kind of the remedy")]
    status: Annotated[
        RemedyStatus,
        Meta(
            description="measured gain inside or outside of the predicted interval; measured: without a prediction before; too-wide: "
            "measured, but too uncertain to judge the prediction; not-tried: others came first, no time was left, or see reason; screened: "
            "it makes computing alone faster, as measured inside the running script, and is not proved by a fresh start; screened-no-gain: "
            "so measured, it gains less than the noise or 3%"
        ),
    ]
    change: Annotated[
        dict[str, Any], Meta(description="what to change: arguments of a script's DataLoader, else flags by their names")
    ] = {}
    command: Annotated[ShellCommand, Meta(description="measures the remedy beside the present setting")] = ""
    predicted: Annotated[Estimate | None, Meta(description="throughput as a multiple of the present, 90% interval")] = None
    measured: Annotated[Estimate | None, Meta(description="likewise by its trial, 95% interval")] = None
    reason: Annotated[FreeText, Meta(description="why it failed or may not be tried, or what is missing for a prediction")] = ""
    on_top_of: Annotated[list[CureCode], Meta(description="screened settings that were on with and without it")] = []
    changes_numbers: Annotated[bool, Meta(description="a screened setting that computes in another precision, never advised by itself")] = (
        False
    )


class SummaryAdvice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to use from now on, by a trial; settings of computing are screened only."""

    code: Annotated[AdviceCode, Meta(description="change; screened: see computing; or why the present setting stays or is undecided")]
    change: Annotated[dict[str, Any], Meta(description="as in a remedy")] = {}
    command: Annotated[ShellCommand, Meta(description="the training with this change")] = ""
    gained_samples_per_s: Annotated[Estimate | None, Meta(description="more samples per second, all ranks, 95% interval")] = None
    saved_device_hours_per_day: Annotated[float | None, Meta(description="GPU-hours, or rank-hours of CPUs, for the same samples")] = None
    device_hours_per_day: Annotated[float | None, Meta(description="of all ranks")] = None
    computing: Annotated[
        dict[str, Any], Meta(description="settings that make computing alone faster and only round differently, by their codes in cures")
    ] = {}
    computing_gain: Annotated[
        Estimate | None, Meta(description="theirs together, 95% interval; of the training only if it waits for nothing, and not proved")
    ] = None
    saved_money_per_day: Annotated[float | None, Meta(description="with --price: the hours times the price")] = None
    diff_file: Annotated[FileMessage, Meta(description="unified diff of the script that does this, for git apply")] = ""
    script_arguments: Annotated[
        ShellCommand, Meta(description="arguments of the script that do this, or the part that the diff does not")
    ] = ""
    no_diff: Annotated[EditObstacle | None, Meta(description="why there is neither")] = None
    proof_command: Annotated[ShellCommand, Meta(description="proves it by fresh launches, see proof")] = ""


class SummaryProof(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What fresh launches of a script with and without a change of its code show."""

    code: Annotated[
        ProofCode | None,
        Meta(
            description="proved: faster, beyond the spread of the launches, with finite losses, no more skipped updates, as many "
            "samples per step; refuted: there is a problem; missing until each side was launched twice"
        ),
    ] = None
    gain: Annotated[Estimate | None, Meta(description="samples per second with the change as a multiple of those without, 95%")] = None
    problems: Annotated[list[ProofProblem], Meta(description="what the change breaks")] = []
    launches: Annotated[int, Meta(description="of both sides")]
    steps: Annotated[int, Meta(description="batches of each launch")]
    compute_only: Annotated[bool, Meta(description="on batches that are ready: the gain is that of computing alone")] = False


class SummaryCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A reason to distrust the figure."""

    code: Annotated[str, Meta(description="name of the check")]
    severity: Annotated[Severity, Meta(description="error: there is no figure; warning; info")]
    text: Annotated[FreeText, Meta(description="what it found; the wording may change")]


class SummaryArm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of several compared settings, or one number of ranks of a scaling job."""

    name: Annotated[str, Meta(description="the values that distinguish it")]
    status: Annotated[str, Meta(description="ok, or how it ended")]
    samples_per_s: Annotated[float | None, Meta(description="throughput of all its ranks")] = None
    samples_per_s_low: Annotated[float | None, Meta(description="its 95% interval, or the range of its rounds")] = None
    samples_per_s_high: Annotated[float | None, Meta(description="the other end")] = None
    speedup: Annotated[Estimate | None, Meta(description="throughput as a multiple of the first arm's, paired by round")] = None
    efficiency: Annotated[Estimate | None, Meta(description="of a scaling job: speed-up over the number of ranks")] = None
    kind: Annotated[str, Meta(description="its bottleneck")] = ""


class JobSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job in at most 6 kB, and 300 bytes per further arm."""

    version: Annotated[int, Meta(description="of this format")]
    ddpbench: Annotated[str, Meta(description="version of ddpbench that measured")]
    job: Annotated[str, Meta(description="command: run, diagnose, watch, ab, scale, sweep, crossover, or reproduce NAME")]
    started: Annotated[str, Meta(description="UTC, ISO 8601")]
    status: Annotated[str, Meta(description="ok, invalid, failed, hung, interrupted or running")]
    record: Annotated[str, Meta(description="path of the record, which holds everything")] = ""
    message: Annotated[FreeText, Meta(description="why it did not end well")] = ""
    command: Annotated[list[str], Meta(description="as typed, with secrets masked; missing if redacted")] = []
    machine: SummaryMachine
    training: SummaryTraining
    figure: Annotated[SummaryFigure | None, Meta(description="missing without rounds, or if a check of severity error fired")] = None
    step_shares: Annotated[
        dict[str, float],
        Meta(
            description="fraction of a step per phase, mean of ranks; they add up to 1. peer_data: waits for others' data; host_to_device: "
            "copies to the device, and whatever else a script does with a batch before its model gets it"
        ),
    ] = {}
    verdict: SummaryVerdict | None = None
    remedies: Annotated[list[SummaryRemedy], Meta(description="those that were tried first, then by gain; at most six")] = []
    advice: Annotated[
        SummaryAdvice | None, Meta(description="missing without a diagnosis, and until it has tried something that may help: see next")
    ] = None
    next: Annotated[
        dict[str, Any],
        Meta(description="what to try next, not proved: code run with a command, or a change; missing if settled, or if nothing is known"),
    ] = {}
    fastest: Annotated[str, Meta(description="name of the fastest arm, if it is clear")] = ""
    proof: Annotated[SummaryProof | None, Meta(description="of ab; figure and verdict are those of the first launch")] = None
    arms: Annotated[list[SummaryArm], Meta(description="of a job with several")] = []
    distrust: Annotated[list[SummaryCheck], Meta(description="checks that fired, errors first; at most eight")] = []
