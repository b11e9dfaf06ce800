"""Write a run's files: its settings, checkpoints, journal, and its summary, also if it fails."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, final

from common.errors import report
from common.exchange import model_file
from common.exchange.records import Records, StateDict
from common.files import write_atomically
from common.journal import Entry, Undone
from common.metrics import Confusion
from common.models import peft_folders
from common.models.card import FILE as CARD
from common.models.card import Card
from common.models.classifier import Classifier
from common.parse import to_toml
from common.settings.config import Config
from common.settings.section import Value
from server_app.aggregation.privacy import NoisySums, spent
from server_app.release import RELEASED, released_logs, stop_line
from server_app.stopped import Stopped
from server_app.storage import checkpoint, summary
from server_app.storage.journal import Journal, clock
from server_app.storage.relative_paths import to_relative
from server_app.tracking.sink import Sink

BEST = "best.safetensors"  #: model after the best round, with ``score.keep-best``
log = logging.getLogger("flwr.fedmosaic")


@final
class Record:
    """The files in a run's folder, and the trackers that follow its journal.

    ``settings``: the run config as the user wrote it.
    """

    def __init__(self, config: Config, sink: Sink, settings: Mapping[str, Value]) -> None:
        self.config, self.sink, self.settings = config, sink, settings
        self.folder = Path(config.run.out)
        self.journal = Journal(self.folder)
        self.after_census = False  #: whether the census is complete, so that updates may follow
        self.clients = 0  #: size of the roster, known after the census

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Context of a run: start and end the trackers, and write a summary if the run fails.

        Raises ``Stopped`` with one line for every error. Under differential privacy all lines after
        the census are listed ones (``server_app/release.py``), without traceback.
        """
        private = self.config.privacy.on
        with self.sink, released_logs() if private else nullcontext():
            try:
                yield
            except Exception as error:
                folder, private = self.folder, private and self.after_census
                line = stop_line(error) if private else report(error, folder)
                if isinstance(error, OSError):
                    line = f"{error.filename or folder} cannot be used: {error.strerror or line}"
                if "--resume" not in line and checkpoint.path_in(folder).exists():
                    line += f"; the checkpoint is kept, go on with --resume {folder}"
                with suppress(OSError, ValueError):  # a full disk: raise the line without it
                    self.add_summary(None, error=line)
                raise Stopped(line) from (None if private else error)

    def add_settings(self, experiment: str, clients: int) -> None:
        """Write ``config.toml``: the user's run config with the values known after the census."""
        settings = {**to_relative(self.settings, self.folder), "experiment": experiment}
        settings |= {"clients": clients, "resume": False, "from-round": -1}
        write_atomically(self.folder / "config.toml", to_toml(settings).encode())
        self.after_census, self.clients = True, clients

    def add(
        self, entry: Entry, state: Callable[[], Records], undone: Sequence[Undone], **more: Any
    ) -> None:
        """Write the checkpoint after a round, then the journal's line.

        ``state``: returns the method's state; ``more``: further fields of the checkpoint.
        """
        with clock(entry, "checkpoint") if entry.seconds else nullcontext():
            checkpoint.write(self.config, entry, state(), undone, **more)
        self.journal.append(entry)
        if entry.round:
            results = entry.round, self.config.run.rounds, _log_text(entry)
            log.info("round %d/%d: %s", *results, extra=RELEASED)  # the entry is withheld already

    def add_confusion(self, entry: Entry, counts: Confusion) -> None:
        """Write ``confusion.json``: the confusion of the primary score in the round of ``entry``.

        The file has the newest one alone, because a line of the journal for each round would be too
        long with many classes.
        """
        content = {"round": entry.round, "score": entry.primary, "counts": list(counts)}
        write_atomically(self.folder / "confusion.json", json.dumps(content).encode() + b"\n")

    def add_predictions(self, predictions: Mapping[str, object] | None) -> None:
        """Write ``predictions.json``: of labels and numbers, on a draw of the server's samples."""
        if predictions is not None:
            content = json.dumps(predictions).encode() + b"\n"
            write_atomically(self.folder / "predictions.json", content)

    def add_best(self, weights: StateDict, t: int) -> None:
        """Write ``best.safetensors``, the model of round t (``score.keep-best``)."""
        model_file.write(self.folder / BEST, weights, {"round": str(t)})

    @property
    def best(self) -> int:
        """Round of the model in ``best.safetensors``; 0: there is none."""
        return model_file.round_of(self.folder / BEST)

    def add_adapters(self, networks: Mapping[str, Classifier], main: str) -> None:
        """Write the adapters of the method's ``networks`` for peft, if it can load them."""
        peft_folders.write(self.folder, networks, main)

    def add_summary(
        self, weights: StateDict | None, error: str = "", card: Card | None = None
    ) -> None:
        """Write ``summary.json``, the weights if there are any, and the ``card`` of the models.

        Its ε also counts a round that was not kept, because its loss was shown.
        """
        entries, config = self.journal.entries(), self.config
        if config.privacy.on and self.after_census and entries:
            sums = NoisySums.by_round(self.folder)
            if max(sums, default=0) > entries[-1].round:
                last = spent(config, self.clients, entries[-1].round, sums)
                entries[-1] = entries[-1].model_copy(update={"privacy": last})
        if card is not None:
            card.write(self.folder / CARD)
        summary.write(self.folder, config, entries, weights, error)


def _log_text(entry: Entry) -> str:
    """Return a round's results for Flower's log (``flwr run --stream``)."""
    score, name = entry.primary_score, entry.measure.title
    name = f"personal {name}" if entry.primary == "personal" else name
    texts = ["not scored" if score is None else f"{name} {score:.4f}"]
    texts += [f"{len(entry.failures)} failures"] if entry.failures else []
    texts += entry.notes
    texts += [f"the run ends: {entry.end}"] if entry.end else []
    return ", ".join(texts)
