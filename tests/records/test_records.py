"""The wire: what is packed comes back, what is no payload is refused, kinds keep their names."""

import importlib
import json
import pkgutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from jaxtyping import Float
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from common.exchange.records import Records, StateDict, array_bytes, count_bytes
from common.exchange.records.arrays import digest, prove
from common.exchange.tree import snapshot
from common.files import Damaged
from common.models import build
from server_app.tracking.tracker import TRACKERS


class Parcel(Records):
    n: int
    w: StateDict
    slots: dict[int, StateDict] = {}
    x: Float[Tensor, "n d"] | None = None
    y: Float[Tensor, " n"] | None = None
    note: float = 0.0


class Other(Records):
    n: int


PARCEL = Parcel(
    n=3,
    w={
        "a.weight": torch.tensor([[1.5, -0.0], [float("inf"), 1e-45]]),
        "a.count": torch.tensor(7),
        "b": torch.tensor([True, False]),
        "c": torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
        "empty": torch.empty(0, 3),
    },
    slots={11: {"z": torch.arange(3, dtype=torch.uint8)}, 2: {}},
    x=torch.ones(2, 3),
    y=torch.zeros(2),
    note=float("nan"),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "parcel.safetensors"


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def test_every_dtype_shape_and_nesting_survives_the_wire_and_a_file(path: Path) -> None:
    again = Parcel.unpack(PARCEL.pack())
    assert list(again.w) == list(PARCEL.w)
    assert all(same(again.w[name], PARCEL.w[name]) for name in PARCEL.w)
    assert str(again.w["a.weight"][0, 1]) == "tensor(-0.)"
    assert same(again.slots[11]["z"], PARCEL.slots[11]["z"]) and again.slots[2] == {}
    assert again.note != again.note, "NaN stays NaN"
    path.write_bytes(before := PARCEL.to_bytes())
    Parcel.load(path).w["c"].add_(1)
    assert path.read_bytes() == before, "what is read can be changed"
    again = Parcel.load(path)
    assert all(same(again.w[name], PARCEL.w[name]) for name in PARCEL.w)
    assert again.pack() == PARCEL.pack()
    with safe_open(path, framework="pt") as file:
        sizes = {name: file.get_tensor(name).numel() for name in list(file.keys())}
    assert sizes == {"int64": 1, "float32": 4 + 6 + 2, "bfloat16": 2, "bool": 2, "uint8": 3}
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"parcel.safetensors cannot be read"):
        Parcel.load(path)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
def test_a_file_of_which_any_bit_has_flipped_is_refused(share: float, path: Path) -> None:
    data = bytearray(PARCEL.to_bytes())
    begin = int(share * (len(data) - 24))
    for at in range(begin, begin + 24):
        data[at] ^= 1 << at % 8
        path.write_bytes(data)
        with pytest.raises(Damaged, match=r"parcel.safetensors cannot be read: "):
            Parcel.load(path)
        data[at] ^= 1 << at % 8
    path.write_bytes(data)
    assert Parcel.load(path).n == PARCEL.n and prove(path) == Parcel.kind


@pytest.mark.parametrize("of", ["an earlier release", "another kind"])
def test_a_file_of_an_earlier_release_or_another_kind_is_refused(of: str, path: Path) -> None:
    earlier = crafted({"__metadata__": SAID}), "it has no digest: an earlier release wrote it"
    other = Other(n=1).to_bytes(), r"cannot be read: is a 'test_records.Other', expected"
    content, line = earlier if of == "an earlier release" else other
    path.write_bytes(content)
    with pytest.raises(Damaged, match=line):
        Parcel.load(path)


def test_a_file_may_hold_more_tensors_than_a_message(path: Path) -> None:
    many = Parcel(n=1, w={str(i): torch.zeros(()) for i in range(20_001)})
    path.write_bytes(many.to_bytes())
    assert len(Parcel.load(path).w) == 20_001
    with pytest.raises(ValueError, match="more than 20000 tensors"):
        Parcel.unpack(many.pack())


