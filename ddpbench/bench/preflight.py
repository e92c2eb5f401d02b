"""Everything that can be refused is refused here: on every rank alike, before the ranks meet and anything heavy starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import perf_counter

from ddpbench.bench.gate import refuse_idle_gate
from ddpbench.bench.resolve import settle
from ddpbench.bench.stand_in import with_images
from ddpbench.bench.targets import check_targets
from ddpbench.bench.unused_flags import note_idle_flags
from ddpbench.data.preflight import check, fingerprint
from ddpbench.distributed.interconnect import gloo_ways
from ddpbench.distributed.rank_store import Notice
from ddpbench.distributed.world import World, meet
from ddpbench.machine.device import Device, open_device
from ddpbench.machine.fingerprint import environment, software
from ddpbench.machine.host import machine, usable_cores
from ddpbench.machine.rank_env import Seat, take_seat
from ddpbench.machine.stdout import leave_to_the_record
from ddpbench.record.config import Config
from ddpbench.record.environment import RankPlace
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Record
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.request import Request
from ddpbench.record.resolved import Settled
from ddpbench.record.text import count
from ddpbench.training.precision import refuse_impossible
from ddpbench.workloads import registry as workloads
from ddpbench.workloads.model_cost import cost_of

MEETING_PATIENCE = 2.5
"""Times the hang timeout that ranks may take to come together."""

OF_A_NODE = ("data_dir", "workers", "cores", "threads")
"""Fields that each node may be given a value of its own."""

COLLECTIVE_PATIENCE = 20
"""Times the hang timeout that torch lets a collective take: ours must call the hang first, since NCCL's own watchdog aborts."""


def prepare(request: Request) -> tuple[list[Settled], World, float]:
    """Every arm of the request, settled, the world that runs them, and how long it took to make their data. Raises UsageError."""
    first = next((arm for arm in request.arms if arm.device != "cpu"), request.arms[0])
    seat = take_seat()
    check_targets(request.output)
    if request.output.json == "-":
        leave_to_the_record()
    device = open_device(first.device, seat, first.share_gpu)
    processor = open_device("cpu", seat, first.share_gpu)
    arms = [settled(config, processor if config.device == "cpu" else device, seat) for config in request.arms]
    refuse_idle_gate(arms)
    begin = perf_counter()
    arms = with_images(arms, seat.world_size, request.output.quiet)
    made_s = perf_counter() - begin
    world = meet_others(seat, device, first, data_of(arms), asked_of(request))
    note_idle_flags(request.arms, arms, world)
    return arms, world, made_s


def settled(asked: Config, device: Device, seat: Seat) -> Settled:
    """What was ``asked``, settled, after all that can be checked alone: names, precision, data, size of the input."""
    spec = workloads.find(asked.workload)
    spec.input_shape(asked.image_size)
    config = settle(asked, device.cuda, seat.local_world_size)
    refuse_impossible(PRECISIONS[config.precision], device, config.engine, config.static_loss_scale)
    if config.cores and config.cores * seat.local_world_size > usable_cores():
        raise UsageError(
            f"--cores {config.cores} for {count(seat.local_world_size, 'rank')}, of {count(usable_cores(), 'usable core')}",
            "fewer --cores, or fewer ranks",
        )
    if config.epochs and config.loader == SYNTHETIC:
        raise UsageError("--epochs needs data that end, and synthetic data do not", "--steps N, or --data-dir DIR")
    check(config, spec.dataset, spec.classes, seat.world_size)
    cost_of(config.workload, config.image_size)
    return config


def data_of(arms: Sequence[Settled]) -> str:
    """The images that the arms read by their numbers: with others in one rank's folder, all ranks would share them out wrongly."""
    found = (fingerprint(config, workloads.find(config.workload).dataset) for config in arms)
    return "; ".join(dict.fromkeys(filter(None, found)))


def asked_of(request: Request) -> dict[str, str]:
    """What every rank must be asked alike: the flags that were given, each with its values in all arms, and what sets the first apart."""
    found = {"arm": request.labels[0]} if request.labels else {}
    for name in Config.__struct_fields__:
        values = [*dict.fromkeys(getattr(arm, name) for arm in request.arms)]
        if name not in OF_A_NODE and values != [getattr(Config(workload=""), name)]:
            found[f"--{name.replace('_', '-')}"] = ",".join(map(str, values))
    return found


def meet_others(seat: Seat, device: Device, config: Config, data: str, asked: dict[str, str]) -> World:
    """Meets the other ranks, each of which tells where it stands, what it runs and what it was asked."""
    place = RankPlace(
        rank=seat.rank,
        host=seat.host,
        pid=os.getpid(),
        local_rank=seat.local_rank,
        node_rank=seat.node_rank,
        device=device.name,
        device_id=device.id,
        device_total_bytes=device.total_bytes,
        usable_cores=usable_cores(),
    )
    patience_s = config.hang_timeout
    notice = Notice(place, software(device.cuda), data, machine(), asked)
    return meet(seat, device, notice, config.share_gpu, MEETING_PATIENCE * patience_s, COLLECTIVE_PATIENCE * patience_s)


def new_record(asked: Config, config: Settled, world: World, label: str = "") -> Record:
    """The record of an arm that has not begun: what was asked for, and what that is on this machine."""
    stands = environment(
        world.notices[0].software,
        world.places,
        world.seat.launcher,
        world.backend,
        "cuda" if world.device.cuda else "cpu",
        world.device.why_no_health,
        gloo_ways(world.places) if world.backend == "gloo" else [],
    )
    model = cost_of(config.workload, config.image_size)
    return Record(
        config=config,
        environment=stands,
        asked=asked,
        label=label,
        item=workloads.find(config.workload).item,
        parameters=model.parameters,
        flops_per_image=model.flops_per_image,
    )
