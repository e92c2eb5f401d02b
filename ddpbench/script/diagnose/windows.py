"""The windows of a diagnosis on one rank: which batches the script's loop gets, and what is measured meanwhile."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import thread_time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

from ddpbench.machine.rank_env import RankEnv
from ddpbench.machine.streams import print_note
from ddpbench.record.errors import BenchError
from ddpbench.record.roles import BASELINE
from ddpbench.record.script import OnlyWatchedReason
from ddpbench.script.diagnose.batch_use import BatchUse
from ddpbench.script.diagnose.benchmarks import Benchmarks
from ddpbench.script.diagnose.dataset_files import dataset_files
from ddpbench.script.diagnose.measurement import DrainedLoader, LoaderInUse, Measurement, NoLoader
from ddpbench.script.diagnose.own_loader import SteeredIterator, SteeredLoader, timed_get_iterator
from ddpbench.script.diagnose.repeated import RepeatedBatches
from ddpbench.script.diagnose.shared_files import SharedFiles
from ddpbench.script.diagnose.stage import FIRST_BATCH, RankResults, Stage, first_line
from ddpbench.script.diagnose.switched_cures import SwitchedCures
from ddpbench.script.diagnose.trials import Trials
from ddpbench.script.observe.observer import Observer
from ddpbench.script.observe.rows import NUMBER, Rows, to_rows
from ddpbench.script.observe.source import LoaderSource
from ddpbench.script.ranks.observation import Observation
from ddpbench.training.profiler import kernel_ms

if TYPE_CHECKING:
    from ddpbench.script.diagnose.model_layers import ModelLayers

MIN_UPDATES = 3
"""Updates before the first stage."""

WATCHED_BATCHES = 2
"""How many batches show whether a script reads them on the host: those before a window counts."""

DISPATCHER = "DataLoaderDispatcher"
"""Of Accelerate: its iterator communicates. If ranks took different numbers of batches from it, they would hang."""

NextStage = Callable[[int], Stage]
"""Called on every rank at the same batch, with its number, or after the same update: the stage that begins there."""


@contextmanager
def noted_failure() -> Iterator[None]:
    """Turns an error into a note: how near the layers are to the limits of the device is then unknown."""
    try:
        yield
    except Exception as problem:
        print_note(f"the share of the limit of the GPU is unknown: {first_line(problem)}")


class Windows:
    """Chooses the batches of the training loader, stage by stage, from batch ``FIRST_BATCH`` on. Other loaders keep their own.

    A loader that gives one batch in every step besides, as with ``zip``, follows the training loader. If no other batches can be given,
    the script is only watched, in stages of updates.

    After an error every batch is the script's own until the end, and ``on_failure`` is called once.
    """

    observation: Observation
    """Set by its creator, since each of the two needs the other."""

    def __init__(
        self,
        rank_env: RankEnv,
        on_first_update: Callable[[], None],
        next_stage: NextStage,
        end_script: Callable[[], None],
        on_failure: Callable[[BenchError], None],
    ) -> None:
        self.results = RankResults()
        self.dataset_files: Sequence[str] = ()
        self._shared_files = SharedFiles()
        self._benchmarks = Benchmarks(rank_env, self.results, self._shared_files)
        self._rank, self._num_ranks = rank_env.rank, rank_env.world_size
        self._on_first_update, self._next_stage, self._end_script = on_first_update, next_stage, end_script
        self._on_failure = on_failure
        self.num_own: int | None = None  # steps before the first window that changes anything
        self.only_watched: OnlyWatchedReason | None = None  # no other batches can be given
        self.given_before_training = 0  # batches that the script had taken when it made its first update
        self._stage: Stage | None = None
        self._measurement: Measurement | None = None
        ranks = rank_env.local_world_size
        self._loaders: dict[LoaderSource, SteeredLoader] = defaultdict(lambda: SteeredLoader(repeated=RepeatedBatches(ranks)))
        self.trials = Trials(self.results, self._loaders, ranks, self._shared_files)
        self.cures = SwitchedCures(self.results)
        self._training: tuple[LoaderSource, SteeredLoader] | None = None  # of the last batch
        self._loader: LoaderInUse = NoLoader()  # of the present window
        self._window = ExitStack()  # what ends with the window
        self._use: BatchUse | None = None  # that the script makes of its batches
        self._num_watched = 0
        self._layers: ModelLayers | None = None  # on rank 0, after they were timed
        self._has_failed = False

    @property
    def observer(self) -> Observer:
        return self.observation.observer

    @property
    def epoch_batches(self) -> int | None:
        """Batches of an epoch of the training loader; None if unknown."""
        return self._training[1].num_batches if self._training else None

    @property
    def training_loader(self) -> DataLoader[Any] | None:
        """The DataLoader of the script that it trains on, while it iterates over it."""
        iterator = self._training[1].iterator if self._training else None
        return iterator.loader if iterator else None

    @property
    def has_steady_shapes(self) -> bool:
        """Whether the script's own batches have one shape, and at most another: that of the last of an epoch. False if that is unknown."""
        return self._training is not None and self._training[1].repeated.has_steady_shapes

    @property
    def reads_on_host(self) -> bool:
        """Whether the script, which trains on a GPU, does more with a batch than to move it there; or may do so, as far as is known."""
        return self._is_on_gpu and (self._use is None or self._use.reads_on_host)

    @property
    def _is_on_gpu(self) -> bool:
        return self.observer.device is not None and self.observer.device.type == "cuda"

    def epoch_position(self) -> int:
        """Batches of the present epoch that the script has got from the training loader."""
        iterator = self._training[1].iterator if self._training else None
        return 0 if iterator is None else iterator.num_given

    # what the script's iterators call

    def timed(self, get_iterator: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """``DataLoader._get_iterator`` with timed batches."""
        return timed_get_iterator(get_iterator)

    def begin_epoch(self, loader: Any, source: LoaderSource | None) -> bool:
        """The script is about to create an iterator of ``loader``. In windows on other batches, its own workers need not start."""
        if isinstance(self._loader, DrainedLoader):
            self._loader.pause()
        self._shared_files.begin_epoch(loader)
        if type(loader).__name__ == DISPATCHER and self._num_ranks > 1 and self.observer.training is None:
            self.only_watched = "rank-0-loads"
        training = self.observer.training
        if source is None and training is not None and training.is_rebuilt:
            is_trained = LoaderSource.of(loader).gives_same_batches(training)
        else:
            is_trained = source is not None and source.inner is None and source is training
        gets_others = self._stage is not None and self._stage.source in ("repeated", "replayed", "trial")
        return is_trained and gets_others and not self._has_failed and torch.is_grad_enabled()

    def steer(self, loader: Any, iterator: Any, source: LoaderSource, restart: Callable[[], Any]) -> SteeredIterator:
        """The iterator that the script gets in place of ``iterator``, an epoch of ``loader``; ``restart`` begins another."""

        def own_restart() -> Any:
            with self.observer.paused():
                return restart()

        steered = self._loaders[source]
        steered_iterator = SteeredIterator(loader, iterator, source, steered, own_restart, self)
        if isinstance(self._loader, DrainedLoader) and self._loader.has_iterator:
            self._loader.resume()
        return steered_iterator

    @property
    def own_rows(self) -> Rows:
        """The steps before the first window that changes anything."""
        return self.rows(0, self.observer.num_batches if self.num_own is None else self.num_own)

    @property
    def epoch_starts_s(self) -> list[float]:
        """Seconds from the start of the script's own workers to their first batch, by epoch."""
        return self._training[1].epoch_starts_s if self._training else []

    def choose(self, iterator: SteeredIterator) -> Any:
        """The batch that the script gets. Raises what its own loader raises."""
        if not self.observer.is_active or self.only_watched:  # a forked child, or a script that is not observed any more
            return iterator.next_own()
        if self.observer.training is None:
            self.given_before_training = iterator.num_given + 1
        is_training = iterator.source is self.observer.training
        if not torch.is_grad_enabled() or not (is_training or self.observer.is_companion(iterator.source)):
            return iterator.next_own()
        try:
            if is_training:
                self._follow(iterator)
            stage = self._stage_of(self.observer.num_batches, iterator) if is_training else self._stage
            if stage and stage.source != "own" and not self._has_failed:
                return self._other_batch(stage, iterator)
        except BenchError as problem:
            self._fail(problem)
        except Exception as problem:  # of ddpbench: the script must not end with it
            self._fail(BenchError(f"{type(problem).__name__}: {problem}".partition("\n")[0]))
        batch = iterator.next_own(may_end=self._stage is None)
        if not self._has_failed:
            self._keep(batch, iterator)
        return batch

    def _follow(self, iterator: SteeredIterator) -> None:
        """Go on with the loader of ``iterator`` in place of the one before: some scripts make a new DataLoader for every epoch."""
        source, loader = iterator.source, iterator.steered
        if self._training and self._training[0] is not source and self._training[0].gives_same_batches(source):
            before = self._training[1]
            loader.repeated, loader.trials, loader.timings = before.repeated, before.trials, before.timings
            loader.epoch_starts_s = before.epoch_starts_s
            self._loaders.pop(self._training[0], None)
            if isinstance(self._loader, DrainedLoader):
                self._loader.follow(loader)
        self._training = source, loader

    def after_update(self, updates: int) -> None:
        """An optimizer has made its step, the ``updates``-th of all optimizers."""
        if updates == 1:
            self._on_first_update()
        if self.observer.steps_are_updates:
            self.only_watched = self.only_watched or "no-loader"
        if self.only_watched and (self._stage is None or updates >= self._stage.end):
            self._stage = self._next_stage(updates)
        if self._stage and self._stage.kind == "end" and updates >= self._stage.last_update:
            self._end_script()

    def give_up(self, problem: str) -> None:
        """The script is not observed any more: end it."""
        self._fail(BenchError(problem))
        self._end_script()

    def close(self, timeout_s: float | None = None) -> None:
        """End what runs besides the script's own loader. A loader in the background gets ``timeout_s``, or as long as its batch takes."""
        if isinstance(self._loader, DrainedLoader):
            self._loader.pause(timeout_s)
        self._window.close()
        self._loader = NoLoader()
        for loader in self._loaders.values():
            loader.trials.clear()

    def finish_roofline(self) -> None:
        """The script has ended: compute the roofline of its model, if the layers were timed. It takes memory of the device."""
        if self._layers and threading.current_thread() is threading.main_thread():  # else the script may go on
            self.results.roofline = self._layers.roofline()

    def _fail(self, problem: BenchError) -> None:
        if not self._has_failed:
            self._has_failed, self._measurement = True, None
            self.close()
            self._on_failure(problem)

    # stages

    def _stage_of(self, number: int, iterator: SteeredIterator) -> Stage | None:
        """The stage of batch ``number``, after all before it have ended; None in the warm-up."""
        if self._stage is None and self.observer.updates < MIN_UPDATES:  # how many batches an update has is not known yet
            return None
        while number >= (self._stage.end if self._stage else FIRST_BATCH):
            self._end_window()
            self._stage = self._next_stage(number)
            if not self._has_failed:
                self._begin(self._stage, iterator)
        stage = self._stage
        if stage and stage.is_timed and not (self._measurement or self._has_failed) and number + 1 >= stage.first_measured:
            # one batch before the round: starting takes a few milliseconds
            self._measurement = Measurement(stage, number, self._loader, self.observer.outside)
        return stage

    def _begin(self, stage: Stage, iterator: SteeredIterator) -> None:
        """Begin ``stage`` while the script waits for its next batch. What that takes is no part of a step."""
        begin_cpu_s = thread_time()
        if stage.kind in ("window", "end"):
            self._begin_window(stage, iterator)
        elif stage.kind == "samples":
            if self._rank == 0:  # all ranks have the same dataset
                self.trials.compare_samples(iterator, self.observer, stage.seconds)
        else:
            self._benchmarks.run(stage, iterator, self.observer, self.dataset_files)
        self.observer.clock.mark_pause(thread_time() - begin_cpu_s)

    def _begin_window(self, stage: Stage, iterator: SteeredIterator) -> None:
        if self.num_own is None and (stage.source != "own" or stage.role != BASELINE):
            self.num_own = stage.first
        if stage.source in ("repeated", "background") and self.observer.device is not None:
            for loader in self._loaders.values():
                self._window.enter_context(loader.repeated.on_device(self.observer.device))
        if stage.is_profiled and self._rank == 0:
            self._window.enter_context(self._profiled(stage))
        if stage.from_snapshot:
            for loader in self._loaders.values():
                loader.repeated.rewind()
            self.cures.restart(self._window, self.observation)
        if stage.cures:
            self.cures.switch_on(stage.cures, self._window, self.observation)
        if stage.source in ("own", "background"):
            self.trials.leave_room(iterator.steered)
        if stage.source == "own":
            self._loader = iterator.steered
        elif stage.source == "background":
            self._loader = background = DrainedLoader(iterator.steered)
            self._window.callback(background.pause)
        elif stage.source == "trial":
            trial = self.trials.open_loader(stage, iterator, self.observer)
            self._loader = NoLoader() if trial is None else trial

    @contextmanager
    def _profiled(self, stage: Stage) -> Iterator[None]:
        layers = self._new_layers(stage.batches) if stage.times_layers else None
        with layers.time() if layers else profile(activities={ProfilerActivity.CUDA}, acc_events=True) as window:
            yield
        self.results.kernel_ms, self._layers = kernel_ms(window) / stage.batches, layers

    def _new_layers(self, batches: int) -> ModelLayers | None:
        from ddpbench.script.diagnose.model_layers import ModelLayers  # what counts FLOPs takes a second to import

        with noted_failure():
            return ModelLayers.of(self.observation, batches)
        return None

    def _end_window(self) -> None:
        self.observer.steps.flush()
        if self._stage and self._measurement:
            rows = self.rows(self._stage.first_measured, self._stage.end)
            self.results.windows.append(self._measurement.finish(rows.tobytes()))
            self._measurement = None
        self._window.close()
        self._loader = NoLoader()

    def rows(self, first: int, end: int) -> Rows:
        """The steps of the batches from ``first`` until ``end``, as far as they have ended."""
        rows = to_rows(self.observer.steps.rows)
        return rows[np.searchsorted(rows[:, NUMBER], first) : np.searchsorted(rows[:, NUMBER], end)]

    # batches

    def _other_batch(self, stage: Stage, iterator: SteeredIterator) -> Any:
        if stage.source == "trial":
            batch = self.trials.next_batch(stage, iterator, self.observer)
            trial = iterator.steered.trials.get(stage.scenario)
            if trial is not None:  # otherwise the batch is the loader's own
                iterator.samples = trial.samples
            return batch
        if isinstance(self._loader, DrainedLoader) and iterator.source is self.observer.training:
            self._loader.request()
        repeated = iterator.steered.repeated
        if not repeated.has_batches:  # of a loader that is new
            batch = iterator.next_own(may_end=False)
            self._keep(batch, iterator)
            return batch
        batch = repeated.next_batch(self._new_use())
        iterator.samples = repeated.samples
        return batch

    def _new_use(self) -> BatchUse | None:
        """For the first batches that are repeated, if the data of the script could be on the GPU from the start; else None."""
        if (
            self._num_watched >= WATCHED_BATCHES
            or not self._is_on_gpu
            or not (self.results.resident_benchmark or self.results.decoding_benchmark)
        ):
            return None
        self._use, self._num_watched = self._use or BatchUse(), self._num_watched + 1
        return self._use

    def _keep(self, batch: Any, iterator: SteeredIterator) -> None:
        try:
            if not self.dataset_files and self._stage is None and iterator.source is self.observer.training:
                self.dataset_files = dataset_files(iterator.loader.dataset)
            iterator.steered.repeated.keep(batch, iterator.source.num_samples_in(batch, iterator.samples))
        except BenchError as problem:
            self._fail(problem)
        except Exception as problem:  # of a tensor that cannot be copied, or of the user's dataset
            self._fail(BenchError(f"cannot repeat a batch: {type(problem).__name__}: {problem}".partition("\n")[0], "use ddpbench watch"))