def test_a_file_whose_tensors_are_not_those_of_its_skeleton_is_refused(path: Path) -> None:
    path.write_bytes(PARCEL.to_bytes())
    with safe_open(path, framework="pt") as file:
        meta, names = file.metadata(), list(file.keys())
        found = {name: file.get_tensor(name).clone() for name in names}
    numbers = found["float32"]
    for changed, message in (
        (numbers.double(), "array 'float32' is described by .*'F64'"),
        (numbers[:-1], "only 1 numbers are left"),
        (torch.cat([numbers, numbers[:2]]), "numbers that belong to no field: {'float32': 2}"),
    ):
        arrays = {**found, "float32": changed.clone()}
        path.write_bytes(sealed(save(arrays, metadata=meta)))
        with pytest.raises(ValueError, match=message):
            Parcel.load(path)


def test_axes_bind_within_one_payload_and_truth_values_are_0_or_1() -> None:
    with pytest.raises(ValueError, match="y"):
        Parcel(n=1, w={}, x=torch.ones(2, 3), y=torch.ones(4))
    honest = Array(np.array([True, False]))
    forged_bool = Array("bool", (2,), "numpy.ndarray", honest.data[:-1] + b"\x07")
    asked = {"n": 1, "w": tensor("bool", 2)}
    assert Parcel.unpack(forged(asked, {"bool": honest})).w["a"].tolist() == [True, False]
    with pytest.raises(ValueError, match="bytes other than 0 and 1"):
        Parcel.unpack(forged(asked, {"bool": forged_bool}))


def test_the_wire_costs_less_than_one_percent_over_the_numbers() -> None:
    from flwr.common.serde import recorddict_to_proto

    for spec in ("lenet5", "resnet8", "wrn-40-1"):
        w = snapshot(build(spec, (3, 32, 32), 10, seed=1))
        content = Parcel(n=1, w=w).pack()
        assert array_bytes(content) == sum(t.numel() * t.element_size() for t in w.values())
        assert array_bytes(content) <= count_bytes(content) <= 1.01 * array_bytes(content)
        size = len(recorddict_to_proto(content).SerializeToString())
        assert abs(size - count_bytes(content)) < 200, spec
    # an empty text counts as nothing where Flower would raise
    content = RecordDict({"fields": ConfigRecord({"a": "", "b": b"", "c": [1, True], "d": "xy"})})
    assert count_bytes(content) == len("fields") + len("abcd") + 8 + 1 + 2


def forged(skeleton: Any, arrays: dict[str, Array] | None = None, kind: str = "") -> RecordDict:
    text = skeleton if isinstance(skeleton, bytes) else json.dumps(skeleton).encode()
    fields = ConfigRecord({"kind": kind or Parcel.kind, "skeleton": zlib.compress(text)})
    return RecordDict({"arrays": ArrayRecord(arrays or {}), "fields": fields})


def tensor(dtype: str, *shape: int) -> dict[str, Any]:
    """The claim of a state dict with one tensor."""
    return {"a": {"~tensor": [dtype, *shape]}}


