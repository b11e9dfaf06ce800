"""The models of a run, to be used: on raw samples, and as files for other programs.

The server's model, or the one with which a client predicts: its own, or the global one completed
by its own parts. The folder of a run has both; on real machines a node has its client's state.
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import client_app.methods
from client_app.participant import Participant
from client_app.store import RUN
from common import models, seeds
from common.data import arrays
from common.data.batches import standardise
from common.data.dataset import fitted
from common.data.external import check_padding
from common.data.kinds import describe, zeros
from common.data.tokens import Tokenizer, continued, encoded, tokenizer_with
from common.data.tokens import samples as token_samples
from common.exchange import model_file
from common.exchange.protocol import ScoreRequest
from common.extras import check_installed
from common.files import parse_json
from common.models.adapters import without_adapters
from common.models.batchnorm import norms
from common.models.card import Card
from common.models.hugging_face import Base, write_folder
from common.models.peft_folders import write_one
from common.parse import defaults, parse
from common.settings.section import Value
from common.techniques.completion import completed
from deploy.run.loopback import Loopback
from deploy.study.finished import CHECKPOINT, MODEL, begin, finished
from server_app.messaging.channel import PlainChannel
from server_app.messaging.messenger import Messenger
from server_app.scoring.recalibrate import ScoredModels
from server_app.scoring.score import score_requests
from server_app.storage.run_record import BEST

SUFFIXES = {
    **{"safetensors": ".safetensors", "merged": ".safetensors", "peft": ""},
    **{"torch-export": ".pt2", "onnx": ".onnx"},
}
"""Suffix of the files of each format; ``peft`` is a folder, and so can ``merged`` be."""
BATCH = 256  #: samples of a pass
HOTTEST = 100.0  #: temperature of a continued text


@final
class Raw(nn.Module):
    """Network of raw samples, which it normalises as in training: bytes as bytes, rows as rows."""

    def __init__(self, net: nn.Module, card: Card) -> None:
        super().__init__()
        self.net = net
        self._normalise = partial(standardise, mean=card.mean, std=card.std, how=card.standardize)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [n, C] of raw samples [n, ...] of the card's shape."""
        logits: Tensor = self.net(self._normalise(x))
        return logits


