"""What one rank has observed of its script so far, and the record that rank 0 builds from all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import nn

from ddpbench.distributed.interconnect import gloo_transports
from ddpbench.machine.device import describe_device, placement_of
from ddpbench.machine.fingerprint import collect_environment, collect_software
from ddpbench.machine.rank_env import RankEnv
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.record import DatasetInfo, Fault, Record, Round
from ddpbench.record.screening import NULL, CureCode
from ddpbench.record.script import WatchedScript
from ddpbench.record.text import pluralize
from ddpbench.record.trace import Memory
from ddpbench.script.cures.catalog import CURES, obstacle
from ddpbench.script.cures.cure import Training
from ddpbench.script.observe.call_sites import CallSites
from ddpbench.script.observe.hooks import Hooks
from ddpbench.script.observe.observer import Observer
from ddpbench.script.observe.rounds import WARMUP_STEPS, LoaderShape, batches_per_update, cut_rounds, usual_batch_size
from ddpbench.script.observe.rows import FIRST_PHASE, Rows, to_rows
from ddpbench.script.ranks.gather import RankState
from ddpbench.script.ranks.progress import RankProgress
from ddpbench.script.run_script import PROCESSES_HINT

UNOBSERVED_SETTINGS = {
    "loader": "DataLoader",
    "workers": 0,
    "pin_memory": False,
    "optimizer_impl": "loop",
    "lr": 1e-12,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "warmup": 1,
}
"""What a record has where the script does not have it, and the defaults of ddpbench's own workloads would mislead."""


NOT_NAMED: tuple[CureCode, ...] = (NULL, "fused-kernels")
"""Settings that are not looked for in a script that is only watched: the kernels would be found by tracing its model."""