FOUR = Array(np.zeros(4, np.float32))
HUGE = Array("float32", (1 << 40,), "numpy.ndarray", FOUR.data)
LYING = Array("float32", (4,), "numpy.ndarray", Array(np.zeros(4, np.float64)).data)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (RecordDict(), "not a test_records.Parcel payload"),
        (forged({"n": 1, "w": {}}, kind="other"), "payload is a 'other'"),
        (forged({"n": "1", "w": {}}), "field 'n'"),
        (forged({"n": 1}), "field 'w'"),
        (forged({"n": 1, "w": tensor("float32", 2)}), "no float32 array"),
        (forged({"n": 1, "w": tensor("float32", -1)}), "claims dtype"),
        (forged({"n": 1, "w": tensor("object", 1)}), "claims dtype 'object'"),
        (forged({"n": 1, "w": tensor("float32", 9)}, {"float32": FOUR}), "only 4 numbers are left"),
        (forged({"n": 1, "w": tensor("float32", 1 << 40)}, {"float32": HUGE}), "only 4 numbers"),
        (forged({"n": 1, "w": {}}, {"float32": FOUR}), "to no field"),
        (forged({"n": 1, "w": {}}, {"float32": LYING}), "claims 4 numbers '<f8'"),
        (forged({"n": 1, "w": {}}, {"weird": FOUR}), "no known dtype"),
        (forged(b"\xff"), "not JSON"),
        (forged(b"[" * 100_000), "not JSON|malformed"),
        (forged([1, 2]), "malformed schema"),
        (forged(b" " * (40 * 2**20)), "exceeds"),
        (forged({"n": "wrong", "more": 1, "other": 2}), "field 'more': it is unknown"),
    ],
)
def test_what_is_no_payload_is_refused_in_one_line(content: RecordDict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Parcel.unpack(content)
    assert "\n" not in str(caught.value)


def counted(n: int, each: str) -> bytes:
    """A skeleton whose ``w`` holds n values, ``each`` with its number."""
    return b'{"n":1,"w":{"a":[' + b",".join(each.format(i).encode() for i in range(n)) + b"]}}"


@pytest.mark.parametrize(
    "write",
    [
        lambda: counted(1_390_000, "[]"),  # 4 kB as it travels
        lambda: counted(300_000, '{{"{}":1}}'),
        lambda: b'{"n":1,' + b",".join(b'"%d":0' % i for i in range(300_000)) + b"}",
        lambda: b'{"n":1,"w":' + b'{"a":' * 5 + b"[" + b"1," * 500_000 + b"1]" + b"}" * 6,
    ],
    ids=["empty lists", "objects", "unknown fields", "numbers"],
)
def test_values_are_counted_before_any_of_them_is_made(write, monkeypatch) -> None:
    monkeypatch.setattr("common.exchange.records.parse", None)
    with pytest.raises(ValueError, match="schema has more than 50000 values"):
        Parcel.unpack(forged(write()))


def test_as_many_values_as_are_allowed_come_through_and_no_more() -> None:
    class Told(Records):
        values = 12
        n: list[int]

    told = Told(n=list(range(10)))  # the object, the list, and what is in it
    assert Told.unpack(told.pack()) == told
    with pytest.raises(ValueError, match="more than 12 values other than tensors"):
        Told.unpack(Told(n=list(range(11))).pack())
    tensors = Parcel(n=1, w={str(i): torch.zeros((1,) * 8) for i in range(20_000)})
    assert len(Parcel.unpack(tensors.pack()).w) == 20_000, "a tensor's claim counts as nothing"


SAID = {"kind": Parcel.kind, "skeleton": "{}"}


def crafted(header: Any, body: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def sealed(data: bytes) -> bytes:
    """A file with the digest of what it holds now."""
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    said = header["__metadata__"]
    places = ((name, of["data_offsets"]) for name, of in header.items() if name != "__metadata__")
    sizes = {name: end - begin for name, (begin, end) in places}
    said["sha256"] = digest(said["kind"], said["skeleton"], sizes, [body])
    return crafted(header, body)


def claim(name: str = "float32", **changes: Any) -> dict[str, Any]:
    place = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}
    return {"__metadata__": SAID, name: place}


DESCRIBED = "array 'float32' is described by"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "claims a header of 0 bytes in a file of 0"),
        (b"1234", "claims a header of .* bytes in a file of 4"),
        (crafted({}, length=2**63), "claims a header of 9223372036854775808 bytes in a file of 10"),
        (crafted({}, length=3), "claims a header of 3 bytes in a file of 10"),
        (crafted(b"\xff"), "its header is not JSON"),
        (crafted(b"[" * 100_000), "its header is not JSON"),
        (crafted([1]), "its header is no JSON object"),
        (crafted({}), "is no JSON object with a kind"),
        (crafted({"__metadata__": [1]}), "is no JSON object with a kind"),
        (crafted({"__metadata__": {**SAID, "skeleton": {}}}), "is no JSON object with a kind"),
        (crafted(claim(), b"1234567"), DESCRIBED + r".* \[0, 8\].*from byte 0 on, of 7"),
        (crafted(claim(), b"123456789"), "its arrays end at byte 8 of 9"),
        (crafted({"__metadata__": SAID}, b"1"), "its arrays end at byte 0 of 1"),
        (crafted(claim(shape=[2**40]), b"12345678"), DESCRIBED),
        (crafted(claim(shape=[2**62, 4]), b"12345678"), DESCRIBED),
        (crafted(claim(shape=[1] * 100), b"12345678"), DESCRIBED),
        (crafted(claim(shape=[-2]), b"12345678"), DESCRIBED),
        (crafted(claim(data_offsets=[8, 0]), b"12345678"), DESCRIBED),
        (crafted(claim(data_offsets=[0, 2**40]), b"12345678"), DESCRIBED),
        (crafted(claim(data_offsets=[0, 6]), b"123456"), DESCRIBED),
        (sealed(crafted(claim(data_offsets=[0, 6], shape=[1]), b"123456")), "multiple of element"),
        (crafted(claim(data_offsets=[-8, 8]), b"12345678"), DESCRIBED),
        (crafted(claim(data_offsets=[0, 8.0]), b"12345678"), DESCRIBED),
        (crafted(claim(data_offsets=[0]), b"12345678"), DESCRIBED),
        (crafted(claim(data_offsets="08"), b"12345678"), DESCRIBED),
        (crafted(claim(dtype="OBJ"), b"12345678"), DESCRIBED),
        (crafted(claim("x"), b"12345678"), "array 'x' is of no known dtype"),
        (crafted({"__metadata__": SAID, "float32": 1}), DESCRIBED),
        (crafted(b'{"x":' + b"9" * 5000 + b"}"), "an integer has 5000 digits"),
    ],
)
def test_a_file_is_measured_before_its_header_is_believed(data, message, path, monkeypatch) -> None:
    path.write_bytes(data)
    if "end at byte 8" not in message and "multiple" not in message:
        monkeypatch.setattr("common.exchange.records.arrays.ReceivedArray", None)
    with pytest.raises(ValueError, match=f"parcel.safetensors cannot be read: .*{message}") as got:
        Parcel.load(path)
    assert "\n" not in str(got.value)


