"""Which files of a run's folder are as they were written, and what can be done without the others.

Checkpoints, cached uploads and clients' memories carry a digest of what they hold, the model one of
its weights, and the journal's lines one another's (``common/chain.py``).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from common import chain, model_file
from common.chain import Line
from common.errors import first_line
from common.journal import Entry
from common.records.file import prove
from deploy.run.settings import load_run
from server_app.keep import checkpoint


@final
@dataclass(frozen=True)
class Verdict:
    """``unproven``: a file that can be read and carries no digest."""

    path: Path
    state: Literal["whole", "unproven", "damaged"]
    told: str

    def __str__(self) -> str:
        return f"{self.state:9}{self.path}{f': {self.told}' if self.told else ''}"


def verify(folder: Path) -> list[Verdict]:
    """One verdict for each file of the run in ``folder``, and of its clients' memories on this
    machine.

    Raises ``ValueError`` if there is none.
    """
    folder = folder.expanduser().resolve()
    if not (folder / "journal.jsonl").exists() and not checkpoint.path_in(folder).exists():
        raise ValueError(f"{folder} holds no run: it has no journal.jsonl and no checkpoint")
    found = [*_settings(folder), *_journal(folder), *_checkpoints(folder)]
    found += [*_model(folder), *_uploads(folder), *_memories(folder)]
    return found


def _settings(folder: Path) -> Iterator[Verdict]:
    for name, read in (("config.toml", tomllib.loads), ("summary.json", json.loads)):
        path = folder / name
        if not path.exists():
            continue
        try:
            read(path.read_text(encoding="utf-8"))
            yield Verdict(path, "unproven", "it can be read")
        except (OSError, ValueError) as error:
            last = "the summary is written again at the run's end"
            only = "write it again from the experiment file, which --resume needs"
            todo = last if name == "summary.json" else only
            yield Verdict(path, "damaged", f"{first_line(error)}; {todo}")


def _journal(folder: Path) -> Iterator[Verdict]:
    path = folder / "journal.jsonl"
    if not path.exists():
        yield Verdict(path, "damaged", f"it is missing; {checkpoint.advice(folder, 0)}")
        return
    lines = chain.read(path)
    for line in lines:
        if line.state == "damaged":
            done = _whole(lines)
            todo = f"{done} lines before it are whole; {checkpoint.advice(folder, done)}"
            yield Verdict(path, "damaged", f"line {line.number}: {line.why}; {todo}")
            return
    if lines and lines[-1].state == "cut":
        todo = "--resume leaves it out and repeats that round"
        yield Verdict(path, "damaged", f"line {lines[-1].number} is cut short; {todo}")
        return
    last, saved = len(lines) - 1, _saved(folder)
    if saved is not None and not _same(lines, saved):
        told = f"it is not the journal of the checkpoint, which is of round {saved.round}"
        todo = f"go on with --resume {folder}" if last < saved.round <= len(lines) else ""
        todo = todo or checkpoint.advice(folder, _whole(lines))
        yield Verdict(path, "damaged", f"{told}; {todo}")
    elif any(line.state == "unproven" for line in lines):
        yield Verdict(path, "unproven", f"rounds 0 to {last}, without digests")
    else:
        yield Verdict(path, "whole", f"rounds 0 to {last}")


def _whole(lines: list[Line]) -> int:
    """How many lines before the first that is damaged."""
    return next((i for i, line in enumerate(lines) if line.why), len(lines))


def _same(lines: list[Line], saved: Entry) -> bool:
    """Whether the journal ends with the checkpoint's round and says the same of it."""
    last = lines[-1].entry if lines else None
    return last is not None and _timeless(last) == _timeless(saved)


def _timeless(entry: Entry) -> dict[str, object]:
    return entry.model_dump(exclude={"seconds"}, exclude_unset=True)


def _saved(folder: Path) -> Entry | None:
    """The newest checkpoint's entry, if it can be read."""
    try:
        return Entry.read(checkpoint.load(folder).entry)
    except ValueError:
        return None


def _checkpoints(folder: Path) -> Iterator[Verdict]:
    newest, past = checkpoint.path_in(folder), checkpoint.older(folder)
    for t, path in past.items():
        yield _proven(path, f"after round {t}", "it is not needed unless the run goes back to it")
    if newest.exists():
        yield _proven(newest, "the newest", checkpoint.advice(folder))
    else:
        yield Verdict(newest, "damaged", f"it is missing; {checkpoint.advice(folder)}")


def _model(folder: Path) -> Iterator[Verdict]:
    path = folder / "model.safetensors"
    if not path.exists():
        return
    again = f"remove {folder / 'summary.json'}: --resume {folder} writes both anew"
    try:
        _, said = model_file.read(path)
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        expected = summary.get("weights_sha256") if isinstance(summary, dict) else None
    except OSError:
        expected = None
    except ValueError as error:
        about = str(error).removeprefix(f"{path} ") if str(path) in str(error) else ""
        if about:
            yield Verdict(path, "damaged", f"{about}; {again}")
            return
        expected = None
    if expected is not None and said and expected != said:
        yield Verdict(path, "damaged", f"it is not the model of summary.json; {again}")
    else:
        yield Verdict(path, "whole" if said else "unproven", "" if said else "without a digest")


def _uploads(folder: Path) -> Iterator[Verdict]:
    for path in sorted((folder / "uploads").glob("*.safetensors")):
        k, _, t = path.stem.partition("-")
        back = checkpoint.advice(folder, int(t) - 1 if t.isdecimal() else 0)
        yield _proven(path, f"the upload of client {k} in round {t}", back)


def _memories(folder: Path) -> Iterator[Verdict]:
    """Of the clients whose folders are on this machine."""
    try:
        flat = load_run(folder)
    except (OSError, ValueError):
        flat = {}
    said = {str(value) for key, value in flat.items() if key.endswith("state-dir") and value}
    for root in sorted(said | {str(folder / "state")}):
        for path in sorted(
            (Path(root) / str(flat.get("experiment", "*"))).glob("*/*/*.safetensors")
        ):
            k, t = path.parent.parent.name, path.parent.name
            if k.isdecimal() and t.isdecimal():
                back = checkpoint.advice(folder, int(t) - 1)
                yield _proven(path, f"what client {k} kept of round {t}", back)


def _proven(path: Path, what: str, otherwise: str) -> Verdict:
    try:
        prove(path)
    except (OSError, ValueError) as error:
        return Verdict(path, "damaged", f"{what}: {first_line(error)}; {otherwise}")
    return Verdict(path, "whole", what)
