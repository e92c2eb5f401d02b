"""The places where a watched script passes: DataLoader, backward, optimizer, checkpoints. The script needs no change.

Nothing is stored in objects of the script, which it may copy or save: functions of torch are replaced, and the call of a model is timed by
its class, for that one instance.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from time import perf_counter
from typing import Any
from weakref import ref

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ddpbench.machine.step_timer import BACKWARD, FORWARD, SYNC
from ddpbench.script.after_import import call_after_import
from ddpbench.script.early_end import ScriptEnder, StepLimit
from ddpbench.script.observe.call_sites import CallSites
from ddpbench.script.observe.contained import contained
from ddpbench.script.observe.models import ModelWatch
from ddpbench.script.observe.observer import Observer
from ddpbench.training.optimizer import implementation_of

SETTLED_UPDATES = 5
"""Updates after which all that trains has been seen, and steps are still no part of a round."""

MAX_OPTIMIZERS = 4
"""Optimizers whose models are looked for. Scripts with one optimizer per layer would search for each."""

LOADER_WRAPPERS = {"accelerate.data_loader": ("DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader")}
"""Modules, and their classes that iterate over a DataLoader and fetch ahead of the script, but are no subclasses of it."""

SAFETENSORS = "safetensors.torch"
TRAINING_ARGUMENTS = "transformers.training_args"

_MISSING = object()


@contextmanager
def hooked(observer: Observer) -> Iterator[Hooks]:
    """Report to ``observer`` what the script does."""
    hooks = Hooks(observer)
    try:
        yield hooks
    finally:
        hooks.remove()


class Hooks:
    """All hooks of one observer, from construction until ``remove``."""

    def __init__(self, observer: Observer, ender: ScriptEnder | None = None, step_limit: StepLimit | None = None) -> None:
        self.observer, self._ender, self._step_limit = observer, ender, step_limit
        self._replaced: list[tuple[Any, str, Any]] = []
        self._is_removed = False
        self._in_backward = False
        self.differentiates_twice = False  # as a gradient penalty does
        self._known_optimizers: set[int] = set()
        self._optimizers: list[ref[Optimizer]] = []
        self.has_more_optimizers = False  # than are known
        self._scaled: set[int] = set()  # ids of the optimizers whose gradients a GradScaler scales
        self._scalers: dict[int, ref[torch.amp.GradScaler]] = {}  # those, by their ids
        self.first_scale = 1.0  # of the first loss
        self.replays_graphs = False  # CUDA graphs
        self.call_sites = CallSites()
        self._first_optimizer: int | None = None  # its id
        self.on_settled: Callable[[], None] = lambda: None
        """Called once in the thread that trains, after ``SETTLED_UPDATES``."""
        self.optimizer_settings: dict[str, Any] = {}
        self.models = ModelWatch(observer.clock, self._replace)
        self._handle = register_optimizer_step_post_hook(self._after_update)
        self._replace(torch.autograd, "backward", self._timed_backward(torch.autograd.backward))
        self._replace(torch.autograd, "grad", self._noted_grad(torch.autograd.grad))
        self._replace(torch, "save", self._timed_save(torch.save))
        call_after_import(SAFETENSORS, self._hook_safetensors)
        if observer.steering:
            self._note_call_sites()
        self._replace(torch.amp.GradScaler, "step", self._noted_scaler(torch.amp.GradScaler.step))
        self._replace(torch.cuda.CUDAGraph, "replay", self._noted_replay(torch.cuda.CUDAGraph.replay))
        self._replace(torch.autocast, "__enter__", self._noted_autocast(torch.autocast.__enter__))
        self._hook_loaders()

    @property
    def has_ended_script(self) -> bool:
        """Whether the script has got an exception that ends it early."""
        return self._ender is not None and self._ender.has_raised

    def remove(self) -> None:
        """Restore torch."""
        self._is_removed = True
        self._handle.remove()
        self.models.remove()
        for owner, name, before in reversed(self._replaced):
            delattr(owner, name) if before is _MISSING else setattr(owner, name, before)

    def _replace(self, owner: Any, name: str, new: Any) -> None:
        self._replaced.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, new)

    def _note_call_sites(self) -> None:
        """Note where the script makes what it trains with."""
        for made in (Optimizer, DistributedDataParallel, DataLoader):
            self._replace(made, "__init__", self.call_sites.noted(made.__init__))
        self._replace(ArgumentParser, "parse_known_args", self.call_sites.noted_parse(ArgumentParser.parse_known_args))
        call_after_import(TRAINING_ARGUMENTS, self._hook_training_arguments)

    def _hook_training_arguments(self) -> None:
        made = sys.modules[TRAINING_ARGUMENTS].TrainingArguments
        if not self._is_removed:
            self._replace(made, "__post_init__", self.call_sites.noted_arguments(made.__post_init__))

    # loaders

    def _hook_loaders(self) -> None:
        """Hook DataLoader and every subclass that iterates in its own way, also those that the script defines later."""

        def init_subclass(cls: Any, /, **arguments: Any) -> None:
            super(DataLoader, cls).__init_subclass__(**arguments)  # type: ignore[misc]  # cls is a subclass
            self._hook_loader_class(cls)

        if not self.observer.steering:  # otherwise batches are counted where they are made
            noted = self.observer.drawn.noted(_BaseDataLoaderIter._next_index)
            self._replace(_BaseDataLoaderIter, "_next_index", noted)
        classes: list[Any] = [DataLoader]
        for cls in classes:
            classes += [each for each in cls.__subclasses__() if each not in classes]
            self._hook_loader_class(cls)
        self._replace(DataLoader, "__init_subclass__", classmethod(init_subclass))
        for name, wrappers in LOADER_WRAPPERS.items():
            call_after_import(name, partial(self._hook_wrappers, name, wrappers))

    def _hook_wrappers(self, module_name: str, class_names: Sequence[str]) -> None:
        """Hook the classes of a module that has just been imported."""
        for name in class_names:
            wrapper = getattr(sys.modules[module_name], name, None)
            if wrapper is not None and not self._is_removed:
                self._hook_loader_class(wrapper)

    def _hook_loader_class(self, cls: type) -> None:
        get_iterator = vars(cls).get("_get_iterator")
        if self.observer.steering and get_iterator and not calls_super(get_iterator):
            self._replace(cls, "_get_iterator", self.observer.steering.timed(get_iterator))
        if "__iter__" not in vars(cls):
            return
        iterate, observer, may_wrap = vars(cls)["__iter__"], self.observer, cls is not DataLoader

        @wraps(iterate)
        def watched_iter(loader: Any) -> Any:
            can_wait = observer.begin_epoch(loader, may_wrap)
            begin_s = perf_counter()
            iterator = None if can_wait else iterate(loader)
            watched = observer.watch(loader, iterator, may_wrap, partial(iterate, loader), perf_counter() - begin_s)
            if watched is not None:
                return watched
            return iterate(loader) if iterator is None else iterator

        self._replace(cls, "__iter__", watched_iter)

    # backward, checkpoints

    def _timed_backward(self, backward: Callable[..., None]) -> Callable[..., None]:
        """``backward`` with marks before and after its outermost call: activation checkpointing calls it inside."""
        observer = self.observer

        @wraps(backward)
        def timed_backward(*arguments: Any, **options: Any) -> None:
            self._note_create_graph(options, arguments[3:4])
            if torch.compiler.is_compiling() or self._in_backward or not observer.is_active:
                return backward(*arguments, **options)
            observer.note_backward(arguments[0] if arguments else options.get("tensors"))
            if observer.clock.is_coarse:
                return backward(*arguments, **options)
            self._in_backward = True
            observer.clock.mark(FORWARD)
            self.models.begin_backward()
            try:
                backward(*arguments, **options)
            finally:
                self._in_backward = False
                observer.clock.mark(SYNC if self.models.end_backward() else BACKWARD)

        return timed_backward

    def _hook_safetensors(self) -> None:
        """Hook the other function that saves checkpoints, that of transformers."""
        module = sys.modules[SAFETENSORS]
        if not self._is_removed:
            self._replace(module, "save_file", self._timed_save(module.save_file))

    def _timed_save(self, save: Callable[..., None]) -> Callable[..., None]:
        observer = self.observer

        @wraps(save)
        def timed_save(*arguments: Any, **options: Any) -> None:
            before = observer.pause()
            try:
                save(*arguments, **options)
            finally:
                observer.resume(before)

        return timed_save

    def _noted_grad(self, grad: Callable[..., Any]) -> Callable[..., Any]:
        """``torch.autograd.grad``, which shows whether gradients are differentiated again."""

        @wraps(grad)
        def noted_grad(*arguments: Any, **options: Any) -> Any:
            self._note_create_graph(options, arguments[4:5])
            return grad(*arguments, **options)

        return noted_grad

    def _note_create_graph(self, options: dict[str, Any], positional: tuple[Any, ...]) -> None:
        if options.get("create_graph") or any(positional):
            self.differentiates_twice = True

    def _noted_autocast(self, enter: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """``torch.autocast.__enter__``, in which the precision of the model shows, also if its own forward enters it."""
        observer = self.observer

        @wraps(enter)
        def noted_enter(context: Any) -> Any:
            entered = enter(context)
            if observer.clock.is_timing and not torch.compiler.is_compiling() and observer.is_active:
                self.models.enter_autocast(context.device)
            return entered

        return noted_enter

    # updates

    @property
    def optimizers(self) -> list[Optimizer]:
        """The first optimizers, as far as they still exist."""
        return [optimizer for each in self._optimizers if (optimizer := each()) is not None]

    @property
    def scaled_optimizers(self) -> list[Optimizer]:
        """Those whose gradients a GradScaler scales."""
        return [each for each in self.optimizers if id(each) in self._scaled]

    @property
    def scalers(self) -> list[torch.amp.GradScaler]:
        """The GradScalers that have scaled gradients, as far as they still exist."""
        return [scaler for each in self._scalers.values() if (scaler := each()) is not None]

    def _noted_scaler(self, step: Callable[..., Any]) -> Callable[..., Any]:
        observer = self.observer

        @wraps(step)
        def noted_step(scaler: Any, optimizer: Optimizer, *arguments: Any, **options: Any) -> Any:
            if scaler.is_enabled():
                self._scaled.add(id(optimizer))
                if not self._scalers and observer.steering:
                    self.first_scale = scaler.get_scale()
                self._scalers.setdefault(id(scaler), ref(scaler))
            return step(scaler, optimizer, *arguments, **options)

        return noted_step

    def _noted_replay(self, replay: Callable[[Any], None]) -> Callable[[Any], None]:
        @wraps(replay)
        def noted_replay(graph: Any) -> None:
            self.replays_graphs = True
            replay(graph)

        return noted_replay

    def _after_update(self, optimizer: Optimizer, *_: Any) -> None:
        observer = self.observer
        observer.follow_training()
        if trains_here := observer.is_active:
            self._observe_update(optimizer)
        if self._ender:
            self._ender.end_if_requested(trains_here)

    @contained
    def _observe_update(self, optimizer: Optimizer) -> None:
        observer = self.observer
        if self._first_optimizer is None:
            self._first_optimizer = id(optimizer)
        observer.end_update(id(optimizer) == self._first_optimizer)
        if id(optimizer) in self._known_optimizers:
            self.models.after_update(optimizer)
        elif len(self._known_optimizers) < MAX_OPTIMIZERS:
            self._known_optimizers.add(id(optimizer))
            self._optimizers.append(ref(optimizer))
            self._meet(optimizer)
        else:
            self.has_more_optimizers = True
        if observer.updates == SETTLED_UPDATES:
            with observer.paused():
                self.on_settled()
        if self._step_limit and observer.steps_are_updates:
            self._step_limit.end_after(observer.num_batches + 1)  # the first update has begun the first step
        elif self._step_limit and observer.training:
            self._step_limit.count_update(observer.training.total_received, observer.steps.has_made_all_updates)

    def _meet(self, optimizer: Optimizer) -> None:
        """Learn of an optimizer after its first step: the device, and the model that it updates."""
        observer, parameters = self.observer, [each for group in optimizer.param_groups for each in group["params"]]
        if not observer.optimizers:
            self.optimizer_settings = optimizer_settings(optimizer)
        observer.optimizers.append(type(optimizer).__name__)
        if not parameters:
            return
        if observer.device is None:
            observer.use_device(parameters[0].device)
        self.models.find(optimizer, parameters[0])


def calls_super(method: Any) -> bool:
    """Whether a method uses ``super()``, which makes its class a free variable of its code."""
    return "__class__" in getattr(getattr(method, "__code__", None), "co_freevars", ())


def optimizer_settings(optimizer: Optimizer) -> dict[str, Any]:
    """The fields of a ResolvedConfig that ``optimizer`` has, within their ranges there."""
    group, name = optimizer.param_groups[0], type(optimizer).__name__.lower()
    ranges = {"lr": (1e-12, 1e12), "momentum": (0.0, 0.999), "weight_decay": (0.0, 1e12)}
    settings = {key: min(max(float(group[key]), low), high) for key, (low, high) in ranges.items() if key in group}
    known_name = {"optimizer": name} if name in ("sgd", "adam", "adamw") else {}
    return {**known_name, "optimizer_impl": implementation_of(optimizer), **settings}