def test_numbers_that_are_not_aligned_are_read_as_they_are(path: Path) -> None:
    w = {**tensor("uint8", 1), "b": {"~tensor": ["float32", 2]}}
    header = {
        "__metadata__": {"kind": Parcel.kind, "skeleton": json.dumps({"n": 1, "w": w})},
        "uint8": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "float32": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    numbers = np.array([1.5, -2.0], np.float32).tobytes()
    path.write_bytes(sealed(crafted(header, b"\x07" + numbers)))
    found = Parcel.load(path).w
    assert found["a"].tolist() == [7] and found["b"].tolist() == [1.5, -2.0]
    assert found["b"].data_ptr() % 4 == 0


KINDS = """
    across: State; agreement: State; ca2fl: Update; checkpoint: Checkpoint;
    class_table: Down Newest State Up;
    composite: Memory; dafl: State; depthfl: Down Memory State; ditto: State; dl_mh: Schemed Up;
    dl_sh: Down Up; ds_fl: Down State Up; fd: State; fedftg: State; fedgen: Down State Up;
    fedgh: State; fedgkd: Down State; fedgkt: Down Memory State Up; fedin: Down State Up;
    fedkd: Down Memory State Up; fedkf: Down Memory State; fedktl: Down State;
    fedmd: Answer Down Learnt Memory Started Up; fedorion: State Up; fedssa: State; fedtgp: State;
    fiarse: Down Up; flexlora: State; flora: Down Memory State; global_model: Weights;
    heterofl: Down State; hetfedfl: Up; hetlora: Down State Up; i_dl_mh: Up;
    incentive: Gain Reward Rewarded; kt_pfl: Coefficients; lg_fedavg: State; local: State;
    moon: Memory; oca: State Upload; partly_shared: State; predictions: Predictions;
    private: Memory;
    protocol: Ask Down Envelope FineTunedScore Hello Measure Model Peer Score Statistics;
    protocol: Masked ToClient ToServer Trained Unmask Unmasked Up;
    public_set: Local; qffl: Up; reuse: Learnt; rolora: Memory State; scaffold: Down Memory State Up
"""
"""Kinds of messages, client states and server states: "first word: the words that follow it".

A client finds its state by the kind, so that a renamed kind would make it start anew.
"""

TRACKER_MODULES = {place.partition(":")[0] for place, _ in TRACKERS.values()}
"""Modules without records that need packages of an extra."""


def record_classes(base: type[Records]) -> Iterator[type[Records]]:
    for kind in base.__subclasses__():
        yield kind
        yield from record_classes(kind)


def test_no_kind_has_changed() -> None:
    for name in ("common", "server_app", "client_app"):
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if module.name not in TRACKER_MODULES:
                importlib.import_module(module.name)
    ours = {
        kind.kind
        for kind in record_classes(Records)
        if kind.__module__.partition(".")[0] in ("common", "server_app", "client_app")
    }
    entries = (entry.split(":") for entry in KINDS.split(";"))
    assert ours == {f"{first.strip()}.{name}" for first, names in entries for name in names.split()}
