"""The head of a page: what was trained, where, on which data, and with which settings, those of the defaults too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import structs
from rich.text import Text

from ddpbench.analysis.cpu_demand import given_threads, need
from ddpbench.analysis.metrics import SECONDS, duration
from ddpbench.analysis.text import device_word
from ddpbench.record.config import Config
from ddpbench.record.environment import Environment
from ddpbench.record.flags import Field, flags
from ddpbench.record.loaders import SYNTHETIC, spec_of
from ddpbench.record.record import Attestation, Record
from ddpbench.record.registry import WITHOUT_SYNC
from ddpbench.record.text import count
from ddpbench.report.format import MISSING
from ddpbench.report.layout import Page, flow, sentence
from ddpbench.report.pages.transport import travel
from ddpbench.report.styled import LABEL, inked

IN_WORDS = frozenset(
    {"precision", "batch_size", "image_size", "optimizer", "optimizer_impl", "lr", "momentum", "weight_decay", "channels_last", "seed"}
    | {"loader", "data_dir", "workers", "engine", "device", "threads", "broadcast_buffers", "gradient_as_bucket_view"}
    | {"warmup", "steps", "rounds"}
)
"""Fields that the head tells in words; any other is shown as its flag where it differs from its default."""

OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}

MOST_NAMED = 3

Item = tuple[str, str]
"""The Config fields that a piece of the head tells of, and the piece."""


def header(record: Record, page: Page) -> Iterator[Text]:
    """The head of one run: workload, attested precision, engine, layout; machine and batch; data; settings."""
    title = [_workload(record), *_training(record)]
    machine = [("", place(record.environment)), *_frame(record)]
    yield from inked(flow("ddpbench  ", _texts(title), page, gap="  "), LABEL, len("ddpbench"))
    yield from inked(flow("", _texts(machine), page, gap="     "))
    yield from labelled("data", _texts([("", _description(record)), *loader_items(record)]), page)
    yield from labelled("set", _texts([*_settings(record), *_measuring(record)]), page)


def shared_header(records: Sequence[Record], page: Page) -> Iterator[Text]:
    """The head of a page of arms: what all of them share. Where they differ is told by their table."""
    record = records[0]
    differing = {name for name in Config.__struct_fields__ if len({getattr(each.config, name) for each in records}) > 1}
    title = [_workload(record), ("", _place(records)), ("", f"{_rounds(records)}, interleaved")]
    yield from inked(sentence("", ", ".join(_texts(title, differing)), page), LABEL)
    yield from inked(flow("", _texts([*_training(record), *_wrapping(records), *_frame(record)], differing), page))
    descriptions = dict.fromkeys(_description(each) for each in records if each.data)
    yield from labelled("data", [*descriptions, *_texts(loader_items(record), differing)], page)
    yield from labelled("set", _texts(_settings(record), differing), page)


def titled(command: str, record: Record, page: Page) -> Iterator[Text]:
    """The first line of a page about one training: the command, and what it was asked about, where."""
    config, name = record.config, f"ddpbench {command}"
    title = [config.workload, config.precision, place(record.environment), count(need(record).usable, "usable core")]
    yield from inked(flow(f"{name}  ", title, page, gap="  "), LABEL, len(name))


def details(record: Record, page: Page) -> Iterator[Text]:
    """What a head leaves out: what was seen to run, every version, every flag."""
    software = structs.asdict(record.environment.software)
    yield from labelled("seen", _seen(record.attestation), page)
    yield from labelled("with", (f"{name} {version}" for name, version in software.items() if version), page)
    yield from labelled("", (f"{name}={value}" for name, value in record.environment.variables.items()), page)
    yield from labelled("flag", (_flag(field, getattr(record.config, field.name)) for field in flags(Config)), page)


def labelled(label: str, items: Iterable[str], page: Page) -> list[Text]:
    """``items`` behind a short word; no line where there are none."""
    there = list(items)
    return inked(flow(f"{label:4}  ", there, page), LABEL, len(label)) if there else []


def place(environment: Environment) -> str:
    """``4 x NVIDIA H200, node-01``; on processors ``2 ranks on NAME, node-01``; with more nodes how many, and which."""
    hosts = list(dict.fromkeys(each.host for each in environment.places))
    which = ", ".join(hosts) if len(hosts) <= 3 else f"{hosts[0]} to {hosts[-1]}"
    where = which if len(hosts) == 1 else f"{len(hosts)} nodes: {which}"
    return f"{_devices(environment)}, {where}"


def _devices(environment: Environment) -> str:
    if environment.device_type == "cuda":
        return " + ".join(f"{count} x {name}" for name, count in Counter(each.device for each in environment.places).items())
    return f"{count(environment.world_size, 'rank')} on {environment.places[0].device}"


def _place(records: Sequence[Record]) -> str:
    """Of arms; without the host where that is not the same for all."""
    first, *others = dict.fromkeys(place(each.environment) for each in records)
    return _devices(records[0].environment) if others else first


def wraps(record: Record) -> bool:
    """Whether DDP wraps the model: it needs a process group, and Accelerate wants more than one rank in it."""
    engine = record.config.engine
    return record.environment.backend != "none" and engine != "none" and (engine != "accelerate" or record.world_size > 1)


def rate(*records: Record) -> str:
    """The unit of throughput: ``images/s``, ``points/s``; ``samples/s`` where the records differ in what a sample is."""
    items = {record.item for record in records}
    return f"{items.pop() if len(items) == 1 else 'sample'}s/s"


def those(names: Sequence[str], of: int) -> str:
    """Some of so many arms, by name while they are few: ``fp32, tf32``, ``5 of 8 arms``; empty for all of them."""
    if len(names) == of:
        return ""
    return ", ".join(names) if len(names) <= MOST_NAMED else f"{len(names)} of {of} arms"


def _texts(items: Iterable[Item], differing: Collection[str] = ()) -> list[str]:
    """The pieces that hold for every arm."""
    return [text for fields, text in items if text and not any(name in differing for name in fields.split())]


def _workload(record: Record) -> Item:
    return "workload", record.config.workload


def _training(record: Record) -> Iterator[Item]:
    config = record.config
    yield "precision", f"{config.precision} ({'attested' if record.attestation else 'not attested'})"
    if wraps(record):
        yield "engine broadcast_buffers", f"{config.engine}, buffer broadcast {_on(config.broadcast_buffers)}"
    else:
        yield "engine", f"{'' if config.engine == 'ddp' else f'{config.engine}, '}no DDP: {_alone(record)}"
    yield "channels_last", "channels-last" if config.channels_last else "channels-first"


def _wrapping(records: Sequence[Record]) -> Iterator[Item]:
    """Of arms with different engines, which leave DDP out."""
    engines = {each.config.engine for each in records}
    without = {each.config.engine for each in records if not wraps(each)}
    if without and len(engines) > 1:
        yield (
            "",
            f"no DDP{'' if without == engines else f' in {min(without)}'}: {_alone(next(each for each in records if not wraps(each)))}",
        )


def _frame(record: Record) -> Iterator[Item]:
    """The batch, and the versions of what trains."""
    config, software = record.config, record.environment.software
    yield "batch_size", f"batch {config.batch_size} x {record.world_size} = {record.global_batch}"
    yield "threads cores", _threads(record)
    yield "engine", travel(record.environment) if wraps(record) else ""
    yield "", f"torch {software.torch}"
    if config.engine == "accelerate":
        yield "engine", f"accelerate {software.accelerate or MISSING}"
    if spec_of(config.loader).threaded:
        yield "loader", f"DALI {software.dali or MISSING}"


def _threads(record: Record) -> str:
    """What a rank on processors computes with: the threads it was given or, of one process that was given none, all cores."""
    if record.environment.device_type != "cpu":
        return ""
    if threads := given_threads(record):
        return count(threads, "thread") + (" a rank" if record.world_size > 1 else "")
    cores = need(record).usable
    return f"all {cores:g} cores" if record.world_size == 1 and cores > 1 else ""


def _description(record: Record) -> str:
    return record.data.description if record.data else record.config.data_dir or MISSING


def loader_items(record: Record) -> Iterator[Item]:
    """Which loader gave the batches, and with how many workers."""
    config = record.config
    yield "loader", f"loader {config.loader}"
    if config.loader != SYNTHETIC:
        hands = "thread" if spec_of(config.loader).threaded else "worker"
        yield "workers", f"{count(record.workers, hands)} a {device_word(record.environment)}"


def _alone(record: Record) -> str:
    if record.config.engine in WITHOUT_SYNC and record.world_size > 1:
        return "every rank for itself"
    return "one process" if record.environment.backend == "none" else "one rank"


def _settings(record: Record) -> Iterator[Item]:
    config = record.config
    yield "image_size", f"{config.image_size} px" if config.image_size else ""
    yield "optimizer optimizer_impl", f"{OPTIMIZERS[config.optimizer]} {config.optimizer_impl}"
    yield "lr", f"lr {config.lr:g}"
    yield "momentum", f"momentum {config.momentum:g}" if config.optimizer == "sgd" else ""
    yield "weight_decay", f"weight decay {config.weight_decay:g}"
    yield "seed", f"seed {config.seed}"
    yield "", "cudnn.benchmark on" if record.environment.device_type == "cuda" else ""
    yield "gradient_as_bucket_view", f"bucket view {_on(config.gradient_as_bucket_view)}" if wraps(record) else ""
    for field in flags(Config):
        value = getattr(config, field.name)
        left_off = value is False and field.default is None
        if field.name not in IN_WORDS and value != field.default and not left_off:
            yield field.name, _flag(field, value)


def _measuring(record: Record) -> Iterator[Item]:
    """How it was measured; what really happened, where that is known."""
    ready = record.preparation
    if ready is None:
        yield "", f"warm-up {record.config.warmup}"
    else:
        yield "", f"warm-up {ready.warmup_steps}" + ("" if ready.warmup_agreed else ", still changing")
    yield "", _rounds([record])


def _rounds(records: Sequence[Record]) -> str:
    """``5 rounds of 20 steps``; where some are missing ``3 of 5 rounds of 20 steps``, and of arms with more or fewer ``2 to 3 of 5``.

    Steps are left out where rounds differ in length; where whole trainings do, that is said.
    """
    asked, done = [record.config.rounds for record in records], [len(record.rounds) for record in records]
    rounds = f"{_span(asked)} round{'s' * (max(asked) != 1)}"
    so_far = f"{_span(done)} of " if any(done) and done != asked else ""
    lengths = {timed.traces[0].steps for record in records for timed in record.rounds} or {records[0].config.steps or 0}
    length, *others = lengths
    steps = f" of {count(length, 'step')}" if length and not others else ""
    unlike = ", trainings of different length" if records[0].config.fresh and duration(records) is not SECONDS else ""
    return so_far + rounds + steps + (" each" if len(records) > 1 else "") + unlike


def _span(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def _seen(attestation: Attestation | None) -> Iterator[str]:
    if attestation is None:
        return
    yield f"parameters {'/'.join(attestation.parameters)}"
    yield f"gradients {'/'.join(attestation.gradients)}"
    if attestation.master:
        yield f"master weights {attestation.master}"
    yield f"BatchNorm {'/'.join(attestation.batch_norm)}" if attestation.batch_norm else "no BatchNorm"
    yield f"first layer {attestation.first_layer}"
    yield f"last layer {attestation.last_layer}"
    yield f"TF32 matmul {_on(attestation.tf32_matmul)}, cuDNN {_on(attestation.tf32_cudnn)}"
    yield f"loss scale {attestation.loss_scale:g}" if attestation.loss_scale else "no loss scale"
    yield attestation.optimizer


def _flag(field: Field, value: object) -> str:
    """A flag as it would be typed; ``-`` for a value that was never set."""
    if isinstance(value, bool):
        return field.spelling if value else field.negative
    return f"{field.spelling} {MISSING if value is None else f'{value}{field.flag.unit}'}"


def _on(switch: bool) -> str:
    return "on" if switch else "off"
