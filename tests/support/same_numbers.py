"""The proof that a change of the code has changed no number.

    python -m tests.support.same_numbers record CHECKOUT OUT.json [--only NAME] [--jobs 1]
    python -m tests.support.same_numbers compare BEFORE.json AFTER.json [--only NAME]

``record`` runs every case of ``same_numbers.toml`` by the command line of a checkout, in a process
of its own, and writes what each left as one flat table from paths to values: the weights' SHA-256,
the journal and the summary without times, and how often each tensor occurs in the model's file,
among what the server keeps, and in the newest round of what each client keeps. A tensor is named
there by its type, shape and bytes: not by its name, nor by its file's. A recording that was cut off
goes on with the cases that it lacks. NAME may have wildcards.

``compare`` prints a line for each case, and ends with 1 if there is a difference.

What a change has moved on purpose is told to both by the tables below, which go from the older name
to the newer. ``*`` is one segment of a path or a knob, and what follows the pattern follows along.
Cases are written in the older names for good: they belong to the older recording.
"""

from __future__ import annotations

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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

KNOBS: dict[str, str] = {
    **dict.fromkeys(("dl-sh.server-epochs", "dl-mh.server-epochs"), "ensemble.epochs"),
    "i-dl-mh.server-epochs": "ensemble.epochs",
    "*.weights": "average.weights",
    "*.bn-buffers": "average.bn-buffers",
    "*.robust": "average.robust",
    "*.trim": "average.trim",
    "*.clip-norm": "average.clip-norm",
    "*.across": "average.across",
    "*.oca-init": "oca.init",
    "*.slots-in-memory": "oca.in-memory",
    "*.noise": "noise.kind",
    "*.kd-temperature": "noise.temperature",
    "*.kd-teacher-bn": "noise.teacher-bn",
    "*.protect-running-stats": "noise.protect-running-stats",
    "*.eval-bn": "score.bn",
    "*.server-epochs": "noise.epochs",
    "*.noise-batches": "noise.batches",
    "*.noise-batch-size": "noise.batch-size",
    "*.server-lr": "noise.lr",
    "*.server-momentum": "noise.momentum",
    "*.max-ensemble-norm": "noise.max-norm",
    "*.generator-lr": "generator.lr",
    "*.latent": "generator.latent",
    "*.generator-width": "generator.width",
    "*.lambda-oh": "generator.lambda-oh",
    "*.lambda-a": "generator.lambda-a",
    "*.g-adv": "generator.adversarial",
    "*.ie-norm": "generator.ie-norm",
    "*.act-reduction": "generator.act-reduction",
    "*.update-order": "generator.update-order",
    "*.confidence": "confidence.kind",
    "*.conf-t": "confidence.temperature",
    "*.conf-space": "confidence.space",
    "*.conf-init": "confidence.init",
    "*.embed-epochs": "confidence.epochs",
    "*.embed-balance": "confidence.balance",
    "*.aggregation": "ensemble.aggregation",
    "*.uhc-steps": "ensemble.uhc-steps",
    "*.uhc-lr": "ensemble.uhc-lr",
}
"""Older knob: newer knob. Used where a checkout's pyproject does not know the older one."""
SETTINGS: dict[str, str] = {
    "fedavg.inactive=true": "oca.aggregate=on",
    "fedprox.inactive=true": "oca.aggregate=on",
}
"""Older ``knob=value``: newer ones, any number with blanks between; asked before ``KNOBS``."""
MOVED: dict[str, str] = {
    "journal/0/clients": "journal/0/clients",
    "journal/*/clients": "journal/*/client_metrics",
    "journal/*/fairness/amp": "journal/*/fairness/main/amp",
    "journal/*/fairness/fm": "journal/*/fairness/main/fm",
    "journal/*/fairness/wlp": "journal/*/fairness/main/wlp",
    "journal/*/fairness/*": "journal/*/fairness/models/*",
}
"""Older path: newer path, as in ``{"journal/*/bytes/up": "journal/*/traffic/up"}``."""
ADDED: list[str] = ["journal/*/version"]
"""Paths that only the newer recording has."""
DROPPED: list[str] = []
"""Paths that only the older recording has."""
ROUGH = [
    "journal/*/bytes/down",
    "journal/*/bytes/up",
    "journal/*/cost/bytes",
    "summary/bytes/down",
    "summary/bytes/up",
    "summary/cost/bytes",
    "summary/cost/bytes_per_number",
]
"""Older paths of whole messages' bytes, names and all, which may differ by the share ``MORE``."""
MORE = 0.01
TIMES = {"seconds", "seconds_by_phase", "versions", "follows", "digest"}
"""Keys, at any depth, of what may differ between equal runs."""

