"""``python -m tests.bench.codec``: bytes and seconds of payloads, as messages and as files.

What the project does (``flat``) is compared with other ways. Messages: a whole file as one array.
Files: one array for each tensor through the safetensors library (``named``, as the project did at
first), the flat arrays through that library, and the flat arrays as NumPy's ``.npz``. All take
turns in one process. Seconds are processor time of one thread, the system's share included:
medians, and medians of the ratios to the first way within a turn. A file is read when all its
numbers have been touched, since it is mapped. The other readers check nothing, to their advantage.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from rich.console import Console
from rich.table import Table
from safetensors import safe_open
from safetensors.torch import load, save
from torch import Tensor

from common.methods import fedavg, fedgkt
from common.models import build
from common.protocol import Hello
from common.records import Records, count_bytes, tensors
from common.records.skeleton import DTYPES, dtype_name, dump, inflate, lift, lower, parse
from common.tree import snapshot

OUT = Path(__file__).with_name("codec.json")
TOGETHER = 5 * 10**6  #: bytes that are timed together, in at most 200 payloads
Kind = type[Records]
Way = tuple[Callable[[Records], Any], Callable[[Kind, Any], Records]]
"""How a payload is written, and how it is read."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.codec", description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="JSON file for the figures")
    parser.add_argument("--turns", type=int, default=15, help="how often each is timed (15)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"torch": torch.__version__, "turns": options.turns}
    with TemporaryDirectory(prefix="bench-") as folder:
        for what, ways in (("files", files(Path(folder) / "file")), ("messages", messages())):
            found[what] = {
                name: measured(payload, ways, options.turns) for name, payload in payloads()
            }
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    show(found, Console(width=100))


def payloads() -> Iterator[tuple[str, Records]]:
    """Each sort of payload that there is: a few words, models, features with small things."""
    yield "hello", Hello(experiment="digits", clients=10)
    same: dict[str, Any] = {"experiment": "digits", "t": 3, "k": 4, "metrics": {"loss": 1.2345678}}
    for spec in ("lenet5", "resnet18", "densenet121"):
        yield spec, fedavg.Up(**same, w=snapshot(build(spec, (3, 32, 32), 10, seed=1)))
    h, z = torch.rand(600, 16, 16, 16), torch.rand(600, 10)
    yield "features", fedgkt.Up(**same, h=h, z=z, y=torch.arange(600) % 10)


def measured(payload: Records, ways: dict[str, Way], turns: int) -> dict[str, Any]:
    """Bytes, milliseconds of writing and reading, and their ratios to the first way's."""
    names, kind = list(ways), type(payload)
    size = {name: _bytes(write(payload)) for name, (write, _) in ways.items()}
    times = max(1, min(200, TOGETHER // max(size.values())))
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for turn in range(turns + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            write, read = ways[name]
            begin = time.process_time()
            for _ in range(times):
                written = write(payload)
            between = time.process_time()
            for _ in range(times):
                again = read(kind, written)
                touch(again)
            end = time.process_time()
            if turn == 0:  # to warm up, and to see that it comes back
                assert again.pack() == payload.pack(), name
            else:
                spent[name].append(((between - begin) / times, (end - between) / times))
            del written, again
    figures = {name: np.array(spent[name]) * 1e3 for name in names}
    first = figures[names[0]]
    return {
        name: {
            "bytes": size[name],
            "ms": np.median(figures[name], axis=0).round(3).tolist(),
            "ratios": [
                round(size[name] / size[names[0]], 4),
                *np.median(figures[name] / first, axis=0).round(2).tolist(),
            ],
        }
        for name in names
    }


def touch(payload: Records) -> None:
    """Read a byte of every page that holds numbers."""
    for _, tensor in tensors(payload):
        tensor.view(-1).view(torch.uint8)[::4096].sum()


def _bytes(written: RecordDict | Path) -> int:
    return written.stat().st_size if isinstance(written, Path) else count_bytes(written)


def files(path: Path) -> dict[str, Way]:
    """Ways to write a payload into the file ``path``."""

    def into(encode: Callable[[Records], bytes], payload: Records) -> Path:
        path.write_bytes(encode(payload))
        return path

    return {
        "named": (partial(into, named), read),
        "flat": (partial(into, lambda payload: payload.to_bytes()), lambda kind, at: kind.load(at)),
        "flat, library": (partial(into, joined), read),
        "npz": (partial(into, npz), read_npz),
    }


def messages() -> dict[str, Way]:
    """Ways to pack a payload into a message."""

    def one(encode: Callable[[Records], bytes], payload: Records) -> RecordDict:
        data = encode(payload)
        return RecordDict({"": ArrayRecord({"": Array("uint8", (len(data),), "", data)})})

    def open_one(kind: Kind, content: RecordDict) -> Records:
        data = content.array_records[""][""].data
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return _built(kind, header["__metadata__"]["skeleton"], load(data))

    return {
        "flat": (lambda payload: payload.pack(), lambda kind, content: kind.unpack(content)),
        "named file": (partial(one, named), open_one),
        "flat file": (partial(one, lambda payload: payload.to_bytes()), open_one),
    }


def named(payload: Records) -> bytes:
    leaves: list[tuple[str, Tensor]] = []
    skeleton = json.dumps(lift(dict(payload), "", leaves))
    found = {path: leaf.detach().cpu().contiguous().clone() for path, leaf in leaves}
    return save(found, metadata={"kind": payload.kind, "skeleton": skeleton})


def joined(payload: Records) -> bytes:
    leaves: list[tuple[str, Tensor]] = []
    skeleton = dump(lift(dict(payload), "", leaves)).decode()
    flat: dict[str, list[Tensor]] = {}
    for _, leaf in leaves:
        flat.setdefault(dtype_name(leaf.dtype), []).append(leaf.reshape(-1))
    found = {name: torch.cat(parts) for name, parts in flat.items()}
    return save(found, metadata={"kind": payload.kind, "skeleton": skeleton})


def read(kind: Kind, path: Path) -> Records:
    """What ``named`` or ``joined`` wrote."""
    with safe_open(path, framework="pt") as file:
        found = {name: file.get_tensor(name) for name in list(file.keys())}
        return _built(kind, file.metadata()["skeleton"], found)


def npz(payload: Records) -> bytes:
    content, file = payload.pack(), io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        squeezed = content["fields"]["skeleton"]
        assert isinstance(squeezed, bytes)
        archive.writestr("skeleton", str(inflate(squeezed), "utf-8"))
        for name, array in content.array_records["arrays"].items():
            archive.writestr(f"{name}.npy", array.data)
    return file.getvalue()


def read_npz(kind: Kind, path: Path) -> Records:
    with zipfile.ZipFile(path) as archive:
        skeleton = archive.read("skeleton").decode()
        names = [name for name in archive.namelist() if name != "skeleton"]
        with np.load(path) as arrays:
            found = {name[:-4]: torch.from_numpy(arrays[name]) for name in names}
    return _built(kind, skeleton, found)


def _built(kind: Kind, text: str, found: dict[str, Tensor]) -> Records:
    """From a skeleton and the tensors by path, or flat by dtype."""
    skeleton = parse(text.encode())
    paths, pool = _paths(skeleton, ""), dict.fromkeys(DTYPES, 0)

    def leaf(dtype: str, shape: list[int]) -> Tensor:
        path = next(paths)
        if path in found:
            return found[path]
        begin = pool[dtype]
        pool[dtype] += math.prod(shape)
        return found[dtype][begin : pool[dtype]].view(shape)

    fields = lower(skeleton, leaf)
    assert isinstance(fields, dict)
    return kind(**fields)


def _paths(value: Any, path: str) -> Iterator[str]:
    """Where the skeleton has tensors."""
    if isinstance(value, dict):
        if "~tensor" in value:
            yield path
        else:
            for key, inner in value.items():
                yield from _paths(inner, f"{path}.{key}".lstrip("."))


def show(found: dict[str, Any], console: Console) -> None:
    for what in ("files", "messages"):
        table = Table("payload", what, "bytes", "write ms", "read ms", "bytes", "write", "read")
        for payload, ways in found[what].items():
            for name, of in ways.items():
                times, ratios = (f"{ms:.3f}" for ms in of["ms"]), of["ratios"]
                shown = [f"{ratios[0]:.4f}", *(f"{ratio:.2f}" for ratio in ratios[1:])]
                table.add_row(payload, name, f"{of['bytes']:,}", *times, *shown)
        console.print(table)


if __name__ == "__main__":
    main()
