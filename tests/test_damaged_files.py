"""Damaged files for every reader: each reads what is left, or refuses in one line.

A reader is given whole files, one of which is changed: cut, with flipped bits, NUL bytes, other
encodings and deep nesting; and, where the format has a structure, with values of wrong types, huge
numbers, missing keys and names that occur twice. Digests and archives are made anew around such a
change, so that the reader behind them gets it. All changes follow from the reader's name and a
number, so that a failure repeats. ``make hostile`` tries many, the normal tier a few of each.
"""

import copy
import gzip
import hashlib
import io
import json
import re
import shutil
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, final

import numpy as np
import pytest
import tomli_w
import torch
from safetensors.torch import save_file

from client_app.bases.own_model import ClientState
from client_app.seal import ClientSession
from client_app.store import Ledger
from common.data import DATASETS
from common.data.rda import read_frame
from common.data.unpickle import read_npy
from common.exchange.records import arrays
from common.exchange.seal import files as seal_files
from common.exchange.seal.session import Keys, Offer
from common.models import weights
from common.parse import parse, to_toml
from common.settings.config import Data
from deploy import api
from deploy.flower import bundle
from deploy.flower.certificates import make, read_public_key
from deploy.flower.owner import pinned, policy
from deploy.leaderboard import protocol, ranking
from deploy.leaderboard.board import Board
from deploy.report import metrics, pages, status
from deploy.report import read as reading
from deploy.run import preflight, verify
from deploy.settings import resolve
from deploy.study import paper_table, records, sweep
from server_app.aggregation import privacy
from server_app.messaging.schedule import Schedule
from server_app.messaging.sealed import Trust
from server_app.storage import checkpoint, removals
from server_app.storage import summary as summaries
from tests.support import board, folders
from tests.support.data_files import LABEL, paint, rda, reals, write_clients, write_idx
from tests.support.tiny import Run, flat

HUGE: list[Any] = [10**400, -(2**63) - 1, 2**31, 1e308, float("nan"), float("-inf"), 0, -1, 1.5]
JUNK: list[Any] = [*HUGE, True, None, "", "\0", "x" * 5000, "../../../etc/passwd", "nan", "1"]
JUNK += ["é\u202e\x1b[2J\n", [], {}, [[]], [None], {"": 1}, [{}], ["a", 1], "2020-01-01"]
OURS = ("common", "server_app", "client_app", "deploy")
DEEP = [b"[" * 100_000, b'{"a":' * 5000 + b"1" + b"}" * 5000, b"[[" * 400 + b"]]" * 400]
BYTES = [b"\0", b"\0" * 999, b"\xff", b"\xed\xa0\x80"]
Damage = Callable[[bytes, Random], bytes]


def raw(content: bytes, draw: Random) -> bytes:
    """Return the content with some of its bytes changed."""
    at = draw.randrange(len(content) + 1)
    end = min(len(content), at + draw.choice([1, 4, 50]))
    lines = content.splitlines(keepends=True) or [b""]
    line = draw.randrange(len(lines))
    flipped = bytearray(content)
    for _ in range(draw.randint(1, 8) if content else 0):
        flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    number = draw.choice([b"9" * 5000, b"-1", b"1e999", b"nan", b"0x10", b"1_0", b"\xd9\xa3", b""])
    return draw.choice(
        [
            lambda: content[:at],
            lambda: bytes(flipped),
            lambda: content[:at] + content[end:],
            lambda: (
                content[:at]
                + draw.choice([b"\0", b"\0" * 999, b"\xff", b"\xed\xa0\x80"])
                + content[at:]
            ),
            lambda: content[:at] + draw.choice(DEEP) + content[end:],
            lambda: b"".join([*lines[:line], lines[line], *lines[line:]]),
            lambda: b"".join([*lines[:line], *lines[line + 1 :]]),
            lambda: content.decode("latin-1").encode(draw.choice(["utf-16", "utf-8-sig", "utf-8"])),
            lambda: re.sub(rb"\d+", number, content, count=draw.randint(1, 5)),
        ]
    )()