COMMAND = [sys.executable, "-c", "from deploy.cli import main; main()", "run", "default"]
EVERY_RUN = ["device=cpu", "experiment=same-numbers"]
TYPES = {
    "float64": ("F64", 8),
    "float32": ("F32", 4),
    "float16": ("F16", 2),
    "int64": ("I64", 8),
    "int32": ("I32", 4),
    "uint8": ("U8", 1),
}
"""Types as skeletons have them, as safetensors files do, and their bytes."""
TORCH = {"F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "U8": "uint8"}

Flat = dict[str, Any]


def cases() -> dict[str, list[str]]:
    """Every case and its overrides, in the older knobs."""
    told = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    tiny, methods = told["tiny"].split(), told["methods"]
    found = {f"tiny-{m}": [*tiny, f"method={m}", *own.split()] for m, own in methods.items()}
    for name, text in told["switches"].items():
        method, *own = text.split()
        found[name] = [*tiny, f"method={method}", *methods[method].split(), *own]
    return found | {f"default-{m}": [f"method={m}", *own.split()] for m, own in methods.items()}


def moved(path: str, table: dict[str, str], sep: str) -> str:
    """``path`` by the first pattern of ``table`` that it begins with, or as it is."""
    for old, new in table.items():
        pattern = re.escape(old).replace(r"\*", f"([^{sep}]+)")
        if match := re.match(f"{pattern}(?={re.escape(sep)}|$)", path):
            stars = iter(match.groups())
            return re.sub(r"\*", lambda _: next(stars), new) + path[match.end() :]  # noqa: B023
    return path


def listed(path: str, patterns: list[str]) -> bool:
    return any(moved(path, {pattern: "!"}, "/").startswith("!") for pattern in patterns)


def flatten(value: Any, prefix: str, sep: str = "/") -> Iterator[tuple[str, Any]]:
    """Every leaf inside ``value`` with its path; what is empty is a leaf."""
    inner = dict(enumerate(value)) if isinstance(value, list) else value
    if not isinstance(inner, dict) or not inner:
        yield prefix, value
        return
    for key, each in inner.items():
        if key not in TIMES:
            yield from flatten(each, f"{prefix}{sep}{key}" if prefix else str(key), sep)


def translated(overrides: list[str], checkout: Path) -> list[str]:
    """The overrides in the knobs that the checkout has."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    known = {key for key, _ in flatten(project["tool"]["flwr"]["app"]["config"], "", ".")}
    said: list[str] = []
    for text in overrides:
        key, _, value = text.partition("=")
        if key in known:
            said.append(text)
        elif text in SETTINGS:
            said += SETTINGS[text].split()
        else:
            said.append(f"{moved(key, KNOBS, '.')}={value}")
    return said


def tensors(path: Path) -> Iterator[tuple[str, str, list[int], bytes]]:
    """Name, type, shape and bytes of every tensor in a safetensors file.

    In a file whose arrays are named by their types, the skeleton among its metadata tells where
    each tensor ends; these have no names here.
    """
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    skeleton = json.loads(header.pop("__metadata__", {}).get("skeleton", "null"))
    flat = skeleton is not None and header.keys() <= TYPES.keys()
    at = {name: start + tensor["data_offsets"][0] for name, tensor in header.items()}
    for dtype, *shape in claims(skeleton) if flat else ():
        size = math.prod(shape) * TYPES[dtype][1]
        begin = at.get(dtype, 0)
        at[dtype] = begin + size
        yield "", TYPES[dtype][0], shape, data[begin : begin + size]
    for name, tensor in header.items() if not flat else ():
        begin, end = tensor["data_offsets"]
        yield name, tensor["dtype"], tensor["shape"], data[start + begin : start + end]


def claims(skeleton: Any) -> Iterator[list[Any]]:
    """Type and shape of every tensor in a skeleton, in its order."""
    inner = list(skeleton.values()) if isinstance(skeleton, dict) else skeleton
    if isinstance(skeleton, dict) and "~tensor" in skeleton:
        yield skeleton["~tensor"]
    elif isinstance(inner, list):
        for each in inner:
            yield from claims(each)


def counted(prefix: str, paths: list[Path]) -> Flat:
    """How often each tensor occurs in all these files together."""
    found: Flat = {}
    for path in paths:
        for _, dtype, shape, data in tensors(path):
            name = f"{prefix}/{dtype}{shape} {hashlib.sha256(data).hexdigest()[:24]}"
            found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items()))


def weights_digest(path: Path) -> str:
    """What the summary has as ``weights_sha256``, from the file itself."""
    sha = hashlib.sha256()
    for name, dtype, shape, data in sorted(tensors(path)):
        sha.update(f"{name} torch.{TORCH[dtype]} {tuple(shape)}".encode() + data)
    return sha.hexdigest()


def kept_by_clients(state: Path) -> Flat:
    """The tensors of each client's newest round; the folders' numbers are client and round."""
    rounds: dict[int, dict[int, list[Path]]] = {}
    for path in sorted(state.rglob("*.safetensors")):
        k, t = (int(part) for part in path.relative_to(state).parts if part.isdigit())
        rounds.setdefault(k, {}).setdefault(t, []).append(path)
    found: Flat = {}
    for k, files in sorted(rounds.items()):
        found |= counted(f"client/{k}", files[max(files)])
    return found


def left(out: Path, state: Path) -> Flat:
    """Everything that a finished run left, flat."""
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    journal = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    model = [path for path in (out / "model.safetensors",) if path.exists()]
    server = [path for path in sorted(out.rglob("*.safetensors")) if path not in model]
    if [weights_digest(path) for path in model] not in ([summary["weights_sha256"]], []):
        raise ValueError("weights_sha256 of the summary is not that of model.safetensors")
    return {
        "weights": summary.pop("weights_sha256"),
        **dict(flatten(journal, "journal")),
        **dict(flatten(summary, "summary")),
        **counted("model", model),
        **counted("server", server),
        **kept_by_clients(state),
    }


def play(checkout: Path, overrides: list[str]) -> Flat:
    """One run of the checkout; its record, or the error."""
    with tempfile.TemporaryDirectory() as folder:
        out, state = Path(folder, "out"), Path(folder, "state")
        places = [f"out={out}", f"state-dir={state}"]
        said = translated([*EVERY_RUN, *overrides, *places], checkout)
        settings = [word for text in said for word in ("-s", text)]
        env = {key: value for key, value in os.environ.items() if key != "FEDMOSAIC_STATE_DIR"}
        env |= {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "FLWR_HOME": folder}
        env |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        command = [*COMMAND, "--runtime", "loopback", "--workers", "0", *settings]
        started = time.monotonic()
        run = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True)
        told = {"overrides": overrides, "took": round(time.monotonic() - started, 1)}
        if run.returncode:
            return told | {"error": run.stderr.strip().replace(folder, "")[-2000:]}
        try:
            return told | {"left": left(out, state)}
        except (OSError, ValueError, KeyError) as error:
            return told | {"error": f"{type(error).__name__}: {error}".replace(folder, "")}


def record(checkout: Path, to: Path, only: str, jobs: int) -> int:
    done: dict[str, Flat] = json.loads(to.read_text()) if to.exists() else {}
    todo = {
        name: overrides
        for name, overrides in cases().items()
        if fnmatch(name, only)
        and ("left" not in done.get(name, {}) or done[name]["overrides"] != overrides)
    }
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(play, checkout, todo[name]): name for name in todo}
        for future in as_completed(futures):
            name = futures[future]
            done[name] = future.result()
            print(
                f"{done[name]['took']:7.1f} s  {name}",
                done[name].get("error", "")[-300:],
                flush=True,
            )
            part = to.with_name(f"{to.name}.part")
            part.write_text(json.dumps(done, indent=0) + "\n", encoding="utf-8")
            part.replace(to)
    failed = [name for name in todo if "error" in done[name]]
    print(f"{len(todo)} cases run, {len(done)} recorded, failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def equal(path: str, before: Any, after: Any) -> bool:
    if listed(path, ROUGH) and None not in (before, after):
        return bool(abs(after - before) <= MORE * abs(before))
    return json.dumps(before) == json.dumps(after)  # so that nan is nan and 1 is not 1.0


def differences(before: Flat, after: Flat) -> Iterator[str]:
    """A line for each path whose value is not what it was."""
    seen = set()
    for path, value in before.items():
        new = moved(path, MOVED, "/")
        new = path if new not in after and path in after else new
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
    old, new = json.loads(before.read_text()), json.loads(after.read_text())
    names = [name for name in old | new if fnmatch(name, only)]
    changed = 0
    for name in names:
        one, two = old.get(name, {}), new.get(name, {})
        if "left" not in one or "left" not in two:
            found = ["not recorded " + ("before" if "left" not in one else "after")]
        elif one["overrides"] != two["overrides"]:
            found = ["recorded with other overrides"]
        else:
            found = list(differences(one["left"], two["left"]))
        more = f" (and {len(found) - 1} more)" if found[1:] else ""
        print(f"DIFFERS  {name}: {found[0]}{more}" if found else f"same     {name}")
        changed += bool(found)
    print(f"{len(names)} cases, {changed} differ")
    return 1 if changed or not names else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="same_numbers", description=(__doc__ or "").split("\n")[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, places in (("record", ("checkout", "out")), ("compare", ("before", "after"))):
        command = commands.add_parser(name)
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
