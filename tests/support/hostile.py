"""Malformed replies: honest replies of tiny runs, with changed fields, arrays or bytes."""

import copy
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from hypothesis import strategies as st

from common.exchange.protocol import ClientInfo, ScoreReply, StatisticsReply
from common.exchange.records import Records
from server_app.messaging import messenger
from server_app.method import Method
from server_app.strategy import MethodStrategy
from tests.support.battery import config
from tests.support.tiny import play

Path_ = tuple[Any, ...]
T, K = 1, 1  #: round and client of the reply that is changed
HUGE = 10**18
dtypes = st.sampled_from(["float32", "float64", "int64", "uint8", "bool", "bfloat16", "object", 3])
sizes = st.one_of(st.integers(-2, 9), st.sampled_from([HUGE, 2**31, 2**63, 10**40, 1.5, "2", None]))
shapes = st.lists(sizes, max_size=10)
claims = st.builds(lambda dtype, shape: {"~tensor": [dtype, *shape]}, dtypes, shapes)
numbers = st.one_of(
    st.integers(),
    st.sampled_from([2**40, 2**63, 10**400, -1, 1e999, -1e999, 1e300, float("nan")]),
    st.floats(),
    st.sampled_from(["nan", "inf", "-inf", "1e999", ""]).map(lambda name: {"~float": name}),
)
plain = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=20), claims)
junk = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=8), inner, max_size=4),
        st.dictionaries(st.sampled_from(["0", "-1", "x", "9" * 30]), inner).map(
            lambda items: {"~int": items}
        ),
        inner.map(lambda value: {"~int": value}),
        inner.map(lambda value: {"~tensor": value}),
    ),
    max_leaves=8,
)
raw = st.one_of(
    st.binary(max_size=200),
    st.builds(lambda n: b"[" * n, st.sampled_from([20, 1000, 100_000])),
    st.builds(lambda n: b'{"a":' * n + b"1" + b"}" * n, st.sampled_from([20, 300])),
)


@dataclass(frozen=True)
class Seen:
    """A finished tiny run: its strategy, and client K's honest replies."""

    strategy: MethodStrategy
    up: RecordDict
    score: RecordDict
    info: RecordDict
    gain: RecordDict | None  #: reply of the second exchange, if there is one
    statistics: RecordDict | None  #: statistics of BatchNorm's inputs, if clients measure them

    @property
    def method(self) -> Method[Any, Any]:
        return self.strategy.method


def _copied(content: RecordDict) -> RecordDict:
    """Return a copy in memory; the arrays of a reply may be in a file."""
    for record in content.array_records.values():
        for array in record.values():
            array.data = bytes(array.data)
    return copy.deepcopy(content)


@cache
def seen(method: str) -> Seen:
    """Return the replies of one round of ``method``; tests must not change them in place."""
    caught: dict[Any, Any] = {}

    def aggregating(self: MethodStrategy, t: int, replies: Any) -> Any:
        caught["strategy"], caught["sent"] = self, dict(self.method.sent)
        return original_aggregate(self, t, replies)

    def opening(reply: Message, kind: type[Records], settings: Any) -> Records:
        content = _copied(reply.content)
        payload: Any = original_open(reply, kind, settings)
        if payload.k == K:
            caught[kind] = content
        return payload

    original_open = messenger.open_reply
    original_aggregate = MethodStrategy.aggregate_train
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(MethodStrategy, "aggregate_train", aggregating)
        patch.setattr(messenger, "open_reply", opening)
        play(config(method, Path(folder), rounds=1))
    of = caught["strategy"].method
    of.sent = caught["sent"]  # a check reads the request
    return Seen(
        caught["strategy"],
        *(caught[kind] for kind in (of.reply_type, ScoreReply, ClientInfo)),
        *(caught.get(kind) for kind in (of.second_reply_type, StatisticsReply)),
    )


def schema(content: RecordDict) -> Any:
    """Return the JSON schema of a payload."""
    fields = content["fields"]
    assert isinstance(fields, ConfigRecord) and isinstance(fields["skeleton"], bytes)
    return json.loads(zlib.decompress(fields["skeleton"]))


def with_schema(content: RecordDict, changed: Any) -> RecordDict:
    """Return the payload with another schema, a JSON value or raw text."""
    text = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
    fields = dict(content.config_records["fields"]) | {"skeleton": _squeezed(text)}
    return RecordDict({"arrays": content["arrays"], "fields": ConfigRecord(fields)})


@cache
def _squeezed(text: bytes) -> bytes:
    return zlib.compress(text, 1)


def with_arrays(content: RecordDict, arrays: dict[str, Array]) -> RecordDict:
    return RecordDict({"arrays": ArrayRecord(arrays), "fields": content["fields"]})


def with_field(content: RecordDict, path: Path_, value: Any) -> RecordDict:
    """Return the payload with another value at ``path`` of its schema."""
    return with_schema(content, put(schema(content), path, value))


def put(tree: Any, path: Path_, value: Any) -> Any:
    """Return a copy of a JSON tree with ``value`` at ``path``; ``...`` removes the place."""
    if not path:
        return value
    changed = copy.copy(tree)
    if len(path) == 1 and value is ...:
        del changed[path[0]]
    else:
        inner = changed[path[0]] if isinstance(changed, list) else changed.get(path[0])
        changed[path[0]] = put(inner, path[1:], value)
    return changed