def places(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a tree of lists and dictionaries."""
    inner = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, value in inner:
        yield (*at, key)
        yield from places(value, (*at, key))


def changed(tree: Any, draw: Random) -> Any:
    """Return a tree in which some values are of another type, size or name, or are missing."""
    tree = copy.deepcopy(tree)
    for _ in range(draw.choice([1, 1, 1, 3])):
        found = [*places(tree)]
        if not found or draw.random() < 0.03:
            return draw.choice(JUNK)
        *outer, last = draw.choice(found)
        parent = tree
        for key in outer:
            parent = parent[key]
        other = draw.choice(found)[-1]
        match draw.randrange(6):
            case 0:
                del parent[last]
            case 1 if isinstance(parent, dict):
                parent[str(other)] = parent.pop(last)
            case 2:
                parent[last] = [parent[last]]
            case 3 if isinstance(parent, list):
                parent.append(parent[last])
            case _:
                parent[last] = copy.deepcopy(draw.choice(JUNK))
    return tree


def structured(read: Callable[[bytes], Any], write: Callable[[Any], bytes]) -> Damage:
    """Return a function that changes content as a tree, or some of its bytes."""

    def damage(content: bytes, draw: Random) -> bytes:
        if draw.random() < 0.7:
            with suppress(TypeError, ValueError, AttributeError):  # TOML has no null
                return write(changed(read(content), draw))
        return raw(content, draw)

    return damage


def dumped(tree: Any) -> bytes:
    return json.dumps(tree).encode()


as_json = structured(json.loads, dumped)
as_toml = structured(
    lambda content: tomllib.loads(content.decode()), lambda tree: tomli_w.dumps(tree).encode()
)


def as_lines(content: bytes, draw: Random) -> bytes:
    """Change one line of a file of JSON objects; its digest is left out."""
    lines = re.sub(rb', "digest": "\w+"', b"", content).splitlines()
    at = draw.randrange(len(lines))
    lines[at] = as_json(lines[at], draw)
    return b"\n".join(lines) + b"\n"


def as_zip(content: bytes, draw: Random) -> bytes:
    """Change one file of an archive, or the archive."""
    if draw.random() < 0.4:
        return raw(content, draw)
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(packed, "w") as new:
        names = old.namelist()
        hit = draw.choice(names)
        for name in names:
            inner = old.read(name)
            new.writestr(name, raw(inner, draw) if name == hit else inner)
    return packed.getvalue()


def as_gzip(content: bytes, draw: Random) -> bytes:
    return (
        raw(content, draw)
        if draw.random() < 0.3
        else gzip.compress(raw(gzip.decompress(content), draw))
    )


def as_records(content: bytes, draw: Random) -> bytes:
    """Change the schema of a file of ours, with a new digest; or its header, or its bytes."""
    start = 8 + int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8:start]), content[start:]
    match draw.randrange(3):
        case 0:
            return raw(content, draw)
        case 1:
            header = changed(header, draw)
        case _:
            about = header["__metadata__"]
            about["skeleton"] = dumped(changed(json.loads(about["skeleton"]), draw)).decode()
            spans = {name: one["data_offsets"] for name, one in header.items() if one is not about}
            sizes = {name: end - begin for name, (begin, end) in spans.items()}
            about["sha256"] = arrays.digest(about["kind"], about["skeleton"], sizes, [body])
    text = dumped(header)
    return len(text).to_bytes(8, "little") + text + body


@final
@dataclass(frozen=True)
class Reader:
    """``write`` makes whole files in a folder, and returns those to damage; ``read`` reads them.

    ``run``: whether the folder is first filled with a finished run.
    """

    write: Callable[[Path], Iterable[Path]]
    read: Callable[[Path], object]
    damage: Damage = raw
    run: bool = False


def one(
    name: str, content: str | bytes, read: Callable[[Path], object], damage: Damage = raw
) -> Reader:
    """Return a reader of the file ``name`` with this content; ``read`` gets its path."""

    def write(folder: Path) -> list[Path]:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return [folder / name]

    return Reader(write, lambda folder: read(folder / name), damage)


def in_run(pattern: str, read: Callable[[Path], object], damage: Damage) -> Reader:
    """Return a reader of the files of a finished run whose names match."""
    return Reader(lambda folder: sorted(folder.rglob(pattern)), read, damage, run=True)


def of_data(
    name: str, write: Callable[[Path], object], damage: Damage = raw, **more: Any
) -> Reader:
    """Return a reader of the data set in a folder, of which every file may be damaged."""

    def written(folder: Path) -> list[Path]:
        write(folder)
        return sorted(path for path in folder.rglob("*") if path.is_file())

    def read(folder: Path) -> object:
        return DATASETS[name].load(Data(name=name, dir=str(folder), partition="iid", **more))

    return Reader(written, read, damage)


def csv_files(folder: Path) -> None:
    rows = "".join(f"{i},{i / 2},{'abc'[i // 10]},p{i // 15}\n" for i in range(30))
    for name in ("train", "test"):
        (folder / f"{name}.csv").write_text("x,y,label,who\n" + rows)
    (folder / "classes.txt").write_text("a\nb\nc\n")


def leaf_files(folder: Path) -> None:
    for part in ("train", "test"):
        user = {"x": [[0.1 * i] * 4 for i in range(3)], "y": [0, 1, 2]}
        (folder / part).mkdir()
        whole = {"users": ["a"], "num_samples": [3], "user_data": {"a": user}}
        (folder / part / "a.json").write_bytes(dumped(whole))


def npz_files(folder: Path) -> None:
    write_clients(folder, 2)
    (folder / "config.json").write_text('{"num_clients": 2, "num_classes": 3}')


def hub_files(folder: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    kinds = {"x": datasets.Value("float32"), "y": datasets.ClassLabel(names=["a", "b"])}
    part = datasets.Dataset.from_dict(
        {"x": [0.5, 1.0, 2.0, 3.0], "y": [0, 1, 0, 1]}, datasets.Features(kinds)
    )
    datasets.DatasetDict(train=part, test=part).save_to_disk(str(folder))


def hub_damage(content: bytes, draw: Random) -> bytes:
    return as_json(content, draw) if content.startswith(b"{") else raw(content, draw)


def npz_damage(content: bytes, draw: Random) -> bytes:
    return as_zip(content, draw) if content.startswith(b"PK") else as_json(content, draw)


def npy() -> bytes:
    packed = io.BytesIO()
    np.save(packed, np.array({"x": np.zeros((3, 4)), "z": [np.float32(1), "a"]}, dtype=object))
    return packed.getvalue()


def key_files(folder: Path) -> list[Path]:
    return [path for path in make(folder / "certs", [], 2).folder.rglob("*") if path.is_file()]


def read_keys(folder: Path) -> None:
    certs = folder / "certs"
    Trust(certs)
    seal_files.ssh_public_key(certs / "clients" / "0.pub")
    seal_files.ssh_key(certs / "clients" / "0.key")
    read_public_key(certs / "clients" / "1.pub")
    make(certs, [], 2)


def session_file(folder: Path) -> list[Path]:
    ClientSession(1, "c", b"s" * 32, Keys(b"t" * 32, b"k" * 32, 3)).write(folder / "session.json")
    return [folder / "session.json"]


def ledger_file(folder: Path) -> list[Path]:
    body = b'{"rounds":2,"plain":{},"noisy":{}}'
    (folder / "ledger").write_bytes(
        body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"
    )
    return [folder / "ledger"]


def bundle_files() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("common/a.py", "pyproject.toml"):
            file.writestr(name, "x = 1\n" * 50)
    return packed.getvalue()


def torch_file(folder: Path) -> list[Path]:
    torch.save({"head.weight": torch.ones(3)}, folder / "w.pt")
    save_file({"head.weight": torch.ones(3)}, folder / "w.safetensors")
    return [folder / "w.pt", folder / "w.safetensors"]


def base_files(folder: Path) -> list[Path]:
    folders.folder(folder, "BertModel")
    return [folder / "config.json", folder / "model.safetensors"]


def board_files(folder: Path) -> list[Path]:
    board.chosen(folder).save()
    (folder / "unfinished.json").write_text('{"0123456789abcdef": "diverged"}')
    added = [{"name": "Mine", "fleets": ["one"], "sends": "nothing", "set": {"method": "local"}}]
    (folder / "added.json").write_bytes(dumped({"board": "points", "version": 7, "rows": added}))
    return [folder / name for name in ("chosen.json", "added.json", "unfinished.json")]


def read_board(folder: Path) -> object:
    return [*ranking.sections(Board(folder, protocol.Protocol.model_validate(board.SMALL)))]


def cell_file(folder: Path) -> list[Path]:
    board.chosen(folder)
    return [folder / records.NAME]


def seen(folder: Path) -> object:
    """Read a run's folder in every way in which it is shown."""
    run = reading.read(folder)
    status.table(status.of(run))
    status.line(status.of(run))
    [*metrics.of_run(run)]
    records.Recorded.of(flat(folder), folder)
    return pages.one(run), api.Run(folder).summary


def resumed(folder: Path) -> None:
    flat_, _ = preflight.resumed(folder, "loopback", given={"rounds": 9})
    config = parse(flat_, every=True)
    summaries.complete(folder, config)
    checkpoint.read(folder, config)


MEMBERS = """
[[event]]
round = 2
client = 1
kind = "left"
[[event]]
round = 3
client = 1
kind = "returned"
"""
POLICY = """
methods = ["fedavg"]
data-dirs = ["here"]
max-rounds = 20
max-epochs = 3
server-keys = ["SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"]
[privacy]
mode = "local"
noise-multiplier = 1.0
max-epsilon = 8.0
"""
SWEEP = """
title = "Rates"
seeds = [1, 2]
search = "random"
configurations = 2
[base]
method = "fedavg"
clients = 2
[base.data]
name = "toy"
validation = 0.25
[space]
train.lr = [0.1, 0.2]
train.momentum = { low = 0.1, high = 0.9 }
"""
OFFER = Offer("e", "s", 1, "c", "a", "h", "x").to_bytes()
READERS = {
    "experiment": one(
        "e.toml",
        to_toml(flat(Path("/x"))),
        lambda path: parse(resolve(path, []), every=True),
        as_toml,
    ),
    "table": one(
        "t.toml", board.TABLE, lambda path: [*paper_table.cells(paper_table.read(path))], as_toml
    ),
    "sweep": one("s.toml", SWEEP, sweep.read, as_toml),
    "policy": one("p.toml", POLICY, policy.read, as_toml),
    "membership": one("m.toml", MEMBERS, lambda path: Schedule(path, 3), as_toml),
    "replay": in_run(
        "journal.jsonl", lambda folder: Schedule(folder / "journal.jsonl", 4), as_lines
    ),
    "app": one(
        "pyproject.toml",
        "[tool.flwr.app.config]\na = 1\n[tool.flwr.app]\n",
        lambda path: bundle.check_app(path.parent, {"a": 1}),
        as_toml,
    ),
    "bundle": one("a.fab", bundle_files(), lambda path: pinned.digest(path.read_bytes()), as_zip),
    "keys": Reader(key_files, read_keys),
    "revoked": one("revoked", f"SHA256:{'A' * 43}\n# none\n", seal_files.read_revoked),
    "session": Reader(
        session_file, lambda folder: ClientSession.read(folder / "session.json"), as_json
    ),
    "offer": one("offer", OFFER, lambda path: Offer.from_bytes(path.read_bytes()), as_json),
    "ledger": Reader(ledger_file, lambda folder: Ledger(folder, 3).check("e", 0, 1.0)),
    "settings": in_run("config.toml", resumed, as_toml),
    "checkpoint": in_run("checkpoint.safetensors", resumed, as_records),
    "client state": in_run(
        "*Memory.safetensors",
        lambda folder: [ClientState.load(path) for path in folder.rglob("*Memory.safetensors")],
        as_records,
    ),
    "shown journal": in_run("journal.jsonl", seen, as_lines),
    "shown settings": in_run("config.toml", seen, as_toml),
    "shown results": in_run("s*.json", seen, as_json),
    "shown confusion": in_run("confusion.json", seen, as_json),
    "verified": in_run("[cjs]*.*", verify.verify, raw),
    "model": in_run(
        "model.safetensors", lambda folder: weights.read(folder / "model.safetensors"), raw
    ),
    "weights": Reader(torch_file, lambda folder: [weights.read(path) for path in folder.iterdir()]),
    "base": Reader(base_files, lambda path: folders.of(str(path), shape=folders.WHOLE)),
    "removals": one("removed.txt", "1\n2\n", lambda path: removals.read(path.parent)),
    "sums": one("sums", "1 0123456789abcdef0123456789abcdef\n", lambda path: privacy._lines(path)),
    "cells": Reader(cell_file, read_board, as_lines),
    "board": Reader(board_files, read_board, as_json),
    "images": of_data("folder", lambda folder: paint(folder, 1, a=2, b=2)),
    "idx": of_data(
        "mnist",
        lambda folder: write_idx(folder / "MNIST" / "raw", "train", "t10k", np.arange(20) % 10),
    ),
    "idx.gz": of_data(
        "mnist",
        lambda folder: write_idx(
            folder / "MNIST" / "raw", "train", "t10k", np.arange(20) % 10, packed=True
        ),
        as_gzip,
    ),
    "npz": of_data("npz", npz_files, npz_damage),
    "npy": one("x.npy", npy(), read_npy),
    "rda": Reader(
        lambda folder: [rda(folder / "a.rda", "Frame", label=LABEL, x=reals([0.5, -1.0, 2.0]))],
        lambda folder: read_frame(folder / "a.rda", "Frame"),
        as_gzip,
    ),
    "leaf": of_data("leaf", leaf_files, as_json, kind="table"),
    "csv": of_data("csv", csv_files, owner_column="who"),
    "windows": of_data("csv", csv_files, window=2, owner_column="who"),
    "hub": of_data("hub", hub_files, hub_damage),
}


def refused(error: Exception) -> bool:
    """Return whether an error is a refusal of ours: one line that a reader wrote itself."""
    line, own = str(error), type(error).__module__.split(".")[0] in OURS
    return (own or type(error) is ValueError) and bool(line.strip()) and "\n" not in line


@pytest.mark.parametrize("count", [6, pytest.param(1500, marks=pytest.mark.hostile)])
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused_in_a_line(
    name: str, count: int, tmp_path: Path, played: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    reader, folder = READERS[name], tmp_path / "files"
    if reader.run:
        run = played(method="fedorion", clients=2, score__clients_every=1, keep=1)
        shutil.copytree(run.folder, folder)
    else:
        folder.mkdir()
    paths = sorted(reader.write(folder))
    reader.read(folder)  # whole, it is read
    for number in range((count // 40 or 2) if reader.read is seen else count):
        draw = Random(f"{name} {number}")
        path = draw.choice(paths)
        whole = path.read_bytes()
        path.write_bytes(reader.damage(whole, draw))
        try:
            reader.read(folder)
        except Exception as error:
            assert refused(error), f"change {number} of {path.name}: {error!r}"
        path.write_bytes(whole)
