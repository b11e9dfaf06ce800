"""Find the damaged files of a run's folder, with a remedy for each.

Checkpoints, cached uploads and client states contain a digest of their content, the model a digest
of its weights, and each line of the journal a digest of its text (``storage/journal.py``).
No digest covers the other files of the folder, such as settings, summary and report.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from common.errors import first_line
from common.exchange import model_file
from common.exchange.records.arrays import prove
from common.files import parse_json, parse_toml
from common.journal import Entry
from common.models import peft_folders
from deploy.report.read import beside
from deploy.settings import load_run
from server_app.storage import checkpoint
from server_app.storage.journal import read_lines


@final
@dataclass(frozen=True)
class Verdict:
    """Result for one file, or for a folder without digests.

    ``whole``: the file matches its digest; ``unproven``: no digest covers it.
    """

    path: Path
    state: Literal["whole", "unproven", "damaged"]
    detail: str

    @property
    def proven(self) -> bool:
        """Whether the file's content matches a digest."""
        return self.state == "whole"

    def __str__(self) -> str:
        return f"{self.state:9}{self.path}{f': {self.detail}' if self.detail else ''}"


def verify(folder: Path) -> list[Verdict]:
    """Return a verdict for each file in the run's ``folder`` and each client state here.

    Raises ``ValueError`` if there is no run.
    """
    folder = folder.expanduser().resolve()
    if not (folder / "journal.jsonl").exists() and not checkpoint.path_in(folder).exists():
        why = "it has no journal.jsonl and no checkpoint"
        raise ValueError(f"{folder} holds no run: {why}{beside(folder)}")
    first = [*_settings(folder), _journal(folder / "journal.jsonl"), *_checkpoints(folder)]
    verdicts = [*first, *_model(folder), *_adapters(folder), *_uploads(folder)]
    verdicts += _client_states(folder)
    return [*verdicts, *_others(folder, {verdict.path for verdict in verdicts})]


def conclusion(verdicts: Sequence[Verdict], folder: Path) -> str:
    """Return the line that says how many files are proven, and names all others."""
    folder = folder.expanduser().resolve()
    texts = [f"{sum(verdict.proven for verdict in verdicts)} files are proven by a digest"]
    for state, what in (("unproven", "not covered by any digest"), ("damaged", "damaged")):
        if paths := [verdict.path for verdict in verdicts if verdict.state == state]:
            inside = (p.relative_to(folder) if p.is_relative_to(folder) else p for p in paths)
            texts.append(f"{what}: {', '.join(map(str, inside))}")
    return "; ".join(texts)


def _settings(folder: Path) -> Iterator[Verdict]:
    last = "the summary is written again at the run's end"
    only = "write it again from the experiment file, which --resume needs"
    files = (("config.toml", parse_toml, only), ("summary.json", parse_json, last))
    for name, read, todo in files:
        path = folder / name
        try:
            read(path.read_text(encoding="utf-8"))
            yield Verdict(path, "unproven", "it can be read; no digest covers it")
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            yield Verdict(path, "damaged", f"{first_line(error)}; {todo}")


def _journal(path: Path) -> Verdict:
    folder = path.parent
    if not path.exists():
        return Verdict(path, "damaged", f"it is missing; {checkpoint.advice(folder, 0)}")
    lines = read_lines(path)
    if wrong := next((line for line in lines if line.why), None):
        if wrong.cut:
            why = "is cut short; --resume leaves it out and repeats that round"
            return Verdict(path, "damaged", f"line {wrong.number} {why}")
        done = wrong.number - 1
        todo = f"{done} lines before it are whole; {checkpoint.advice(folder, done)}"
        return Verdict(path, "damaged", f"line {wrong.number}: {wrong.why}; {todo}")
    last, saved = len(lines) - 1, _saved(folder)
    if saved and not (lines and _timeless(lines[-1].entry) == _timeless(saved)):
        todo = f"go on with --resume {folder}"
        if not last < saved.round <= len(lines):
            todo = checkpoint.advice(folder, len(lines))
        why = f"it is not the journal of the checkpoint, which is of round {saved.round}; {todo}"
        return Verdict(path, "damaged", why)
    if all(line.proven for line in lines):
        return Verdict(path, "whole", f"rounds 0 to {last}")
    return Verdict(path, "unproven", f"rounds 0 to {last}, without digests")


