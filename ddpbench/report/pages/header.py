"""The header of a page: what was trained, where, on which data, with which settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import structs
from rich.text import Text

from ddpbench.analysis.cpu_demand import configured_threads, cpu_demand
from ddpbench.analysis.metrics import SECONDS, time_or_speed_metric
from ddpbench.record.config import USUAL_VALUES, Config
from ddpbench.record.environment import Environment, Transport
from ddpbench.record.flags import FlagField, flag_fields
from ddpbench.record.loaders import SYNTHETIC, loader_spec
from ddpbench.record.record import ObservedPrecision, Record
from ddpbench.record.registry import ENGINES_WITHOUT_SYNC
from ddpbench.record.text import pluralize
from ddpbench.report.format import MISSING, format_rounded
from ddpbench.report.layout import LABEL, Page, styled, wrap_items, wrap_text
from ddpbench.report.messages.dataset import dataset_text
from ddpbench.report.messages.fast_gains import gains_for
from ddpbench.report.messages.phrases import device_noun
from ddpbench.report.messages.roles import INDEPENDENT_IN_SCALING

BACKEND_NAMES = {"nccl": "NCCL"}
TRANSPORT_NAMES = {"SHM": "shared memory", "TCP": "sockets", "NET/Socket": "sockets"}


def transport_text(environment: Environment) -> str:
    """``NCCL over NVLink``, ``NCCL over NVLink, InfiniBand between nodes``; empty if unknown."""
    inside, between = (
        list(dict.fromkeys(_transport_name(each) for each in environment.transport if each.inter_node == across))
        for across in (False, True)
    )
    if not (inside or between):
        return ""
    network = f", {' and '.join(between)} between nodes" if inside and between and inside != between else ""
    return f"{BACKEND_NAMES.get(environment.backend, environment.backend)} over {' and '.join(inside or between)}{network}"


def _transport_name(transport: Transport) -> str:
    """The link type or, if it is unknown, the transport."""
    kind, *rest = transport.via.split("/")
    by_network = f"NET/{rest[0]}" if kind == "NET" else kind
    return transport.link_type or TRANSPORT_NAMES.get(by_network) or (rest[0] if kind == "NET" else kind)


DESCRIBED_FIELDS = frozenset(
    {"precision", "batch_size", "image_size", "optimizer", "optimizer_impl", "lr", "momentum", "weight_decay", "channels_last", "seed"}
    | {"compile", "combo_kernels", "fast", "fused_kernels", "cuda_graph", "broadcast_buffers"}
    | {"loader", "data_dir", "workers", "engine", "device", "threads"}
    | {"warmup", "steps", "rounds", "time_limit", "roofline"}
)
"""Fields that the header describes in words; others are shown as flags if they differ from their default."""

FAST_SETTINGS = {
    "compile": "compiled kernels",
    "combo_kernels": "combo kernels",
    "fused_kernels": "fused kernels",
    "cuda_graph": "CUDA graphs",
    "cudnn_benchmark_limit": "all algorithms of cuDNN tried",
    "optimizer_impl": "SGD in Triton",
    "broadcast_buffers": "no buffer broadcast",
}
"""What ``--fast`` chooses: fields, and what it turns on or off."""

OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}

MAX_NAMED = 3

HeaderItem = tuple[str, str]
"""Config fields, separated by spaces, and the header text that describes them."""


def header_lines(record: Record, page: Page) -> Iterator[Text]:
    """The header of one run: training, machine and batch, data, and the settings that are not the usual ones; a verbose page has all."""
    title = [_workload(record), *_training(record)]
    machine = [("", machine_text(record.environment)), *batch_and_version_items(record, page)]
    yield from styled(wrap_items("ddpbench  ", texts_in_common(title), page, gap="  "), LABEL, len("ddpbench"))
    yield from styled(wrap_items("", texts_in_common(machine), page, gap="     "))
    yield from labelled_lines("data", texts_in_common([("", _description(record)), *loader_items(record)]), page)
    yield from labelled_lines("fast", _fast_choices(record), page)
    yield from labelled_lines(
        "conf", texts_in_common([*_settings(record, page), *(_warmup_and_round_items(record) if page.verbose else ())]), page
    )


def shared_header_lines(records: Sequence[Record], page: Page, order: str = "interleaved") -> Iterator[Text]:
    """The header of a page of arms: what all of them share, and the order of their rounds. Their table shows the rest."""
    record = records[0]
    differing = differing_fields([each.config for each in records])
    title = [_workload(record), ("", _common_machine_text(records)), ("", f"{_rounds(records)}, {order}")]
    yield from styled(wrap_text("", ", ".join(texts_in_common(title, differing)), page), LABEL)
    yield from styled(
        wrap_items(
            "", texts_in_common([*_training(record), *_without_ddp_items(records), *batch_and_version_items(record, page)], differing), page
        )
    )
    descriptions = dict.fromkeys(_description(each) for each in records if each.data)
    yield from labelled_lines("data", [*descriptions, *texts_in_common(loader_items(record), differing)], page)
    fast = next((each for each in records if each.config.fast), record)
    yield from labelled_lines("fast", _fast_choices(fast, differing_fields([each.config for each in records if each.config.fast])), page)
    yield from labelled_lines("conf", texts_in_common(_settings(record, page), differing), page)


def title_lines(command: str, record: Record, page: Page) -> Iterator[Text]:
    """The title of a page about one training: command, workload, precision, machine, cores."""
    config, name = record.config, f"ddpbench {command}"
    title = [config.workload, config.precision, machine_text(record.environment), pluralize(cpu_demand(record).usable_cores, "usable core")]
    yield from styled(wrap_items(f"{name}  ", title, page, gap="  "), LABEL, len(name))


def detail_lines(record: Record, page: Page) -> Iterator[Text]:
    """Details that the header omits: observed precision, all versions, all flags."""
    software = structs.asdict(record.environment.software)
    yield from labelled_lines("seen", _observed_precision_items(record.observed_precision), page)
    yield from labelled_lines("libs", (f"{name} {version}" for name, version in software.items() if version), page)
    yield from labelled_lines("", (f"{name}={value}" for name, value in record.environment.variables.items()), page)
    yield from labelled_lines("args", (_flag(field, getattr(record.config, field.name)) for field in flag_fields(Config)), page)


def labelled_lines(label: str, items: Iterable[str], page: Page) -> list[Text]:
    """``items`` after a short label; no line if there are none."""
    texts = list(items)
    return styled(wrap_items(f"{label:4}  ", texts, page), LABEL, len(label)) if texts else []


def machine_text(environment: Environment) -> str:
    """``4 x NVIDIA H200, node-01``; for CPU ranks ``2 ranks on NAME, node-01``.

    With several nodes their number, and their names.
    """
    hosts = list(dict.fromkeys(each.host for each in environment.placements))
    names = ", ".join(hosts) if len(hosts) <= 3 else f"{hosts[0]} to {hosts[-1]}"
    nodes = names if len(hosts) == 1 else f"{len(hosts)} nodes: {names}"
    return f"{_devices(environment)}, {nodes}"


def _devices(environment: Environment) -> str:
    if environment.device_type == "cuda":
        return " + ".join(f"{count} x {name}" for name, count in Counter(each.device_name for each in environment.placements).items())
    return f"{pluralize(environment.world_size, 'rank')} on {environment.placements[0].device_name}"


def _common_machine_text(records: Sequence[Record]) -> str:
    """The machine of several arms, without the host if it differs."""
    first, *others = dict.fromkeys(machine_text(each.environment) for each in records)
    return _devices(records[0].environment) if others else first


def some_arms_text(names: Sequence[str], total: int) -> str:
    """Some of ``total`` arms: ``fp32, tf32``, or ``5 of 8 arms``; empty for all of them."""
    if len(names) == total:
        return ""
    return ", ".join(names) if len(names) <= MAX_NAMED else f"{len(names)} of {total} arms"


def differing_fields(configs: Sequence[Config]) -> set[str]:
    return {name for name in Config.__struct_fields__ if len({getattr(each, name) for each in configs}) > 1}


def texts_in_common(items: Iterable[HeaderItem], differing: Collection[str] = ()) -> list[str]:
    """The texts that hold for every arm."""
    return [text for fields, text in items if text and not any(name in differing for name in fields.split())]


def _workload(record: Record) -> HeaderItem:
    return "workload", record.config.workload


def _training(record: Record) -> Iterator[HeaderItem]:
    config = record.config
    yield "precision", f"{config.precision} ({'verified' if record.observed_precision else 'not verified'})"
    if record.uses_ddp:
        broadcast = f", buffer broadcast {_on_off(config.broadcast_buffers)}" if record.world_size > 1 else ""
        yield "engine broadcast_buffers", f"{config.engine}{broadcast}"
    else:
        yield "engine", f"{'' if config.engine == 'ddp' else f'{config.engine}, '}no DDP: {_no_ddp_reason(record)}"
    yield "channels_last", "channels-last" if config.channels_last else "channels-first"
    if config.runs_fused_kernels(record.environment.device_type == "cuda"):
        yield "fused_kernels", "fused kernels"
    if config.cuda_graph and record.environment.device_type == "cuda":
        yield "cuda_graph", "CUDA graphs (phases as in the last step of a round)"


def _fast_choices(record: Record, differing: Collection[str] = ()) -> Iterator[str]:
    """What ``--fast`` has chosen, with the gain of each choice where it was measured, and what it found set; ``differing`` is left out."""
    requested, config = record.requested, record.config
    if not config.fast or requested is None:
        return
    measured, shown = gains_for(config), False
    for name, text in FAST_SETTINGS.items():
        chosen, given = getattr(config, name), getattr(requested, name)
        if name in differing or (name == "broadcast_buffers" and not record.uses_ddp):
            continue
        if given is not None:
            yield f"{_flag(next(field for field in flag_fields(Config) if field.name == name), given)} as you set it"
        elif chosen != USUAL_VALUES[name]:
            gain = measured.of(name) if measured else None
            yield f"{text} {format_rounded(gain)}x" if gain else text
            shown = shown or gain is not None
    if measured and shown:
        yield measured.source


def _without_ddp_items(records: Sequence[Record]) -> Iterator[HeaderItem]:
    """The note on arms without DDP, if their engines differ."""
    engines = {each.config.engine for each in records}
    without = {each.config.engine for each in records if not each.uses_ddp}
    if without and len(engines) > 1:
        yield (
            "",
            f"no DDP{'' if without == engines else f' in {min(without)}'}: "
            f"{_no_ddp_reason(next(each for each in records if not each.uses_ddp))}",
        )


def batch_and_version_items(record: Record, page: Page) -> Iterator[HeaderItem]:
    """The batch size, and the versions of the libraries that train; on a verbose page, threads and the transport within a node too."""
    config, software = record.config, record.environment.software
    yield "batch_size", f"batch {config.batch_size} x {record.world_size} = {record.global_batch_size}"
    if page.verbose:
        yield "threads cores", _threads(record)
    if record.uses_ddp and (page.verbose or record.environment.nodes > 1):
        yield "engine", transport_text(record.environment)
    yield "", f"torch {software.torch}"
    if config.engine == "accelerate":
        yield "engine", f"accelerate {software.accelerate or MISSING}"
    if loader_spec(config.loader).uses_threads:
        yield "loader", f"DALI {software.dali or MISSING}"


def _threads(record: Record) -> str:
    """Compute threads of a CPU rank: the configured ones, else all cores for a single rank."""
    if record.environment.device_type != "cpu":
        return ""
    if threads := configured_threads(record):
        return pluralize(threads, "thread") + (" per rank" if record.world_size > 1 else "")
    cores = cpu_demand(record).usable_cores
    return f"all {cores:g} cores" if record.world_size == 1 and cores > 1 else ""


def _description(record: Record) -> str:
    return dataset_text(record.data) if record.data else record.config.data_dir or MISSING


def loader_items(record: Record) -> Iterator[HeaderItem]:
    """The loader and its number of workers."""
    config = record.config
    yield "loader", f"loader {config.loader}"
    if config.loader != SYNTHETIC:
        producer = "thread" if loader_spec(config.loader).uses_threads else "worker"
        yield "workers", f"{pluralize(record.workers, producer)} per {device_noun(record.environment)}"


def _no_ddp_reason(record: Record) -> str:
    if record.config.engine in ENGINES_WITHOUT_SYNC and record.world_size > 1:
        return INDEPENDENT_IN_SCALING
    return "one process" if record.environment.backend == "none" else "one rank"


def _settings(record: Record, page: Page) -> Iterator[HeaderItem]:
    """The settings that differ from the usual ones; on a verbose page the usual ones too."""
    config = record.config
    if page.verbose:
        yield "image_size", f"{config.image_size} px" if config.image_size else ""
        yield "optimizer optimizer_impl", f"{OPTIMIZERS[config.optimizer]} {config.optimizer_impl}"
        yield "lr", f"lr {config.lr:g}"
        yield "momentum", f"momentum {config.momentum:g}" if config.optimizer == "sgd" else ""
        yield "weight_decay", f"weight decay {config.weight_decay:g}"
        yield "seed", f"seed {config.seed}"
        yield "", "cudnn.benchmark on" if record.environment.device_type == "cuda" else ""
    yield "compile", "" if config.compile == "off" else f"--compile {config.compile}"
    yield "combo_kernels", "--combo-kernels" if config.combo_kernels and config.compile != "off" else ""
    for field in flag_fields(Config):
        value = getattr(config, field.name)
        is_usual = value in (field.default, USUAL_VALUES.get(field.name)) or (value is False and field.default is None)
        if field.name not in DESCRIBED_FIELDS and not is_usual:
            yield field.name, _flag(field, value)


def _warmup_and_round_items(record: Record) -> Iterator[HeaderItem]:
    """Warm-up and rounds: as measured if known, else as configured."""
    warmup = record.warmup
    if warmup is None:
        yield "", pluralize(record.config.warmup, "warm-up step")
    else:
        yield "", pluralize(warmup.warmup_steps, "warm-up step") + ("" if warmup.warmup_converged else ", speed not yet stable")
    yield "", _rounds([record])


def _rounds(records: Sequence[Record]) -> str:
    """``5 rounds of 20 steps``; ``3 of 5 rounds of 20 steps`` if some are missing.

    Arms that differ give ``2 to 3 of 5``. Steps are omitted if rounds differ in length; trainings of different length are named.
    """
    requested, done = [record.config.rounds for record in records], [len(record.rounds) for record in records]
    rounds = f"{_format_range(requested)} round{'s' * (max(requested) != 1)}"
    so_far = f"{_format_range(done)} of " if any(done) and done != requested else ""
    lengths = {timed.traces[0].steps for record in records for timed in record.rounds} or {records[0].config.steps or 0}
    length, *others = lengths
    steps = f" of {pluralize(length, 'step')}" if length and not others else ""
    length_note = ", trainings of different length" if records[0].config.fresh and time_or_speed_metric(records) is not SECONDS else ""
    return so_far + rounds + steps + (" each" if len(records) > 1 else "") + length_note


def _format_range(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def _observed_precision_items(observed: ObservedPrecision | None) -> Iterator[str]:
    if observed is None:
        return
    yield f"parameters {'/'.join(observed.parameter_dtypes)}"
    yield f"gradients {'/'.join(observed.gradient_dtypes)}"
    if observed.master_weight_dtype:
        yield f"master weights {observed.master_weight_dtype}"
    yield f"BatchNorm {'/'.join(observed.batch_norm_dtypes)}" if observed.batch_norm_dtypes else "no BatchNorm"
    yield f"first layer {observed.first_layer_dtype}"
    yield f"last layer {observed.last_layer_dtype}"
    yield f"TF32 matmul {_on_off(observed.tf32_matmul)}, cuDNN {_on_off(observed.tf32_cudnn)}"
    yield f"loss scale {observed.loss_scale:g}" if observed.loss_scale else "no loss scale"
    yield observed.optimizer


def _flag(field: FlagField, value: object) -> str:
    """A flag as typed on the command line; ``-`` for a value that was never set."""
    if isinstance(value, bool):
        return field.option if value else field.negated_option
    return f"{field.option} {MISSING if value is None else f'{value}{field.flag.unit}'}"


def _on_off(enabled: bool) -> str:
    return "on" if enabled else "off"
