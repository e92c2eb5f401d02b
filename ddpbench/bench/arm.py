"""An arm: one training of an interleaved job, parked on the host between rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import msgspec
import torch
from torch import nn

from ddpbench.analysis.rounds import collect_round
from ddpbench.analysis.straggler import was_throttled
from ddpbench.bench.dry_run import DRY_RUN, dry_run_memory, dry_run_training
from ddpbench.bench.resume import MOVE_JOURNAL_HINT, NOTHING_MEASURED, ResumeState
from ddpbench.bench.round_plan import (
    RoundPlan,
    requested_steps_per_round,
    steps_per_epoch,
    steps_per_round_cpu,
    steps_per_round_gpu,
    warmup_limit_s,
)
from ddpbench.data.loader import Loader, LoaderFactory
from ddpbench.data.loaders.open import open_loader
from ddpbench.data.shard import Shard
from ddpbench.distributed.collectives import Result, guard_oom
from ddpbench.distributed.world import World
from ddpbench.machine.backends import set_num_threads
from ddpbench.machine.cpu import set_affinity
from ddpbench.machine.device import Device
from ddpbench.machine.epoch_progress import epoch_progress
from ddpbench.machine.progress_marker import ActiveArm, ProgressMarker
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import REPLAY, SYNTHETIC, find_loader
from ddpbench.record.record import DatasetInfo, ObservedPrecision, Round, Warmup
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.roofline import FusedWork, LayerWork
from ddpbench.record.trace import Trace
from ddpbench.training.compile_cache import lookups
from ddpbench.training.evaluate import evaluate_accuracy
from ddpbench.training.fused_work import count_fused_work
from ddpbench.training.loop import LOSSES
from ddpbench.training.precision import cast_model
from ddpbench.training.profiler import profile_kernel_ms
from ddpbench.training.roofline import measure_layers
from ddpbench.training.session import OffloadedState, Session
from ddpbench.training.warmup import MIN_WARMUP_WINDOWS, first_step_timeout_s, warm_up, warm_up_again
from ddpbench.workloads import registry as workloads
from ddpbench.workloads.init_model import build_without_weights, clone, init_model, init_model_cached


@dataclass(frozen=True)
class ArmOptions:
    """How an arm takes part in its job.

    ``leftover_factory`` recreates, before each fresh round, what an earlier model would have left on the device; it is freed after
    the first loss. ``report`` receives the current epoch of a long round, on rank 0 only.
    """

    num_arms: int = 1  # in the job
    index: int | None = None  # position among the job's records
    resume_state: ResumeState = NOTHING_MEASURED
    loader_factory: LoaderFactory = open_loader
    round_plan: RoundPlan | None = None
    leftover_factory: Callable[[Device], object] | None = None
    report: Callable[[str], None] | None = None
    trace_file: Path | None = None
    redact_trace: bool = False
    after_first_step: Callable[[], None] | None = None  # called once per activation, by all ranks


SINGLE_ARM = ArmOptions()


ROOFLINE = "measuring the roofline"
"""The phase in which the layers of an arm are measured."""

OPENING_LOADER = "opening the loader"
"""The phase in which an arm opens its loader."""


class Arm:
    """The training of one Config, round by round.

    ``activate`` and ``run_round`` raise OutOfMemory on all ranks if the arm runs out of memory while no other rank can be waiting in a
    collective: in a dry run, or on the only rank of a job of several arms. This arm has then failed, and the others continue.
    """

    def __init__(self, config: ResolvedConfig, world: World, marker: ProgressMarker, options: ArmOptions = SINGLE_ARM) -> None:
        self.config = config
        self.index = options.index
        self.is_finished = options.resume_state.cannot_continue  # no further round is useful: non-finite numbers or out of memory
        self.completed_rounds = options.resume_state.completed_rounds
        self.observed_precision: ObservedPrecision | None = None
        self.warmup: Warmup | None = None
        self.data: DatasetInfo | None = None
        self._world, self._marker = world, marker
        self._num_arms, self._trace_file, self._redact_trace = options.num_arms, options.trace_file, options.redact_trace
        self._after_first_step = options.after_first_step
        self._loader_factory, self._round_plan, self._leftover_factory, self._report = (
            options.loader_factory,
            options.round_plan,
            options.leftover_factory,
            options.report,
        )
        self._spec = workloads.find_workload(config.workload)
        self._shard = Shard.from_world(self._spec.dataset, self._spec.classes, world)
        self._leftovers: object = None
        self._session: Session | None = None
        self._offloaded_state: OffloadedState | None = None
        self._steps_per_round = options.resume_state.steps_per_round
        self._expected_images = options.resume_state.samples
        self._max_prefetched = 0
        self._steps_of_closed_sessions = 0  # each session reads the files from the first again

    def activate(self) -> None:
        """Put the arm on the device and warm it up, unless it is there already."""
        self._marker.active_arm = ActiveArm(self.index, self.config.batch_size)
        if self._session is None:
            self._guard_oom("", self._activate)

    def _guard_oom(self, when: str, fn: Callable[[], Result]) -> Result:
        """The result of ``fn``; raises OutOfMemory only if this is a single rank and the job has other arms to continue with."""
        if self._num_arms == 1 or self._round_plan or self._world.rank_env.world_size > 1:
            return fn()
        return guard_oom(self._world, f"at batch {self.config.batch_size}{when}", fn)

    def _activate(self) -> None:
        set_num_threads(self.config.threads)
        set_affinity(self.config.cores, self._world.rank_env.local_rank)
        begin, looked_up = perf_counter(), lookups()
        model, loss_of = self._build_model(self.config.seed), LOSSES[self._spec.loss]()
        if self._num_arms > 1 and not self._steps_per_round and not self._round_plan:
            self._marker.enter(DRY_RUN)
            with self._marker.allow(first_step_timeout_s(self.config)):
                dry_run_memory(self.config, self._spec, model, loss_of, self._world)
        loader = self._open_synthetic_loader() if self.config.fresh and self.data else self._open_loader(self.config.seed)
        self._marker.timeout_s = first_step_timeout_s(self.config)
        if self._round_plan and self._round_plan.dry_run and not self._steps_per_round:
            self._marker.enter(DRY_RUN)
            dry_run_training(self.config, model, loss_of, loader, self._world)
        if self._leftover_factory:
            loss_of.register_forward_hook(self._drop_leftovers)
        self.data, self._max_prefetched = self.data or loader.data, loader.max_prefetched
        try:
            self._check_num_samples(self.data.num_samples)
            model_copy = clone(model, self._world.device.torch_device) if self._shares_weights else model
            self._session = Session(self.config, model_copy, loss_of, loader, self._world, self._marker, self._offloaded_state)
        except BaseException:
            loader.close()
            raise
        limit_s = self._warmup_limit_s()
        if self._steps_per_round:
            warm_up_again(self._session, limit_s, self._after_first_step)
        else:
            min_windows = 0 if self._round_plan else MIN_WARMUP_WINDOWS
            self.warmup, self.observed_precision, step_s = warm_up(
                self._session, perf_counter() - begin, limit_s, min_windows, looked_up, self._after_first_step, self._report
            )
            self._steps_per_round = self._choose_steps_per_round(self._world.all_max(step_s))
        self._plan_lr_schedule(self._session, self._offloaded_state.updates_done if self._offloaded_state else 0)

    def _plan_lr_schedule(self, session: Session, updates_done: int) -> None:
        """Set the length of the learning-rate schedule and the updates done so far; a fresh round sets its own."""
        if not self.config.fresh:
            session.set_schedule_length(self._steps_per_round * self.config.rounds, self._steps_per_epoch(), updates_done)

    def _warmup_limit_s(self) -> float | None:
        if self._round_plan:
            return self._round_plan.warmup_s
        return warmup_limit_s(self.config, self._world.device.torch_device.type, self._num_arms)

    def _drop_leftovers(self, *_: object) -> None:
        self._leftovers = None

    def _build_model(self, seed: int) -> nn.Module:
        """The model as initialised from ``seed``. With shared weights, callers copy it and never change it: other arms start from it."""
        self._marker.enter("building the model")
        init = init_model_cached if self._shares_weights else init_model
        return init(self._spec.model, self.config.image_size, self._spec.classes, seed)

    @property
    def _shares_weights(self) -> bool:
        """Whether arms share one cached model. Never on CPU: its memory would be charged to the arm that trains."""
        return bool(self.config.fresh) and self._world.device.is_cuda

    def _open_loader(self, seed: int) -> Loader:
        return self._open_with(self._loader_factory, msgspec.structs.replace(self.config, seed=seed))

    def _open_synthetic_loader(self) -> Loader:
        """Synthetic data, enough to warm up on: each fresh round opens its own loader, whose workers are slow to start."""
        return self._open_with(open_loader, msgspec.structs.replace(self.config, loader=SYNTHETIC, data_dir=None))

    def _open_with(self, loader_factory: LoaderFactory, config: ResolvedConfig) -> Loader:
        self._marker.enter(OPENING_LOADER)
        return loader_factory(config, self._shard)

    def park(self) -> None:
        """Offload the training to the host and free the device."""
        self._marker.active_arm = None
        if self._session is not None:
            self._steps_of_closed_sessions += self._session.steps_trained
            self._offloaded_state = self._session.close()
            self._session = None

    def run_round(self, index: int) -> Round | None:
        """Run one timed round on all ranks and gather it; None on every rank but 0.

        A throttled round is measured a second time, unless each round is a training of whole epochs, which takes long.
        """
        return self._guard_oom(f" in round {index + 1}", lambda: self._run_round(index))

    def _run_round(self, index: int) -> Round | None:
        assert self._session is not None, "activate() comes first"
        updates_before = self._session.updates_done
        trace = self._measure_round(index)
        if not (self.config.fresh and self.config.epochs) and self._world.any_rank(was_throttled(trace)):
            self._plan_lr_schedule(self._session, updates_before)  # otherwise the schedule would end before the last round
            trace = msgspec.structs.replace(self._measure_round(index), retry_reason="throttle")
        self._note_reread_files()
        is_nonfinite = trace.numerics.nonfinite_step is not None
        self.is_finished = self._world.any_rank(is_nonfinite)
        self._marker.enter("gathering the round")
        traces = self._world.gather(trace)
        return collect_round(index, traces, self.config.engine) if traces else None

    def _measure_round(self, index: int) -> Trace:
        """Run one round: continue the training, or train from scratch."""
        assert self._session is not None, "activate() comes first"
        trace = self._train_from_scratch(self._session, index) if self.config.fresh else self._continue_training(self._session)
        if not self.config.validate:
            return trace
        self._marker.enter("validating")
        from ddpbench.data.validation import held_out_batches

        held_out = held_out_batches(self.config, self._shard)
        accuracy = None if held_out is None else evaluate_accuracy(self._session, held_out)
        return msgspec.structs.replace(trace, numerics=msgspec.structs.replace(trace.numerics, accuracy=accuracy))

    def _continue_training(self, session: Session) -> Trace:
        if self._round_plan:
            return session.run_round(self._steps_per_round, self._round_plan.warmup_s)
        return session.run_round(self._steps_per_round, during=self._epoch_progress())

    def _train_from_scratch(self, session: Session, index: int) -> Trace:
        """Train with weights and shuffling seeded by the round's index."""
        seed = self.config.seed + index
        session.reset(self._build_model(seed).state_dict(), lambda: self._open_loader(seed))
        session.set_schedule_length(self._steps_per_round, self._steps_per_epoch())
        torch.manual_seed(seed)
        if self._leftover_factory:
            self._leftovers = self._leftover_factory(self._world.device)
        return session.run_round(self._steps_per_round, max_drain_s=0.0, during=self._epoch_progress())

    def _epoch_progress(self) -> AbstractContextManager[None]:
        """Report the current epoch of a round of several epochs; no-op on ranks other than 0."""
        epochs = self.config.epochs or 1
        if self._report is None or epochs == 1:
            return nullcontext()
        return epoch_progress(self._marker, self._steps_per_epoch(), epochs, self._report)

    def _check_num_samples(self, samples: int | None) -> None:
        """Raise UsageError if ``--epochs`` needs the number and it is unknown, or if earlier rounds, with one figure, had another."""
        if self.config.epochs and not samples:
            hint = "use --steps N, or return a DataLoader whose dataset has a length"
            raise UsageError(f"--epochs needs the length of the dataset, which '{self.config.loader}' does not report", hint)
        if (expected := self._expected_images) and expected != samples:
            raise UsageError(f"the dataset has {samples or 0:,} images, but had {expected:,} in earlier rounds", MOVE_JOURNAL_HINT)

    def _note_reread_files(self) -> None:
        """Record that files were read a second time: they come from the page cache, so the figure says nothing about storage."""
        assert self._session is not None
        if self._spec.dataset != "imagenet":
            return  # the dataset is in memory
        loader = find_loader(self.config.loader)
        if not loader.reads_dataset or loader.user_defined or loader.name == REPLAY:
            return  # no file is read while timing, or it is unknown which
        samples_read = (self._steps_of_closed_sessions + self._session.steps_trained) * self.config.batch_size * self._world.size
        if self.data and self.data.num_samples and samples_read > self.data.num_samples:
            self.data = msgspec.structs.replace(self.data, reread=True)

    @property
    def can_profile(self) -> bool:
        """Whether the profiler has something to measure: kernels on a GPU, or a trace that the user asked for."""
        return not self.is_finished and (self._world.device.is_cuda or self._trace_file is not None)

    def profile_step(self) -> float | None:
        """Milliseconds of kernels per step, from the profiler; None on a CPU.

        Call it only after all timed rounds of all arms: once the profiler has run, every launch in this process is slower.
        """
        assert self._session is not None, "activate() comes first"
        self._marker.enter("profiling")
        return profile_kernel_ms(self._session, self._trace_file, self._redact_trace)

    def measure_layers(self) -> list[LayerWork]:
        """Work and time of every layer of this rank. Call it last, like ``profile_step``."""
        assert self._session is not None, "activate() comes first"
        self._marker.enter(ROOFLINE)
        return measure_layers(self._session)

    def count_fused_work(self, layers: Sequence[LayerWork]) -> FusedWork:
        """What the fused kernels would replace of the measured ``layers``. Raises what a model raises that needs values of tensors."""
        assert self._session is not None, "activate() comes first"
        return count_fused_work(self._session, layers, self._model_to_count)

    def _model_to_count(self) -> nn.Module:
        """A new model on the host, in the dtypes of this arm."""
        model = build_without_weights(self._spec.model, self.config.image_size, self._spec.classes)
        return cast_model(model.train(), PRECISIONS[self.config.precision])

    def _choose_steps_per_round(self, step_s: float) -> int:
        if (requested := requested_steps_per_round(self.config, self._steps_per_epoch())) is not None:
            return requested
        assert self.data is not None, "activate() opens a loader first"
        workers = self.data.effective_workers(self.config.workers)
        producers = find_loader(self.config.loader).num_producers(workers) if self._max_prefetched else 0
        if self._round_plan:
            return self._round_plan.steps_per_round(step_s, producers)
        if self._world.device.is_cuda:
            return steps_per_round_gpu(step_s, producers)
        return steps_per_round_cpu(step_s, producers, self.config.rounds, self._num_arms)

    def _steps_per_epoch(self) -> int:
        """Steps per epoch over all ranks; the steps of a round if the number of images is unknown."""
        if self.data is None or not self.data.num_samples:
            return self._steps_per_round
        return steps_per_epoch(self.data.num_samples, self.config.batch_size, self._world.size)