def places(tree: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Yield the path of every place in a JSON tree."""
    yield path
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from places(value, (*path, key))
    elif isinstance(tree, list):
        for i, value in enumerate(tree):
            yield from places(value, (*path, i))


def tensor_places(content: RecordDict) -> list[Path_]:
    """Return the paths of the tensors in the schema."""
    return [path[:-1] for path in places(schema(content)) if path and path[-1] == "~tensor"]


def changed_numbers(
    content: RecordDict, change: Callable[[Any], Any], kind: str = ""
) -> RecordDict:
    """Return the payload with ``change`` applied to its first array of a dtype ``kind…``."""
    arrays = dict(content.array_records["arrays"])
    if arrays:
        name = next(name for name in arrays if name.startswith(kind))
        numbers = arrays[name].numpy().copy()
    else:  # the method sends no number
        name, numbers = "float32", np.zeros(2, np.float32)
    arrays[name] = Array(change(numbers))
    return with_arrays(content, arrays)


def first_number(value: Any) -> Callable[[Any], Any]:
    """Return a function that replaces the first number of an array."""

    def change(numbers: Any) -> Any:
        numbers[0] = value
        return numbers

    return change


@final
class Case:
    """A malformed payload with a representation of one line."""

    def __init__(self, content: RecordDict) -> None:
        self.content = content

    def __repr__(self) -> str:
        try:
            return f"{json.dumps(schema(self.content))[:2000]} {self.content}"[:3000]
        except (ValueError, KeyError, AssertionError, zlib.error, RecursionError):
            return str(self.content)[-300:]


@st.composite
def malformed(draw: st.DrawFn, content: RecordDict) -> Case:
    """Draw a payload with one to three changes: of fields, arrays, raw bytes or records."""
    for _ in range(draw(st.integers(1, 3))):
        field, text = _other_field(content), raw.map(partial(with_schema, content))
        array, records = _other_array(content), _other_records(content)
        content = draw(st.one_of(field, field, array, text, records))
        if not isinstance(content.get("fields"), ConfigRecord):
            break
        try:
            schema(content)
        except (ValueError, KeyError, AssertionError, zlib.error, RecursionError):
            break
    return Case(content)


@st.composite
def _other_field(draw: st.DrawFn, content: RecordDict) -> RecordDict:
    tree = schema(content)
    path = draw(st.sampled_from(list(places(tree))))
    how = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
    if how == "remove" and path:
        return with_field(content, path, ...)
    if how == "add":
        homes = [p for p in places(tree) if isinstance(_at(tree, p), dict)]
        if homes:
            home = draw(st.sampled_from(homes))
            return with_field(content, (*home, draw(st.text(max_size=5))), draw(junk))
    return with_field(content, path, draw(junk))


def _at(tree: Any, path: Path_) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _is_whole(array: Array, name: str) -> bool:
    """Return whether there are several numbers behind the header, none of them cut by a change."""
    return len(array.data) > 200 and (len(array.data) - 128) % np.dtype(name).itemsize == 0


@st.composite
def _other_array(draw: st.DrawFn, content: RecordDict) -> RecordDict:
    record = content.get("arrays")
    arrays = dict(record) if isinstance(record, ArrayRecord) else {}
    if not arrays:
        return with_arrays(content, {"float32": Array(np.zeros(3, np.float32))})
    name = draw(st.sampled_from(sorted(arrays)))
    array = arrays[name]
    how = draw(st.sampled_from(["bytes", "cut", "grow", "rename", "special", "claim", "gone"]))
    if how == "gone":
        del arrays[name]
    elif how == "rename":
        arrays[draw(st.sampled_from(["float64", "int64", "bool", "uint8", "x", ""]))] = array
        del arrays[name]
    elif how == "claim":
        shape = draw(st.sampled_from([(), (2**40, 2**40), (-1,), (3,)]))
        dtype = draw(st.sampled_from(["float32", "garbage", "object", ""]))
        arrays[name] = Array(dtype, shape, "numpy.ndarray", array.data)
    elif how == "special" and name.startswith("float") and _is_whole(array, name):
        value = draw(st.sampled_from([np.nan, np.inf, -np.inf, -1.0, 3e38, 7.0]))
        values = np.frombuffer(array.data, name, offset=128).copy()
        values[draw(st.integers(0, len(values) - 1))] = value
        arrays[name] = Array(values)
    else:
        data = bytearray(array.data)
        if how == "cut":
            del data[draw(st.integers(0, len(data))) :]
        elif how == "grow":
            data += draw(st.binary(min_size=1, max_size=64))
        elif data:
            at = draw(st.integers(0, min(len(data), 200) - 1))
            data[at] = draw(st.integers(0, 255))
        arrays[name] = Array(array.dtype, array.shape, array.stype, bytes(data))
    return with_arrays(content, arrays)


@st.composite
def _other_records(draw: st.DrawFn, content: RecordDict) -> RecordDict:
    fields = dict(content.config_records["fields"])
    how = draw(st.sampled_from(["kind", "text", "swap", "more", "bytes", "none"]))
    if how == "kind":
        fields["kind"] = draw(st.one_of(st.text(max_size=30), st.integers(-1, 1), st.booleans()))
    elif how == "text":
        fields["skeleton"] = draw(st.text(max_size=10))
    elif how == "bytes":
        fields["skeleton"] = draw(st.binary(max_size=64))
    elif how == "more":
        fields[draw(st.text(min_size=1, max_size=5))] = 1
    elif how == "swap":
        return RecordDict({"fields": content["arrays"], "arrays": content["fields"]})
    else:
        return RecordDict()
    return RecordDict({"arrays": content["arrays"], "fields": ConfigRecord(fields)})


def reply(content: RecordDict, node: int = 0) -> Message:
    """Return a reply with this content, from ``node``."""
    message = Message(content, 1, "train")
    message.metadata.__dict__["_src_node_id"] = node
    return message