def _timeless(entry: Entry | None) -> dict[str, object]:
    return entry.model_dump(exclude={"seconds"}, exclude_unset=True) if entry else {}


def _saved(folder: Path) -> Entry | None:
    """Return the entry of the newest checkpoint; None if it cannot be read."""
    try:
        return Entry.read(checkpoint.load(folder).entry)
    except ValueError:
        return None


def _checkpoints(folder: Path) -> Iterator[Verdict]:
    newest = checkpoint.path_in(folder)
    for t, path in checkpoint.older(folder).items():
        yield _proven(path, f"after round {t}", "it is not needed unless the run goes back to it")
    if newest.exists():
        yield _proven(newest, "the newest", checkpoint.advice(folder))
    else:
        yield Verdict(newest, "damaged", f"it is missing; {checkpoint.advice(folder)}")


def _model(folder: Path) -> Iterator[Verdict]:
    path, summary = folder / "model.safetensors", folder / "summary.json"
    if not path.exists():
        return
    try:
        content = parse_json(summary.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        content = None
    expected = content.get("weights_sha256") if isinstance(content, dict) else None
    digest, wrong = "", ""
    try:
        _, digest = model_file.read(path)
        if digest and expected not in (None, digest):
            wrong = "it is not the model of summary.json"
    except (OSError, ValueError) as error:
        wrong = first_line(error).removeprefix(f"{path} ")
    if wrong:
        todo = f"remove {summary}: --resume {folder} writes both anew"
        yield Verdict(path, "damaged", f"{wrong}; {todo}")
    else:
        yield Verdict(path, "whole" if digest else "unproven", "" if digest else "without a digest")


def _adapters(folder: Path) -> Iterator[Verdict]:
    for path in sorted((folder / peft_folders.FOLDER).glob("*/*.safetensors")):
        again = f"remove {folder / 'summary.json'}: --resume {folder} writes it anew"
        yield _proven(path, "an adapter for peft", again, model_file.read)


def _uploads(folder: Path) -> Iterator[Verdict]:
    for path in sorted((folder / "uploads").glob("*.safetensors")):
        k, _, t = path.stem.partition("-")
        back = checkpoint.advice(folder, int(t) - 1 if t.isdecimal() else 0)
        yield _proven(path, f"the upload of client {k} in round {t}", back)


def _client_states(folder: Path) -> Iterator[Verdict]:
    """Yield a verdict for the state of each client whose folder is on this machine."""
    try:
        flat = load_run(folder)
    except (OSError, ValueError):
        flat = {}
    roots = {str(value) for key, value in flat.items() if key.endswith("state-dir") and value}
    for root in sorted(roots | {str(folder / "state")}):
        experiment = Path(root) / str(flat.get("experiment") or "*")
        for path in sorted(experiment.glob("*/*/*.safetensors")):
            k, t = path.parent.parent.name, path.parent.name
            if k.isdecimal() and t.isdecimal():
                back = checkpoint.advice(folder, int(t) - 1)
                yield _proven(path, f"the state of client {k} after round {t}", back)


def _others(folder: Path, known: Set[Path]) -> Iterator[Verdict]:
    """Yield ``unproven`` for each other file, and once for a folder without ``known`` files."""
    for path in sorted(folder.iterdir()):
        if path in known or path.name.startswith("."):
            continue
        if not path.is_dir():
            yield Verdict(path, "unproven", "no digest covers it")
        elif any(other.is_relative_to(path) for other in known):
            yield from _others(path, known)
        elif files := sum(other.is_file() for other in path.rglob("*")):
            yield Verdict(path, "unproven", f"no digest covers its {files} files")


def _proven(
    path: Path, content: str, otherwise: str, check: Callable[[Path], object] = prove
) -> Verdict:
    """Return the verdict for a file with a digest; ``otherwise``: the remedy if it is damaged."""
    try:
        check(path)
    except (OSError, ValueError) as error:
        return Verdict(path, "damaged", f"{content}: {first_line(error)}; {otherwise}")
    return Verdict(path, "whole", content)
