"""Batches of any classes are repeated: new objects with the same tensors each time, whatever the script does to them."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections import Counter, OrderedDict, UserDict, defaultdict, deque, namedtuple
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import Dataset

from ddpbench.record.errors import BenchError
from ddpbench.script.diagnose.opened_batch import OpenedBatch
from ddpbench.script.diagnose.repeated import DeviceCopy, RepeatedBatches, _patched_copies


def ones() -> torch.Tensor:
    return torch.ones(2, 3)


class Graphs:
    """Moves to a device by a new object, and asks for arguments that no copy has."""

    def __init__(self, x: torch.Tensor, edges: list[torch.Tensor]) -> None:
        self.x, self.edges = x, edges

    def to(self, device: str) -> Graphs:
        return Graphs(self.x.to(device), [each.to(device) for each in self.edges])


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    names: list[str]


@dataclasses.dataclass(slots=True)
class Slotted:
    x: torch.Tensor
    extra: Any = None


class Child(Slotted):
    """Has slots of its class, and attributes of its own."""


class Attributes:
    """Every attribute is looked up in what a new object lacks."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__["fields"] = fields

    def __getattr__(self, name: str) -> Any:
        return self.fields[name]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("read only")


class Dotted(dict):  # type: ignore[type-arg]
    """A dict with an attribute besides its items."""

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("read only")


class Encoding(UserDict):  # type: ignore[type-arg]
    """As that of tokenizers: ``.to()`` changes it in place."""

    def __init__(self, data: dict[str, torch.Tensor], names: list[str]) -> None:
        super().__init__(data)
        self.names = names

    def to(self, device: str) -> Encoding:
        self.data = {key: value.to(device) for key, value in self.data.items()}
        return self


class Many(list):  # type: ignore[type-arg]
    size = (1, 2)


