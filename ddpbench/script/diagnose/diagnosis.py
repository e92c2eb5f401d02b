"""One diagnosis on one rank: its windows, the stages that rank 0 decides, and the records that rank 0 builds from all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import isfinite

import msgspec

from ddpbench.analysis.judge import judge_all
from ddpbench.analysis.pipeline.costs import loader_cost
from ddpbench.analysis.pipeline.model import more_workers_to_benchmark
from ddpbench.analysis.remedies.predict import predict_remedies, scenarios_to_try
from ddpbench.analysis.remedies.script import dataloader_change
from ddpbench.analysis.screening import advised_cures
from ddpbench.distributed.rank_store import open_store
from ddpbench.machine.host import MAX_MEMORY_FRACTION, free_memory_bytes
from ddpbench.machine.node_state import collect_node_state
from ddpbench.machine.rank_env import RankEnv
from ddpbench.machine.start_time import command_start
from ddpbench.record.config import Config
from ddpbench.record.diagnosis import Diagnosis, NodeState
from ddpbench.record.environment import RankPlacement
from ddpbench.record.errors import BenchError
from ddpbench.record.prediction import Scenario
from ddpbench.record.record import Job, Record
from ddpbench.record.roles import SkippedMeasurement
from ddpbench.record.screening import CureCode, LossComparison, Obstacle, ScreenedCure, Screening
from ddpbench.record.script_diff import ProofPlan
from ddpbench.report.messages.verdict import explain_verdict, next_step_text, verdict_heading
from ddpbench.script.ab.follow_up import plan_proof
from ddpbench.script.cures.snapshot import snapshot_bytes
from ddpbench.script.diagnose.channel import StageChannel
from ddpbench.script.diagnose.deadline import Deadline
from ddpbench.script.diagnose.job import build_records, update_diagnosis
from ddpbench.script.diagnose.only_watched import WatchSchedule, watched_record
from ddpbench.script.diagnose.progress_lines import ProgressLines
from ddpbench.script.diagnose.schedule import DEFAULT_LIMIT_S, MIN_STEP_S, Schedule, ScriptFacts, WindowPace
from ddpbench.script.diagnose.stage import RankResults, Stage, end_stage
from ddpbench.script.diagnose.switched_cures import allocator_retries
from ddpbench.script.diagnose.windows import Windows, noted_failure
from ddpbench.script.edits.places import TrainingPlaces, training_places
from ddpbench.script.observe.observer import Observer
from ddpbench.script.observe.rounds import batches_per_update, usual_batch_size
from ddpbench.script.observe.rows import EPOCH_START_MS, FIRST_PHASE, HOST_DATA_MS, UPDATES, to_rows
from ddpbench.script.observe.source import DEFAULT_PREFETCH
from ddpbench.script.ranks.observation import Observation
from ddpbench.script.ranks.progress import RankProgress

CONNECT_TIMEOUT_S, LAST_RESULTS_TIMEOUT_S = 10.0, 10.0

CLOSE_TIMEOUT_S = 5.0
"""Seconds at the end in which a loader in the background must deliver a batch."""

AHEAD_FACTOR = 2.0
"""A loader that alone is so many times as fast as the training keeps no step waiting, even beside it."""

AT_THE_END = 2**31
"""Stage number of results that are sent after the script has ended."""


class ScriptDiagnosis:
    """``end_script`` ends the script at the next step of an optimizer.

    ``on_stall`` is called if it makes none after the time limit, with the seconds since its last one. On rank 0, ``save`` stores the
    records so far.
    """

    def __init__(
        self,
        rank_env: RankEnv,
        requested: Config,
        limit_s: float,
        verify: bool,
        end_script: Callable[[], None],
        on_stall: Callable[[float], None],
        save: Callable[[], None],
        print_line: Callable[[str], None],
    ) -> None:
        self.windows = Windows(rank_env, self._begin_training, self._next_stage, end_script, self._fail)
        self.problem = ""
        self.failed_cure: CureCode | None = None  # that was on when the script raised an error
        self.records: list[Record] = []
        self.diagnosis = Diagnosis(loader="DataLoader")
        self.places = TrainingPlaces()
        self.may_prove = False  # fresh launches may follow
        self.allows_numerics = False  # settings that change numbers may be advised
        self._start_s = 0.0  # from the start of the command to the training
        self._rank_env, self._requested, self._verify, self._end_script = rank_env, requested, verify, end_script
        self._limit_s, self._on_stall, self._save, self._print_line = limit_s, on_stall, save, print_line
        self._begin_s, self._progress = 0.0, ProgressLines(print_line, 0.0)
        self._has_printed_verdict = False
        self._observation: Observation
        self._channel: StageChannel | None = None
        self._schedule: Schedule | WatchSchedule | None = None
        self._last: Stage | None = None
        self._num_stages = 0
        self._retries = 0  # of the device's allocator so far
        self._results: Sequence[RankResults] = [self.windows.results]  # of all ranks, as of the last collection

    @property
    def observer(self) -> Observer:
        return self.windows.observer

    @property
    def has_forked(self) -> bool:
        """Whether this process has started workers of loaders that are not the script's own."""
        return self.windows.results.has_forked

    def begin(self, observation: Observation) -> None:
        """The script is being watched."""
        self._observation = observation
        self.windows.observation = observation

    def _begin_training(self) -> None:
        """The time limit counts from here."""
        self._begin_s, self._start_s = time.monotonic(), time.perf_counter() - command_start()
        self._progress = ProgressLines(self._print_line, self._begin_s + self._limit_s)
        self._print_line(f"ddpbench: the training has begun: at most {self._limit_s:.0f} s from here")
        Deadline(self._limit_s, lambda: self.observer.updates, self._end_script, self._on_stall)

    def finish(self, problem: str = "") -> None:
        """The script has ended, of ``problem`` if it failed: collect the last results, and on rank 0 build the records."""
        self._progress.stop()
        if problem and (code := self.windows.cures.blame(problem)):
            self.failed_cure = code
            trials = self.diagnosis.screening.cures if self.diagnosis.screening else []
            is_known = bool(trials) and trials[-1].code == code
            failed = msgspec.structs.replace(trials[-1] if is_known else ScreenedCure(code=code), failure=problem)
            self.keep_screening([*trials[: len(trials) - is_known], failed])
        for step in (partial(self.windows.close, CLOSE_TIMEOUT_S), partial(self._share_results, AT_THE_END, LAST_RESULTS_TIMEOUT_S)):
            try:
                step()
            except Exception as problem:  # what was collected before remains
                self.problem = self.problem or str(problem).partition("\n")[0]
        if self._rank_env.is_rank0:
            self._note_failed_cures()
            self._update_records()
            self._finish_roofline()

    def _note_failed_cures(self) -> None:
        """A cure that another rank could not switch on was measured with some of the ranks only."""
        failures = {failed.code: failed.message for each in self._results for failed in each.failed_cures}
        if failures and self.diagnosis.screening:
            trials = self.diagnosis.screening.cures
            self.keep_screening([msgspec.structs.replace(each, failure=each.failure or failures.get(each.code, "")) for each in trials])

    # stages

    def _next_stage(self, number: int) -> Stage:
        """The stage from batch ``number`` on. Every rank calls this at the same batches."""
        if self._channel is None and self._rank_env.world_size > 1:
            self._channel = StageChannel(open_store(self._rank_env, CONNECT_TIMEOUT_S), self._rank_env)
            self._channel.publish_placement(self._placement)
        number_of_stage, self._num_stages = self._num_stages, self._num_stages + 1
        stage = self._decide(number, number_of_stage) if self._rank_env.is_rank0 else self._receive(number, number_of_stage)
        if stage.kind == "benchmark" and self._rank_env.local_rank == 0 and self.windows.results.node_state is None:
            self.windows.results.node_state = self._node_state()
        if stage.kind == "collect":
            try:
                self._share_results(number_of_stage)
            except BenchError as problem:
                self.problem = problem.message  # the next stage is the end
        self._last = stage
        return stage

    def _decide(self, number: int, number_of_stage: int) -> Stage:
        self.problem = self.problem or (self._channel.problem if self._channel else "")
        stage = end_stage(number, self.observer.updates + 2 * (self.windows.given_before_training + 2))
        if not self.problem:
            try:
                self._schedule = self._schedule or self._new_schedule()
                stage = self._schedule.next_stage(number)
                self._progress.show(stage, self._schedule.round_text)
            except Exception as problem:  # the other ranks wait for a stage, and this one soon in a collective for them
                self.problem = f"{type(problem).__name__}: {problem}".partition("\n")[0]
        if self._channel:
            self._channel.publish(number_of_stage, stage)
        return stage

    def _new_schedule(self) -> Schedule | WatchSchedule:
        end_s = self._begin_s + self._limit_s
        if self.windows.only_watched:
            return WatchSchedule(end_s, self._observation.num_rounds)
        self._note_places()
        loader_end_s = self._begin_s + min(self._limit_s, DEFAULT_LIMIT_S)
        return Schedule(self._facts(), loader_end_s, self, end_s if self._verify else loader_end_s)

    def _receive(self, number: int, number_of_stage: int) -> Stage:
        """The stage that rank 0 has published; the end at once if it publishes none in time."""
        assert self._channel is not None, "there are several ranks"
        try:
            return self._channel.receive(number_of_stage, self._last.extra_s if self._last else 0.0)
        except BenchError as problem:
            self._fail(problem)
            return end_stage(number, last_update=0)

    def _fail(self, problem: BenchError) -> None:
        """A rank whose diagnosis fails still ends with the others."""
        self.problem = problem.message
        try:
            if self._channel:
                self._channel.report_problem(self.problem)
            elif self._rank_env.world_size > 1:
                self._end_script()  # the others do not learn of it
        except Exception:
            self._end_script()

    # measurements

    def num_updates(self) -> int:
        return self.observer.updates

    def epoch_position(self) -> int:
        return self.windows.epoch_position()

    def has_failed(self, scenario: Scenario) -> bool:
        return self.windows.trials.has_failed(scenario)

    def cures(self) -> list[tuple[CureCode, Obstacle | None]]:
        self._note_places()
        return self.windows.cures.obstacles(self._observation) if self._verify else []

    def cure_failure(self, code: CureCode) -> str:
        return self.windows.cures.failure(code)

    def is_undisturbed(self, first: int, end: int) -> bool:
        rows = self.windows.rows(first, end)
        expected = (end - first) // batches_per_update(self.windows.rows(0, first))
        retries, self._retries = self._retries, allocator_retries(self.observer.device)
        return float(rows[:, UPDATES].sum()) >= expected and self.observer.has_finite_loss and retries == self._retries

    def _note_places(self) -> None:
        """Where an edit of the script would be, while its objects exist."""
        with suppress(Exception):  # of the script's own classes: then there is no diff
            self.places = training_places(self._observation.training, self.windows.training_loader, self._observation.call_sites)

    def needs_limits(self) -> bool:
        verdict, screening = self.records[0].verdict if self.records else None, self.diagnosis.screening
        return verdict is not None and verdict.kind == "compute-bound" and not (screening and advised_cures(screening))

    def has_gain(self) -> bool:
        self._update_records()
        judge_all(self._job)
        return self.diagnosis.advice is not None and self.diagnosis.advice.change is not None

    def proof_s(self, step_s: float) -> float:
        plan = self.plan_of_proof(step_s)
        return plan.seconds if plan else 0.0

    def plan_of_proof(self, step_s: float) -> ProofPlan | None:
        """That of launches in the time that is left; None without a proof."""
        return plan_proof(self._begin_s + self._limit_s - time.monotonic(), self._start_s, step_s) if self.may_prove else None

    def keep_screening(self, cures: Sequence[ScreenedCure]) -> None:
        screening = self.diagnosis.screening or Screening(allows_numerics=self.allows_numerics)
        self.diagnosis.screening = msgspec.structs.replace(screening, cures=list(cures))
        self._save()

    def has_room_for_snapshot(self) -> bool:
        needed = snapshot_bytes(self._observation.training) * self._rank_env.local_world_size
        return needed < MAX_MEMORY_FRACTION * free_memory_bytes()

    def keep_loss_comparison(self, cures: Sequence[CureCode], updates: int) -> None:
        assert self.diagnosis.screening is not None, "it has kept the cures"
        plain, again, changed = ([each if isfinite(each) else None for each in losses] for losses in self.windows.cures.losses[-3:])
        loss_comparison = LossComparison(
            cures=list(cures), updates=updates, first=self._observation.first_loss, plain=[plain, again], changed=changed
        )
        self.diagnosis.screening = msgspec.structs.replace(self.diagnosis.screening, loss_comparison=loss_comparison)
        self._save()

    def _facts(self) -> ScriptFacts:
        training = self.observer.training
        assert training is not None, "stages begin in the training"
        group = batches_per_update(self.windows.rows(0, self.observer.num_batches))
        return ScriptFacts(
            ranks=self._rank_env.world_size,
            workers=training.workers,
            prefetch=training.prefetched // training.workers if training.workers else DEFAULT_PREFETCH,
            batches_per_update=group,
            look_ahead=max(0, self.windows.given_before_training - group),
            epoch_batches=self.windows.epoch_batches,
            epoch_start_s=max(self.windows.epoch_starts_s[1:] or self.windows.epoch_starts_s, default=0.0),
            on_gpu=self.observer.device is not None and self.observer.device.type == "cuda",
            reads_files=bool(self.windows.dataset_files),
            is_stream=training.is_stream,
        )

    def is_ahead(self, pace: WindowPace) -> bool:
        """Whether the loader of the only rank, as benchmarked, is far ahead of steps of that pace."""
        own = self.windows.results.benchmarks
        if self._rank_env.world_size > 1 or not own:
            return False  # another rank may be late
        return own[0].samples_per_s * pace.step_s >= AHEAD_FACTOR * usual_batch_size(self.windows.rows(0, self.observer.num_batches))

    def more_workers(self, pace: WindowPace) -> int | None:
        """Workers per rank with which to benchmark the loader, by that of the script's own and the pace of its steps; None for none."""
        training, ranks = self.observer.training, self._rank_env.local_world_size
        assert training is not None, "stages begin in the training"
        cost = loader_cost(each.loader_stats for each in self.windows.results.benchmarks)
        batch_s = training.workers * pace.step_s if training.workers else pace.data_wait_s
        keep_up = batch_s / max(MIN_STEP_S, pace.step_s - pace.data_wait_s)
        return more_workers_to_benchmark(self._placement.usable_cores, ranks, training.workers, cost, keep_up)

    def step_times(self, first: int, end: int) -> WindowPace:
        rows = self.windows.rows(first, end)
        steps_s = rows[:, FIRST_PHASE:].sum(axis=1) / 1000
        waits_s = rows[:, HOST_DATA_MS] / 1000
        starts_s = rows[:, EPOCH_START_MS] / 1000
        return WindowPace(float(steps_s.mean()), float(waits_s.mean()), float(waits_s.max()), float(starts_s.mean()))

    def _share_results(self, stage: int, timeout_s: float | None = None) -> None:
        """Publish this rank's results; on rank 0 receive those of the others."""
        own = self.windows.results
        own.stage, own.state = stage, self._observation.state(RankProgress(), has_ended=True)
        own.reads_on_host = self.windows.reads_on_host
        own.own_rows, own.epoch_starts_s = self.windows.own_rows.tobytes(), self.windows.epoch_starts_s
        if self._rank_env.is_rank0:
            others = self._channel.receive_results(stage, *([timeout_s] if timeout_s else [])) if self._channel else {}
            self._results = [own, *(others[rank] for rank in sorted(others))]
        elif self._channel:
            self._channel.send_results(own)

    def _node_state(self) -> NodeState:
        """The state of this rank's node, while its workers have filled their queues and no rank trains."""
        own = self._placement
        others = self._channel.placements() if self._channel else []
        return collect_node_state([own, *(each for each in others if each.host == own.host and each.rank != own.rank)])

    @property
    def _placement(self) -> RankPlacement:
        return self._observation.state(RankProgress()).placement

    # records

    def print_verdict(self) -> None:
        self._update_records()
        judge_all(self._job)
        verdict = self.records[0].verdict if self.records else None
        if verdict and not self._has_printed_verdict:
            self._has_printed_verdict = True
            self._print_line(f"ddpbench: so far {verdict_heading(verdict)}: {explain_verdict(verdict, self.records[0]).claim}")

    def candidates(self, whole_epochs: bool) -> list[Scenario]:
        """Predict what the remedies gain, record it, and return those to try, in windows of ``whole_epochs`` or not."""
        if not self.records[0].rounds:  # the time limit was over before
            return []
        self._predict()
        self._save()
        found = scenarios_to_try(self.diagnosis.predictions, self.records[0], whole_epochs) if self._verify else []
        self.windows.trials.candidates = found
        for each in found:
            self._print_line(f"ddpbench: trying {next_step_text(dataloader_change(each, self.records[0]))}")
        return found

    @property
    def _job(self) -> Job:
        return Job(started="", command=[], records=self.records, diagnosis=self.diagnosis)

    def _finish_roofline(self) -> None:
        with noted_failure():
            self.windows.finish_roofline()
            if self.windows.results.roofline:
                self._update_records()

    def _predict(self) -> None:
        judge_all(self._job)
        self.diagnosis.predictions = predict_remedies(self._job)

    @property
    def is_only_watched(self) -> bool:
        """Whether nothing can be tried in the script."""
        return self.windows.only_watched is not None

    def _update_records(self) -> None:
        if self.windows.only_watched:
            states = {rank: each.state for rank, each in enumerate(self._results) if each.state}
            parts = [to_rows(each.own_rows) for each in self._results]
            self.records = [watched_record(self._observation, states, parts, self._requested, self.windows.only_watched)]
            self._save()
            return
        rows = self.windows.rows(0, self.observer.num_batches)
        self.records = build_records(self._observation, rows, self._results, self._requested)
        update_diagnosis(self.diagnosis, self._results)
        if self.problem:
            self.diagnosis.skipped.append(SkippedMeasurement("trials", "failed", error=self.problem))
        self._save()