@final
@dataclass(frozen=True)
class Predictor:
    """A model in evaluation mode on the CPU, with its card."""

    net: nn.Module
    card: Card
    tokenizer: Tokenizer | None = None  #: of a model of texts

    @classmethod
    def of_run(cls, folder: Path, client: int | None, *, best: bool = False) -> Self:
        """Return the server's model after a run, or the one with which a client predicts.

        ``best``: the server's model after its best round (``score.keep-best``).

        Raises ``ValueError``, one line, for a run without that model.
        """
        if client is not None and best:
            raise ValueError("best is for the server's model; a client keeps its newest rounds")
        if client is not None:
            return cls.of_client(folder, client)
        file = BEST if best else MODEL
        if best and not (folder / BEST).exists():
            raise ValueError(f"{folder} has no {BEST}: the run had no score.keep-best = true")
        try:
            run = finished(folder, file)
            task = run.task(run.dataset())
            net = run.server_model(task, file=file)
        except ValueError as error:
            if not (folder / "config.toml").exists():
                raise
            raise ValueError(f"{error}; for a client's model: client=K, or --client K") from error
        if run.config.score.bn == "batch":
            _check_alone(
                net, "batch", "a prediction would depend on the other samples of its batch"
            )
        return cls(
            net, card := task.card(net.spec), tokenizer_with(card.tokenizer, run.config.data)
        )

    @classmethod
    def of_client(cls, folder: Path, k: int) -> Self:
        """Return the model with which client k of a run on this machine predicts.

        Raises ``ValueError``, one line, without such a client or its state.
        """
        run = finished(folder, CHECKPOINT)
        if not 0 <= k < run.config.run.clients:
            last = run.config.run.clients - 1
            raise ValueError(f"client = {k} is not allowed; it should be 0 to {last}")
        messenger = Messenger(PlainChannel(run.config, run.saved.experiment))
        task, flat = run.task(run.dataset()), {**run.flat, "device": "cpu"}
        with Loopback(run.config.run.clients, flat, workers=0) as grid:
            method, clients = begin(run, grid, messenger, task)
        mine = [client for client in clients if client.k == k]  # also one beyond score.clients
        ((_, request),) = score_requests(ScoredModels(method), mine, confusion=False)
        node: dict[str, Value] = {
            "partition-id": k,
            "device": "cpu",
            "state-dir": str(run.flat["state-dir"]),
        }
        participant = Participant(run.config, node, run.saved.experiment)
        if any(run.saved.kept.values()) and not participant.newest:
            why = "its state was deleted" if run.saved.kept.get(k) else "it has never trained"
            raise ValueError(f"client {k} has no state in {participant.folder}: {why}")
        return cls._of(participant, run.saved.t, request)

    @classmethod
    def at_node(cls, folder: Path, weights: Path | None = None) -> Self:
        """Return the model of the client whose state is in ``folder``, on the client's machine.

        ``weights``: the server's model.safetensors, for methods whose clients complete it.

        Raises ``ValueError``, one line, for a folder without a client's state.
        """
        try:
            content = parse_json((folder / RUN).read_bytes())
            settings, node = content["settings"], content["node"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{folder} has no state of a client with its {RUN}: {error}") from None
        node = {**node, "state-dir": str(folder.parent.parent), "device": "cpu"}
        flat = {**defaults(str(settings.get("method", ""))), **settings}
        participant = Participant(parse(flat), node, folder.parent.name)
        w, prefix = None if weights is None else model_file.load(weights), f"{participant.spec}/"
        if w and all("/" in name for name in w):  # a file of several networks, by architecture
            w = {name.removeprefix(prefix): w[name] for name in w if name.startswith(prefix)}
        return cls._of(participant, participant.newest, ScoreRequest(w=w))

    @classmethod
    def _of(cls, participant: Participant, t: int, request: ScoreRequest) -> Self:
        """Return the model of a client after round t."""
        handler = client_app.methods.make(participant)
        stamped = request.model_copy(update={"t": t})
        net = copy.deepcopy(handler.final_model(stamped)).eval()
        if (bn := participant.config.score.bn) != "running":
            _check_alone(net, bn, "the client's network has no running statistics for its scores")
        card = participant.task.card(getattr(net, "spec", "") or handler.spec)
        return cls(net, card, tokenizer_with(card.tokenizer, participant.config.data))

    def samples(self, x: object) -> Tensor:
        """Return raw samples as a tensor [n, ...] of the card's shape.

        ``x``: images of bytes (n, H, W, C), (n, C, H, W) or (n, H, W), which are resized, or Pillow
        images; signals (n, C, T); rows of a table (n, F), or a data frame with the columns of the
        training; n texts in a list, an array or a column, or their tokens (n, T or fewer). One
        sample without the first axis is not allowed.

        Raises ``ValueError``, one line, for samples that differ from those of the training.
        """
        card, columns = self.card, getattr(x, "columns", None)
        if columns is not None and card.columns:
            if missing := [name for name in card.columns if name not in columns]:
                there = ", ".join(map(str, columns))
                raise ValueError(f"column {missing[0]!r} is missing; there are: {there}")
            x = x[list(card.columns)].to_numpy()  # type: ignore[index]
        if card.vocab and (texts := _texts_in(x)):
            return self._encoded(texts)
        if isinstance(x, Sequence) and x and hasattr(x[0], "convert"):
            mode = "L" if card.shape[0] == 1 else "RGB"
            size = (card.shape[2], card.shape[1])
            x = np.stack([np.asarray(one.convert(mode).resize(size)) for one in x])
        values = x.numpy(force=True) if isinstance(x, Tensor) else x
        if card.vocab:
            return _tokens(np.asarray(values), card)
        read = torch.from_numpy(arrays.samples(values, card.kind).copy())
        if card.bytes and read.dtype != torch.uint8:
            raise ValueError(
                f"x has {str(read.dtype)[6:]} numbers; the model takes bytes, 0 to 255, as in "
                "training, and normalises them itself"
            )
        if tuple(read.shape[1:]) == card.shape:
            return read
        if card.bytes:
            return fitted(read, card.shape, "x")
        wanted = describe(card.shape)
        raise ValueError(f"x has {describe(tuple(read.shape[1:]))}; the model takes {wanted}")

    def _encoded(self, texts: Sequence[object]) -> Tensor:
        """Return texts as tokens int32 [n, T], cut as in training."""
        if self.tokenizer is None:
            raise ValueError(f"the run's settings have no tokenizer {self.card.tokenizer}")
        ids = [encoded(self.tokenizer, text, f"text {i}") for i, text in enumerate(texts)]
        return torch.from_numpy(token_samples(ids, self.card.shape[0], next_token=False).x)

    def complete(self, text: str, tokens: int, temperature: float, seed: int) -> str:
        """Return ``text`` and ``tokens`` more tokens from a model of next tokens; see ``Run``."""
        if not self.card.goal.every:
            raise ValueError(f"the run learnt {self.card.objective}, not next-token")
        if self.tokenizer is None:
            raise ValueError(f"the run's settings have no tokenizer {self.card.tokenizer}")
        if tokens < 1 or not 0 <= temperature <= HOTTEST:
            raise ValueError(
                f"tokens = {tokens}, temperature = {temperature:g} is not allowed; tokens are 1 or "
                f"more, and the temperature is 0 to {HOTTEST:g}"
            )
        prompt = encoded(self.tokenizer, text, "the text").tolist()
        draw = seeds.stream(seed, "complete")
        (found,) = completed(self.net, [prompt], self.card.shape[0], tokens, draw, temperature)
        return text + continued(self.tokenizer, prompt, found)

    @torch.no_grad()
    def logits(self, x: object) -> Tensor:
        """Return the logits [n, C] of raw samples, for which see ``samples``."""
        raw = Raw(self.net, self.card)
        return torch.cat([raw(batch) for batch in self.samples(x).split(BATCH)])

    def export(self, path: Path, to: str) -> list[Path]:
        """Write the model and, beside it, its card as JSON; return both paths.

        ``to``: a format of ``SUFFIXES``.
        ``safetensors`` has weights for normalised samples, of adapters without their base.
        ``merged`` has those of the base with what its adapters learnt, above a Hugging Face folder
        as another such folder, and ``peft`` the adapter above it. The others have the network too,
        for raw samples (n, ...) of the card's shape: a program of ``torch.export``, and an ONNX
        graph.

        Raises ``ValueError``, one line, if the network cannot be exported or a package is missing.
        """
        path, file = path.with_suffix(SUFFIXES[to]), path.with_suffix(".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        card = self.card
        if to == "safetensors":
            model_file.write(path, dict(self.net.state_dict()))
        elif to == "peft":
            write_one(path, self.net)
        elif to == "merged":
            entries = without_adapters(self.net)
            if isinstance(self.net, Base):
                path = path.with_suffix("")
                write_folder(path, self.net, entries)
            else:
                model_file.write(path, entries)
            card = replace(card, architecture=models.frozen(card.architecture))
        else:
            self._export(path, to)
        card.write(file)
        return [path, file]

    def _export(self, path: Path, to: str) -> None:
        if to == "onnx":
            check_installed("onnx")
            check_installed("onnxscript")
        raw, x = Raw(self.net, self.card).eval(), zeros(2, self.card.shape)
        x = x.to(torch.uint8) if self.card.bytes else x
        batch: Any = {"x": {0: torch.export.Dim("n")}}
        try:
            program = torch.export.export(raw, (x,), dynamic_shapes=batch)
            if to == "onnx":
                torch.onnx.export(program, (x,), path, dynamo=True, external_data=False)
            else:
                torch.export.save(program, path)
        except Exception as error:  # of torch's exporters, which have no common class
            line = str(error).strip().partition("\n")[0]
            raise ValueError(f"{self.card.architecture} cannot be exported: {line}") from error


def _texts_in(x: object) -> list[object]:
    """Return the values of a list, an array or a column with a text; empty if there is none.

    Raises ``ValueError``, one line, for a single text.
    """
    if isinstance(x, str):
        raise ValueError(f"x is the text {x[:40]!r}; it should be a list of texts")
    x = x.ravel().tolist() if isinstance(x, np.ndarray) else x
    values = [*x] if isinstance(x, Iterable) and not isinstance(x, Tensor) else []
    return values if any(isinstance(value, str) for value in values) else []


def _tokens(ids: np.ndarray, card: Card) -> Tensor:
    """Return tokens [n, T], padded on the right. Raises ``ValueError``, one line, for others."""
    most = card.shape[0]
    fits = ids.dtype.kind in "iu" and ids.ndim == 2 and 0 < ids.shape[1] <= most and len(ids)
    if not fits or not 0 <= ids.min() <= ids.max() < card.vocab:
        raise ValueError(
            f"x should be a list of texts, or (n, {most}) integers from 0 (padding) to "
            f"{card.vocab - 1}: tokens of the tokenizer {card.tokenizer}"
        )
    check_padding("x", ids)
    return F.pad(torch.from_numpy(ids.astype(np.int32)), (0, most - ids.shape[1]))


def _check_alone(net: nn.Module, bn: str, why: str) -> None:
    """Raise ``ValueError`` for a network whose scores had other statistics than its own."""
    if norms(net):
        raise ValueError(f'score.bn = "{bn}": {why}; it should be "running"')