class Reduced:
    """Says itself how it is copied."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x
        self.lock = threading.Lock()

    def __reduce__(self) -> Any:
        return Reduced, (self.x,)


class Colour(Enum):
    RED = 1


class Parent:
    """As of graph libraries: a store knows its owner."""

    def __init__(self, x: torch.Tensor) -> None:
        self.store = {"x": x, "again": x}
        self.me = self
        self.owner = weakref.ref(self)


Pair = namedtuple("Pair", ["images", "labels"])

BATCHES: dict[str, tuple[Any, Any]] = {
    "objects": (Graphs(ones(), [ones()]), lambda batch: batch.edges[0]),
    "frozen dataclass": (Frozen(ones(), ["a"]), lambda batch: batch.x),
    "slots": (Slotted(ones(), {"more": ones()}), lambda batch: batch.extra["more"]),
    "slots and attributes": (Child(ones()), lambda batch: batch.x),
    "own attribute lookup": (Attributes(x=ones()), lambda batch: batch.x),
    "dict with attributes": (Dotted(x=ones()), lambda batch: batch["x"]),
    "user dict": (Encoding({"ids": ones()}, ["a"]), lambda batch: batch["ids"]),
    "list subclass": (Many([ones(), "name"]), lambda batch: batch[0]),
    "named tuple": (Pair(Graphs(ones(), []), 3), lambda batch: batch.images.x),
    "named result of torch": (ones().max(dim=0), lambda batch: batch.values),
    "ordered": (OrderedDict(x=ones()), lambda batch: batch["x"]),
    "default": (defaultdict(list, x=[ones()]), lambda batch: batch["x"][0]),
    "deque": (deque([ones()], maxlen=3), lambda batch: batch[0]),
    "packed sequence": (pack_sequence([torch.ones(3, 2), torch.ones(1, 2)]), lambda batch: batch.data),
    "owner": (Parent(ones()), lambda batch: batch.owner().me.store["again"]),
    "own way to be copied": ([Reduced(ones())], lambda batch: batch[0].x),
    "array of objects": (np.array([None, {"x": ones()}], dtype=object), lambda batch: batch[1]["x"]),
}


def kept(batch: Any) -> RepeatedBatches:
    repeated = RepeatedBatches()
    repeated.keep(batch)
    return repeated


@pytest.mark.parametrize("case", BATCHES)
def test_classes_and_tensors_are_those_of_the_batch(case: str) -> None:
    batch, tensor_of = BATCHES[case]
    repeated = kept(batch)
    first = repeated.next_batch()
    assert type(first) is type(batch)
    assert tensor_of(first).unique().tolist() == [1]
    assert tensor_of(first) is not tensor_of(batch)
    assert tensor_of(repeated.next_batch()) is tensor_of(first), "a tensor that has not changed is handed out again"


@pytest.mark.parametrize("case", BATCHES)
def test_what_the_script_does_to_a_batch_harms_no_later_one(case: str) -> None:
    batch, tensor_of = BATCHES[case]
    repeated = kept(batch)
    tensor_of(batch).add_(3)
    tensor_of(repeated.next_batch()).mul_(5)
    tensor_of(batch).sub_(3)
    for _ in range(2):
        again = repeated.next_batch()
        assert tensor_of(again).unique().tolist() == [1]
        vars(again).clear() if hasattr(again, "__dict__") else None
        again.clear() if isinstance(again, (dict, list, deque)) else None


@pytest.mark.parametrize("case", BATCHES)
def test_tensors_are_found_on_the_device(case: str) -> None:
    batch, tensor_of = BATCHES[case]
    repeated = kept(batch)
    (kept_batch,) = repeated._batches
    copies = {id(tensor): DeviceCopy(kept_batch, index, tensor.clone().fill_(7)) for index, tensor in enumerate(kept_batch.handed_out)}
    with _patched_copies(copies):
        assert tensor_of(repeated.next_batch()).to("cpu").unique().tolist() == [7]
        moved = repeated.next_batch()
        if isinstance(moved, (Graphs, Encoding, PackedSequence)):
            assert tensor_of(moved.to("cpu")).unique().tolist() == [7]


def test_attributes_and_items_are_new_each_time() -> None:
    repeated = kept([Graphs(ones(), []), {"names": ["a"], "count": Counter("aab"), "seen": {1}, "bytes": bytearray(b"a")}])
    graphs, more = repeated.next_batch()
    graphs.extra, graphs.x = 3, None
    graphs.edges.append(1)
    more["names"].append("b")
    more["seen"].add(2)
    more["bytes"].extend(b"b")
    more["count"].clear()
    graphs, more = repeated.next_batch()
    assert (hasattr(graphs, "extra"), graphs.x.shape, graphs.edges) == (False, (2, 3), [])
    assert more == {"names": ["a"], "count": Counter("aab"), "seen": {1}, "bytes": bytearray(b"a")}


class Images(Dataset[int]):
    def __init__(self) -> None:
        self.weights = ones()


class OwnsMemory:
    def __init__(self) -> None:
        self.names = ["a"]

    def __del__(self) -> None:
        self.names.clear()


@pytest.mark.parametrize(
    "part",
    [Path("a"), "text", Image.new("RGB", (4, 4)), len, torch, Graphs, Colour.RED, Images(), threading.Lock(), OwnsMemory(), object()],
    ids=lambda part: type(part).__name__,
)
def test_what_cannot_change_or_cannot_be_opened_is_handed_on(part: Any) -> None:
    repeated = kept({"x": ones(), "part": part, "parts": (part, [part])})
    for _ in range(2):
        batch = repeated.next_batch()
        assert batch["part"] is batch["parts"][0] is batch["parts"][1][0] is part


def test_parts_that_are_the_same_stay_the_same() -> None:
    shared = ones()
    first, second, mapping = kept([shared, [shared], {"x": shared}]).next_batch()
    assert first is second[0] is mapping["x"]
    found = kept(Parent(shared)).next_batch()
    assert found.me is found is found.owner()
    assert found.store["x"] is found.store["again"]


def test_iterator_of_a_batch_can_be_read_each_time() -> None:
    repeated = kept(zip([ones()], ["a"], strict=True))
    assert [name for _, name in repeated.next_batch()] == [name for _, name in repeated.next_batch()] == ["a"]


def test_tuple_that_contains_itself_is_copied_as_a_whole() -> None:
    inner: list[Any] = [ones()]
    batch = (inner, ones())
    inner.append(batch)
    first, second = kept(batch).next_batch()
    assert first[1][0] is first
    assert second.tolist() == ones().tolist()


def numbers() -> Iterator[int]:
    yield 1


class Locked:
    def __init__(self) -> None:
        self.x = ones()

    def __reduce__(self) -> Any:
        raise TypeError("no copies")


@pytest.mark.parametrize(("part", "name"), [(numbers(), "generator"), ({"x": ones()}.values(), "dict_values"), (Locked(), "Locked")])
def test_what_can_be_neither_copied_nor_repeated_is_named(part: Any, name: str) -> None:
    with pytest.raises(BenchError, match=f"cannot repeat batches that hold objects of class {name}"):
        kept({"part": part})


class Scaled(torch.Tensor):
    """Has an attribute of its own."""

    scale: float


def scaled() -> torch.Tensor:
    found = ones().as_subclass(Scaled)
    found.scale = 0.5
    return found


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        scaled,
        lambda: torch.nn.Parameter(ones()),
        lambda: ones().requires_grad_(),
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    ],
    ids=["subclass", "parameter", "gradient", "sparse", "compressed", "nested", "jagged"],
)
def test_tensors_of_every_kind(make: Any) -> None:
    def values(tensor: torch.Tensor) -> list[float]:
        dense = tensor.detach()
        return (dense.to_padded_tensor(0.0) if dense.is_nested else dense.to_dense()).flatten().tolist()

    tensor = make()
    repeated = kept([tensor])
    (first,) = repeated.next_batch()
    assert (type(first), first.layout, first.requires_grad) == (type(tensor), tensor.layout, tensor.requires_grad)
    assert vars(first).get("scale") == vars(tensor).get("scale")
    with torch.no_grad():
        first.mul_(3)
    (again,) = repeated.next_batch()
    assert values(again) == values(make())
    assert repeated.batch_bytes > 0
    assert repeated._batches[0].samples == tensor.size(0)
    if tensor.layout == torch.jagged:
        again.values().mul_(3)
        assert values(repeated.next_batch()[0]) == values(make())
    copied = {id(again): DeviceCopy(repeated._batches[0], 0, again.detach().clone())}
    with _patched_copies(copied):
        assert values(repeated.next_batch()[0].to("cpu")) == values(make())


def test_tensor_that_the_script_has_made_part_of_its_graph_is_replaced() -> None:
    repeated = kept([ones()])
    (first,) = repeated.next_batch()
    first.mul_(torch.ones(3, requires_grad=True))
    (again,) = repeated.next_batch()
    assert (again.is_leaf, again.requires_grad, again.tolist()) == (True, False, ones().tolist())


def test_opening_copies_no_tensor() -> None:
    batch = Graphs(ones(), [ones()])
    opened = OpenedBatch(batch)
    assert opened.tensors[0] is batch.x
    assert len(opened.tensors) == 2


def test_encodings_of_tokenizers_are_repeated() -> None:
    transformers = pytest.importorskip("transformers")
    batch = transformers.BatchEncoding({"input_ids": torch.ones(2, 4, dtype=torch.long)}, n_sequences=1)
    repeated = kept(batch)
    first = repeated.next_batch()
    first["extra"] = first.pop("input_ids").add_(3)
    again = repeated.next_batch()
    assert type(again) is type(batch)
    assert again.input_ids.tolist() == batch["input_ids"].tolist()
    assert (list(again), again.n_sequences) == (["input_ids"], 1)


def test_graphs_of_torch_geometric_are_repeated() -> None:
    data = pytest.importorskip("torch_geometric.data")
    graphs = [data.Data(x=torch.ones(n, 2), edge_index=torch.zeros(2, n, dtype=torch.long), y=torch.tensor([n])) for n in (3, 4)]
    batch = data.Batch.from_data_list(graphs)
    repeated = kept(batch)
    first = repeated.next_batch()
    assert (type(first), first.num_graphs, first.x.shape) == (type(batch), 2, (7, 2))
    assert first.x is repeated._batches[0].handed_out[0]
    first.x = first.x.add_(3)
    first.extra = 1
    again = repeated.next_batch().to("cpu")
    assert again.x.unique().tolist() == [1]
    assert [each.y.tolist() for each in again.to_data_list()] == [[3], [4]]
    assert "extra" not in again
    assert isinstance(batch.get_example(0), data.Data)


def test_packed_sequences_stay_packed() -> None:
    packed = pack_sequence([torch.arange(3.0), torch.arange(1.0)])
    found = kept({"text": packed}).next_batch()["text"]
    assert isinstance(found, PackedSequence)
    assert torch.nn.utils.rnn.pad_packed_sequence(found)[1].tolist() == [3, 1]
