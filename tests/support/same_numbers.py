"""Check that a change of the code changed no number.

    python -m tests.support.same_numbers record CHECKOUT OUT.json [--only NAME] [--jobs 1]
    python -m tests.support.same_numbers compare BEFORE.json AFTER.json [--only NAME]

``record`` runs every case of ``same_numbers.toml`` with the command line of a checkout, each in its
own process. It writes the results of the run as one flat table from paths to values: the SHA-256 of
the final weights, the journal and the summary without times, and a digest of every tensor in the
model's file, in the files of the server and the clients, and in every reply. An interrupted
recording continues with the missing cases. NAME may have wildcards.

``compare`` prints one line for each case and ends with status 1 if there is a difference. The
tables below list intended changes. In them ``*`` is one segment of a path; the rest of a path after
the pattern stays.
"""

import argparse
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

MOVED: dict[str, str] = {}
"""Newer path by older path, as in ``{"journal/*/bytes/up": "journal/*/traffic/up"}``."""
ADDED: list[str] = [
    *("journal/*/personal", "journal/*/primary", "journal/*/by_class"),
    *("summary/primary", "summary/personal", "upload/*/evaluate"),
    *("journal/*/failures/*/kind", "summary/failures/*/kind"),
]
"""Paths that only the newer recording has."""
DROPPED: list[str] = ["upload//query.hello/*/2"]
"""Paths that only the older recording has."""
ROUGH = [
    *("journal/*/bytes/down", "journal/*/bytes/up", "journal/*/cost/bytes", "summary/bytes/down"),
    *("summary/bytes/up", "summary/cost/bytes", "summary/cost/bytes_per_number"),
]
"""Older paths of message sizes, which may differ by the share ``MORE`` and by ``FIELD`` bytes."""
MORE = 0.01
FIELD = 16 * 4 * 4  #: bytes of one more field in each reply: four clients, four rounds
TIMES = {"seconds", "measured", "seconds_by_phase", "versions", "follows", "digest", "version"}
"""Keys, at any depth, whose values may differ between equal runs."""
NOT_COMPARED = re.compile(r"(entry|config|undone|experiment|nodes|kept|t)\b|.*\.kept$")
"""Fields of a payload or a checkpoint that are not compared: rounds, texts and paths."""