class Observation:
    """One watched script in this process, from the import of torch to the end of the script."""

    def __init__(self, name: str, rank_env: RankEnv, observer: Observer, hooks: Hooks) -> None:
        self.name, self._rank_env = name, rank_env
        self.observer, self._hooks = observer, hooks
        self._num_taken = 0
        self._settings_to_try: Sequence[CureCode] = ()
        if not observer.steering:  # otherwise a diagnosis tries them
            hooks.on_settled = self._look_for_settings

    def take_rows(self) -> bytes:
        """The steps since the last call, from any thread."""
        new = self.observer.steps.rows[self._num_taken :]
        self._num_taken += len(new)
        return new.tobytes()

    def rows(self) -> Rows:
        """All steps of this rank so far, from any thread."""
        return to_rows(self.observer.steps.rows[:])

    @property
    def host(self) -> str:
        return self._rank_env.host

    def state(self, progress: RankProgress, has_ended: bool = False, fault: str = "") -> RankState:
        """What this rank publishes; its memory only at the end, since the peak is read then."""
        device = describe_device(self._device)
        memory = msgspec.structs.replace(device.memory_stats([], 0, None), allocator_retries=0) if has_ended else Memory()
        return RankState(
            placement=placement_of(device, self._rank_env),
            software=collect_software(device.is_cuda),
            script=self.name,
            memory=memory,
            progress=progress,
            has_ended=has_ended,
            fault=fault,
        )

    def record(self, states: Mapping[int, RankState], rows_of_rank: list[Rows]) -> Record:
        """The record of the ranks that have published ``states``, which includes this one, rank 0."""
        return self.record_with(self.cut_rounds(states, rows_of_rank), states, rows_of_rank[0])

    def cut_rounds(self, states: Mapping[int, RankState], rows_of_rank: Sequence[Rows]) -> list[Round]:
        """The rounds in the steps of the ranks that have published ``states``."""
        if not (self.observer.training or self.observer.steps_are_updates):
            return []  # the steps of a loader that nothing is trained on are none
        return cut_rounds(rows_of_rank, self.loader_shape, self.engine, {rank: state.memory for rank, state in states.items()})

    def num_rounds(self) -> int:
        """Rounds of this rank so far."""
        return len(self.cut_rounds({}, [self.rows()]))

    def record_with(self, rounds: list[Round], states: Mapping[int, RankState], rows: Rows) -> Record:
        """The record of the ranks that have published ``states``, with these ``rounds``. ``rows`` are the steps of rank 0."""
        is_cuda, placements = self._device.type == "cuda", [states[rank].placement for rank in sorted(states)]
        config, backend, training = self._config(rows), self._hooks.models.backend, self.observer.training
        return Record(
            config=msgspec.structs.replace(config, rounds=max(1, len(rounds))),
            environment=collect_environment(
                states[0].software,
                placements,
                self._rank_env.launcher,
                backend,
                "cuda" if is_cuda else "cpu",
                "",
                gloo_transports(placements) if backend == "gloo" else [],
            ),
            sample_unit=self._sample_unit,
            num_parameters=self._hooks.models.num_parameters,
            script=self._script(rows),
            data=DatasetInfo(
                loader=config.loader,
                num_samples=training.num_samples,
                respawns_workers=training.respawns_workers,
                is_rebuilt=training.is_rebuilt,
            )
            if training
            else None,
            rounds=rounds,
        )

    def own_record(self) -> Record:
        """The record of this rank alone."""
        return self.record({0: self.state(RankProgress(), has_ended=True)}, [self.rows()])

    def missing(self, record: Record) -> Fault | None:
        """Why ``record`` has no round; None if it has one."""
        if record.rounds:
            return None
        updates, training = self.observer.updates, self.observer.training
        if not updates:
            return Fault(message=f"{self.name} made no step with an optimizer of torch in this process", hint=PROCESSES_HINT)
        if training is None:
            message = f"{self.name} made {pluralize(updates, 'update')}, not from batches of a DataLoader"
            return Fault(message=message, hint="too few for a round")
        batches = f"{pluralize(self.observer.num_batches, 'batch', 'es')} in {pluralize(self.observer.epochs, 'epoch')}"
        is_cut_off = record.script is not None and record.script.ended_early
        hint = "a longer --time-limit" if is_cut_off and self.observer.steering else f"{2 * WARMUP_STEPS} batches are enough"
        return Fault(message=f"{batches} are too few for a round", hint=hint)

    @property
    def loader_shape(self) -> LoaderShape:
        """How the batches of the training loader come."""
        training = self.observer.training
        return LoaderShape(training.workers, training.prefetched, training.epoch_batches) if training else LoaderShape()

    @property
    def models(self) -> list[nn.Module]:
        """The models that the script trains, as far as they still exist."""
        return self._hooks.models.found

    @property
    def precision(self) -> str:
        return self._hooks.models.precision

    def keep_precision(self) -> None:
        """Autocast is no longer the script's own."""
        self._hooks.models.keeps_precision = True

    @property
    def call_sites(self) -> CallSites:
        """Where the script makes what it trains with."""
        return self._hooks.call_sites

    @property
    def training(self) -> Training:
        """What the script trains, as far as it still exists."""
        hooks = self._hooks
        return Training(
            models=self.models,
            optimizers=hooks.optimizers,
            device=self._device,
            precision=self.precision,
            scaled=hooks.scaled_optimizers,
            scalers=hooks.scalers,
            has_more_optimizers=hooks.has_more_optimizers,
            replays_graphs=hooks.replays_graphs,
            differentiates_twice=hooks.differentiates_twice,
        )

    @property
    def first_loss(self) -> float | None:
        """The first loss of the training, at the present loss scale; None if unknown, or not finite. Waits for the device."""
        loss, scalers = self.observer.first_loss, self._hooks.scalers
        scale = scalers[0].get_scale() / self._hooks.first_scale if scalers else 1.0
        return float(loss) * scale if loss is not None and bool(loss.isfinite()) else None

    def _look_for_settings(self) -> None:
        """A diagnosis can try some if it can repeat batches of a DataLoader. Nothing may be allocated while a CUDA graph is captured."""
        training = self.training
        is_capturing = training.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if not (self.observer.steps_are_updates or is_capturing):
            self._settings_to_try = [code for code in CURES if code not in NOT_NAMED and obstacle(code, training) is None]

    @property
    def engine(self) -> str:
        """How the ranks work together."""
        return self._hooks.models.engine

    @property
    def _sample_unit(self) -> str:
        """What throughput counts: every rank takes part in an update."""
        if not self.observer.steps_are_updates:
            return "sample"
        return "update" if self._rank_env.world_size == 1 else "rank update"

    @property
    def _device(self) -> torch.device:
        return self.observer.device or torch.device("cpu")

    def _script(self, rows: Rows) -> WatchedScript:
        observer, training = self.observer, self.observer.training
        return WatchedScript(
            model=self._hooks.models.name,
            optimizers=list(observer.optimizers),
            dataset=training.dataset if training else "",
            sampler=training.sampler if training else "",
            num_samples=training.num_samples if training else None,
            in_order=training.in_order if training else True,
            step="update" if observer.steps_are_updates else "batch",
            batches=observer.num_batches,
            updates=observer.updates,
            first_step_s=float(rows[0, FIRST_PHASE:].sum()) / 1000 if len(rows) else None,
            epochs=observer.epochs,
            epoch_batches=training.epoch_batches if training else None,
            batches_per_update=batches_per_update(rows),
            training_s=observer.steps.seconds + sum(observer.outside.seconds.values()),
            settings_to_try=list(self._settings_to_try),
            ended_early=self._hooks.has_ended_script,
            observed_settings=sorted(self._observed_settings(rows)),
            outside_s=dict(observer.outside.seconds),
            sample_comparison=observer.repeated_workers.comparison,
        )

    def _config(self, rows: Rows) -> ResolvedConfig:
        """The observed settings. The rest has the defaults of a run, which its page does not show."""
        return ResolvedConfig(**{**UNOBSERVED_SETTINGS, **self._observed_settings(rows)})

    def _observed_settings(self, rows: Rows) -> dict[str, Any]:
        """The fields of the configuration that the script has itself."""
        models, training, is_cuda = self._hooks.models, self.observer.training, self._device.type == "cuda"
        settings = {
            "workload": self.name,
            "precision": self.precision,
            "batch_size": usual_batch_size(rows),
            "channels_last": models.channels_last,
            "engine": self.engine,
            "device": "cuda" if is_cuda else "cpu",
            **self._hooks.optimizer_settings,
        }
        if not is_cuda:
            settings["threads"] = torch.get_num_threads()
        if training:
            settings |= {"loader": training.name, "workers": training.workers, "pin_memory": training.pin_memory}
            if training.workers:
                settings["prefetch"] = max(1, training.prefetched // training.workers)
        return settings