TYPES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4}
TYPES |= {"int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1}
"""Bytes of one number by dtype."""
EVERY_RUN = ["device=cpu", "experiment=same-numbers"]
LIE = 3e38  #: numbers that client 1 sends in a case with a malicious reply

Flat = dict[str, Any]
Case = dict[str, Any]


def cases() -> dict[str, Case]:
    """Return every case by name: its overrides (``run``) and its special settings."""
    file = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    methods = file["methods"]

    from common.parse import reads

    def tiny(text: str) -> list[str]:
        method, *own = text.split()
        shared = [one for one in file["tiny"].split() if reads(method, one.partition("=")[0])]
        return [*shared, f"method={method}", *methods[method].split(), *own]

    small = {f"tiny-{name}": {"run": tiny(name)} for name in methods}
    switches = {name: {"run": tiny(text)} for name, text in file["switches"].items()}
    special = {name: {**case, "run": tiny(case["run"])} for name, case in file["special"].items()}
    names = file["default"].split()
    full = {f"default-{n}": {"run": [f"method={n}", *methods[n].split()]} for n in names}
    return {**small, **switches, **special, **full}


def moved(path: str) -> str:
    """Return ``path`` as the newer recording names it."""
    for old, new in MOVED.items():
        pattern = re.escape(old).replace(r"\*", "([^/]+)")
        if match := re.match(f"{pattern}(?=/|$)", path):
            stars = iter(match.groups())
            return re.sub(r"\*", lambda _: next(stars), new) + path[match.end() :]  # noqa: B023
    return path


def listed(path: str, patterns: list[str]) -> bool:
    """Return whether ``path`` begins with one of the patterns."""
    patterns = [re.escape(pattern).replace(r"\*", "[^/]+") for pattern in patterns]
    return any(re.match(f"{pattern}(?=/|$)", path) for pattern in patterns)


def flatten(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield every leaf inside ``value`` with its path; an empty list or object is a leaf."""
    inner = dict(enumerate(value)) if isinstance(value, list) else value
    if not isinstance(inner, dict) or not inner:
        yield prefix, value
        return
    for key, each in inner.items():
        if key not in TIMES:
            yield from flatten(each, f"{prefix}/{key}" if prefix else str(key))


def leaves(skeleton: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of every leaf of a payload's skeleton, in the tensors' order."""
    if isinstance(skeleton, dict) and "~tensor" in skeleton:
        yield path, tuple(skeleton["~tensor"])
        return
    if isinstance(skeleton, dict) and "~int" in skeleton:
        skeleton = skeleton["~int"]
    inner = dict(enumerate(skeleton)) if isinstance(skeleton, list) else skeleton
    if not isinstance(inner, dict):
        yield path, inner
        return
    for key, each in inner.items():
        yield from leaves(each, f"{path}.{key}".lstrip("."))


def payload(skeleton: Any, arrays: dict[str, bytes]) -> Flat:
    """Return digests of the tensors and the other values of a payload, by name."""
    values: Flat = {}
    at: Counter[str] = Counter()
    for path, leaf in leaves(skeleton):
        if isinstance(leaf, tuple):
            dtype, *shape = leaf
            size = math.prod(shape) * TYPES[dtype]
            data = arrays.get(dtype, b"")[at[dtype] : at[dtype] + size]
            at[dtype] += size
            values[path] = f"{dtype}{shape} {hashlib.sha256(data).hexdigest()[:24]}"
        elif not NOT_COMPARED.match(path) and path not in TIMES:
            values[path] = leaf
    return values


def contents(path: Path) -> Flat:
    """Return the same for a safetensors file, with or without a schema."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    skeleton = header.pop("__metadata__", {}).get("skeleton")
    pieces = {}
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        pieces[name] = data[start + begin : start + end]
    if skeleton is not None:
        return payload(json.loads(skeleton), pieces)
    kinds = {name: f"{header[name]['dtype']}{header[name]['shape']}" for name in pieces}
    hashes = {name: hashlib.sha256(piece).hexdigest()[:24] for name, piece in pieces.items()}
    return {name: f"{kinds[name]} {hashes[name]}" for name in pieces}


def named(prefix: str, root: Path, paths: list[Path]) -> Flat:
    """Return the contents of files, by their paths below ``root``."""
    found = {path.relative_to(root).as_posix(): contents(path) for path in sorted(paths)}
    return {f"{prefix}/{path}/{n}": v for path, part in found.items() for n, v in part.items()}


def kept_by_clients(state: Path) -> Flat:
    """Return each client's newest state; the folders' numbers are client and round."""
    rounds: dict[int, dict[int, list[Path]]] = {}
    for path in sorted(state.rglob("*.safetensors")):
        k, t = (int(part) for part in path.relative_to(state).parts if part.isdigit())
        rounds.setdefault(k, {}).setdefault(t, []).append(path)
    newest = [files[max(files)] for _, files in sorted(rounds.items())]
    return {n: value for some in newest for n, value in named("client", state, some).items()}


def left(out: Path, state: Path) -> Flat:
    """Return all results of a finished run as one flat table."""
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    journal = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    files = [path for path in out.rglob("*.safetensors") if state not in path.parents]
    uploads = out.parent / "uploads.jsonl"
    lines = uploads.read_text().splitlines() if uploads.exists() else []
    return {
        **dict(flatten(journal, "journal")),
        **dict(flatten(summary, "summary")),
        **named("server", out, files),
        **kept_by_clients(state),
        **{f"upload/{key}": value for line in lines for key, value in json.loads(line).items()},
    }


def inside(uploads: Path, lie: int, arguments: list[str]) -> None:
    """Run the command line of the checkout, and record the replies of clients in this process.

    In round ``lie`` client 1 replies to training with enormous numbers. ``os.urandom(32)``, from
    which a private run draws its noise, returns constant bytes.
    """
    import numpy as np
    from flwr.app import Array, ArrayRecord
    from flwr.clientapp import ClientApp

    honest, real, seen = ClientApp.__call__, os.urandom, Counter[str]()

    def call(self: ClientApp, message: Any, context: Any) -> Any:
        reply = honest(self, message, context)
        about, k = message.metadata, context.node_config.get("partition-id")
        if not reply.has_content():
            return reply
        if lie and k == 1 and about.group_id == str(lie) and about.message_type == "train":
            arrays = dict(reply.content["arrays"])
            numbers = np.full_like(arrays["float32"].numpy(), LIE)
            reply.content["arrays"] = ArrayRecord({**arrays, "float32": Array(numbers)})
        place = f"{about.group_id}/{about.message_type}/{k}"
        seen[place] += 1
        fields = reply.content.config_records.get("fields", {})
        skeleton = json.loads(zlib.decompress(fields["skeleton"])) if "skeleton" in fields else {}
        sent = reply.content.array_records.get("arrays", {})
        raw = {name: array.numpy().tobytes() for name, array in sent.items()}
        values = payload(skeleton, raw)
        with open(uploads, "a", encoding="utf-8") as file:
            line = {f"{place}/{seen[place]}/{name}": value for name, value in values.items()}
            print(json.dumps(line), file=file)
        return reply

    ClientApp.__call__ = call  # type: ignore[method-assign]
    os.urandom = lambda n: bytes(range(n)) if n == 32 else real(n)  # type: ignore[assignment]
    from deploy.cli import main

    sys.argv[1:] = arguments
    main()


def commands(case: Case, folder: Path) -> Iterator[list[str]]:
    """Yield the command lines of a case, one after the other."""
    out, way = folder / "out", case.get("runtime", "loopback")
    settings = [*EVERY_RUN, *case["run"], f"out={out}", f"state-dir={folder / 'state'}"]
    words = [word for text in settings for word in ("-s", text)]
    if way == "sealed":
        yield ["local", "default", "--work", str(folder / "local"), *words]
        return
    where = ["--runtime", way, *(["--workers", "0"] if way == "loopback" else [])]
    if "resume" not in case:
        yield ["run", "default", *where, *words]
        return
    yield ["run", "default", *where, *words, "-s", f"rounds={case['resume']}"]
    last = [text for text in settings if text.startswith("rounds=")][-1]
    yield ["run", "--resume", str(out), *where, "-s", last]


def play(checkout: Path, case: Case) -> Flat:
    """Run one case in a checkout; return its record, or the error."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = {key: value for key, value in os.environ.items() if key != "FEDMOSAIC_STATE_DIR"}
        env |= {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "FLWR_HOME": name}
        env |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        began = [sys.executable, "-P", __file__, "inside", str(folder / "uploads.jsonl")]
        began.append(str(case.get("lie", 0)))
        started = time.monotonic()
        for arguments in commands(case, folder):
            line = [*began, *arguments]
            run = subprocess.run(line, cwd=checkout, env=env, capture_output=True, text=True)
            if run.returncode:
                break
        result = {"case": case, "took": round(time.monotonic() - started, 1)}
        if run.returncode:
            return result | {"error": run.stderr.strip().replace(name, "")[-2000:]}
        try:
            return result | {"left": left(folder / "out", folder / "state")}
        except (OSError, ValueError, KeyError) as error:
            return result | {"error": f"{type(error).__name__}: {error}".replace(name, "")}


def record(checkout: Path, to: Path, only: str, jobs: int) -> int:
    """Record the cases that ``to`` lacks; return 1 if one of them failed."""
    done: dict[str, Flat] = json.loads(to.read_text()) if to.exists() else {}
    todo = {
        name: case
        for name, case in cases().items()
        if fnmatch(name, only) and ("left" not in done.get(name, {}) or done[name]["case"] != case)
    }
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(play, checkout, todo[name]): name for name in todo}
        for future in as_completed(futures):
            name = futures[future]
            done[name] = future.result()
            why = done[name].get("error", "")[-300:]
            print(f"{done[name]['took']:7.1f} s  {name}", why, flush=True)
            part = to.with_name(f"{to.name}.part")
            part.write_text(json.dumps(done, indent=0) + "\n", encoding="utf-8")
            part.replace(to)
    failed = [name for name in todo if "error" in done[name]]
    print(f"{len(todo)} cases run, {len(done)} recorded, failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def equal(path: str, before: Any, after: Any) -> bool:
    """Return whether two values at a path are equal, or close enough for a path of ``ROUGH``."""
    if listed(path, ROUGH) and None not in (before, after):
        few = FIELD if isinstance(before, int) else 0
        return bool(abs(after - before) <= MORE * abs(before) + few)
    return json.dumps(before) == json.dumps(after)  # so that nan is nan and 1 is not 1.0


def differences(before: Flat, after: Flat) -> Iterator[str]:
    """Yield a line for each path whose value changed."""
    seen = set()
    before, after = (
        {path: value for path, value in side.items() if not NOT_COMPARED.match(path.split("/")[-1])}
        for side in (before, after)
    )
    for path, value in before.items():
        new = path if path in after else moved(path)
        seen.add(new)
        if new not in after:
            if not listed(path, DROPPED):
                yield f"{path}: {value!r} before, nothing after"
        elif not equal(path, value, after[new]):
            yield f"{path}: {value!r} before, {after[new]!r} after"
    for path, value in after.items():
        if path not in seen and not listed(path, ADDED):
            yield f"{path}: nothing before, {value!r} after"


def compare(before: Path, after: Path, only: str) -> int:
    """Print a line for each case; return 1 if one differs or no case was compared."""
    old, new = json.loads(before.read_text()), json.loads(after.read_text())
    names = [name for name in old | new if fnmatch(name, only)]
    changed = 0
    for name in names:
        one, two = old.get(name, {}), new.get(name, {})
        if "left" not in one or "left" not in two:
            lines = ["not recorded " + ("before" if "left" not in one else "after")]
        elif one["case"] != two["case"]:
            lines = ["recorded with other overrides"]
        else:
            lines = list(differences(one["left"], two["left"]))
        more = f" (and {len(lines) - 1} more)" if lines[1:] else ""
        print(f"DIFFERS  {name}: {lines[0]}{more}" if lines else f"same     {name}")
        changed += bool(lines)
    print(f"{len(names)} cases, {changed} differ")
    return 1 if changed or not names else 0


def main() -> int:
    if sys.argv[1:2] == ["inside"]:
        uploads, lie, *arguments = sys.argv[2:]
        inside(Path(uploads), int(lie), arguments)
        return 0
    about = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="same_numbers", description=about)
    which = parser.add_subparsers(dest="command", required=True)
    for name, places in (("record", ("checkout", "out")), ("compare", ("before", "after"))):
        command = which.add_parser(name)
        for place in places:
            command.add_argument(place, type=Path)
        command.add_argument("--only", default="*")
        if name == "record":
            command.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    if given.command == "record":
        return record(given.checkout.resolve(), given.out, given.only, given.jobs)
    return compare(given.before, given.after, given.only)


if __name__ == "__main__":
    sys.exit(main())
