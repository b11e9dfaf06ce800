"""Texts in files: from encoded texts with classes and owners to the samples of a data set.

A reader gives each text as its tokens, with the class (or labels or numbers) and the owner. Without
test texts a fifth is held out, always the same: of the texts of each owner and class; for next
tokens, of each owner's texts, or the end of each text if the owner has fewer than ``FEW``. The
reader of ``text-folder`` is here.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from common.data import decoded
from common.data.account import Account
from common.data.dataset import Dataset, fields_of, holdout, of_files, strata
from common.data.layout import PARTS
from common.data.tokens import encoded, has_prompt, samples, tokenizer_of
from common.files import check_regular, in_order, read_text
from common.seeds import rng
from common.settings.config import Data

HELD_OUT = 0.2  #: share of the texts for testing where there are none for it
FEW = 5  #: texts of an owner from which on whole ones are held out for next tokens
NAMED = re.compile(r"{([^{}]+)}")  #: column in ``data.prompt``
LAYOUTS = {
    "classes": "CLASS/*.txt or CLIENT/CLASS/*.txt, with train and test above the classes or not",
    "next-token": "*.txt or CLIENT/*.txt, with train and test above the files or not",
}

Fields = tuple[dict[str, Tensor], list[str]]  #: samples by field name of ``Dataset``, and notes


@final
class Texts(NamedTuple):
    """Encoded texts of one part of a data set."""

    ids: np.ndarray  #: tokens of each text, objects (n,), each int32 (t,)
    label: np.ndarray  #: what is learnt, (n, ...); for next tokens any
    owner: np.ndarray  #: number of each text's owner, int64 (n,)


@final
class Encoder:
    """Makes samples of texts as the settings [data] say.

    Raises ``ValueError``, one line, as ``tokenizer_of`` does.
    """

    def __init__(self, data: Data) -> None:
        self.tokenizer, self._length = tokenizer_of(data), data.max_length
        self.next_token = data.objective_of_files == "next-token"
        self._prompt = data.prompt if self.next_token else ""
        self.columns = tuple(dict.fromkeys(NAMED.findall(self._prompt)))  #: columns of prompts
        self.options = (self.tokenizer.fingerprint, str(self._length), self._prompt)
        """What the samples of a text depend on, besides the objective."""

    def encode(
        self,
        texts: Iterable[object],
        places: Iterable[str],
        columns: Sequence[Iterable[object]] = (),
    ) -> np.ndarray:
        """Return the tokens of each text, an object array (n,) of int32 (t,).

        ``columns``: the values of ``self.columns`` for each text. Tokens of a prompt are negative.

        Raises ``ValueError``, one line with the text's place (its file and row), for a value that
        is no text. Of classes it also does for a text without tokens, of next tokens for a text
        that its tokens do not give back, because their lengths would not be those of the text.
        """
        rows = zip(*columns, strict=True) if columns else repeat(())
        return np.fromiter(map(self._encoded, texts, places, rows), object)

    def _encoded(self, text: object, place: str, values: Sequence[object]) -> np.ndarray:
        ids = encoded(self.tokenizer, text, place, least=0 if self.next_token else 1)
        if self.next_token and not self.tokenizer.gives_back(str(text), ids.tolist()):
            raise ValueError(f"{place}: the tokens of data.tokenizer do not give back this text")
        if not self._prompt:
            return ids
        if not len(ids):
            raise ValueError(f"{place}: the text is empty")
        known = dict(zip(self.columns, map(str, values), strict=True))
        prompt = NAMED.sub(lambda name: known[name[1]], self._prompt)
        return np.concatenate([-encoded(self.tokenizer, prompt, place), ids])

    def fields(
        self, parts: Sequence[Texts], owners: int, where: object, share: float = HELD_OUT
    ) -> Fields:
        """Return the samples of texts as ``fields_of`` does, and notes.

        A single part is divided; ``share``: of its texts for testing.
        """
        lengths = [len(ids) for part in parts for ids in part.ids]
        if len(parts) == 1:
            parts = _divided(parts[0], share, next_token=self.next_token)
        made = [samples(part.ids, self._length, next_token=self.next_token) for part in parts]
        sides = [
            (of.x, part.label[of.row] if of.y is None else of.y, part.owner[of.row])
            for of, part in zip(made, parts, strict=True)
        ]
        most = self._length  # a window has one token more for next tokens, the last one learnt
        if self.next_token and not self._prompt:
            n, what = sum(t < 2 for t in lengths), "have no token to learn and are left out"
        else:
            whole = most + self.next_token
            n = sum(t > whole for t in lengths)
            what = f"have more than {whole} tokens; data.max-length = {most} cuts them"
        notes = [f"{n:,} of {len(lengths):,} texts {what}"] if n else []
        if self._prompt and (out := len(lengths) - sum(len(of.row) for of in made)):
            notes.append(
                f"{out:,} of {len(lengths):,} texts have a prompt of more than {most} tokens; "
                "they are left out"
            )
        return fields_of(sides, owners, where), notes

    def described(self, dataset: Dataset) -> Dataset:
        """Return the data set with its vocabulary, which for next tokens is what is learnt."""
        own = self.tokenizer
        known: dict[str, Any] = {"vocab": own.vocab, "tokenizer": own.fingerprint}
        if self.next_token:
            known |= {"objective": "next-token", "classes": own.names, "token_bytes": own.lengths}
        return replace(dataset, **known)


def _divided(texts: Texts, share: float, *, next_token: bool) -> list[Texts]:
    """Divide texts into those for training and those for testing."""
    owner, draw = torch.from_numpy(texts.owner), rng(0, "texts")
    if not len(owner):
        return [texts, texts]
    if not next_token:
        classes = strata(torch.from_numpy(texts.label))
        sides = holdout(owner * (int(classes.max()) + 1) + classes, share, draw)
        return [Texts(*(column[rows] for column in texts)) for rows in map(Tensor.numpy, sides)]
    cuts = [len(ids) - round(share * len(ids)) for ids in texts.ids]
    whole = torch.tensor([has_prompt(ids) for ids in texts.ids])
    many = ((torch.bincount(owner)[owner] >= FEW) | whole).nonzero()[:, 0]
    for tested, rows in enumerate(holdout(owner[many], share, draw) if len(many) else ()):
        for i in many[rows].tolist():
            cuts[i] = 0 if tested else len(texts.ids[i])
    pairs = [*zip(texts.ids, cuts, strict=True)]
    heads = np.fromiter((ids[:cut] for ids, cut in pairs), object)
    tails = np.fromiter((ids[cut:] for ids, cut in pairs), object)
    return [texts._replace(ids=ids) for ids in (heads, tails)]


def load_text_folder(data: Data) -> Dataset:
    """Load the ``*.txt`` files in ``data.dir``, each of which is a text.

    Of classes they are in ``CLASS`` or ``CLIENT/CLASS``, for next tokens in ``data.dir`` itself or
    in ``CLIENT``. Clients are owners. ``train`` and ``test`` can be above the classes or the files.
    """
    root, objective = decoded.data_folder(data, "text-folder"), data.objective_of_files
    if objective not in LAYOUTS:
        raise ValueError(
            f"data.objective = {objective!r} is not allowed with data.name = {data.name!r}; "
            f"allowed: {', '.join(map(repr, LAYOUTS))}"
        )
    encoder = Encoder(data)
    paths = sorted(p for p in decoded.visible(root).values() if p.suffix.lower() == ".txt")
    if not paths:
        raise ValueError(f"{root}: no *.txt files; the layout is {LAYOUTS[objective]}")
    tensors = decoded.cached_files(
        "text-folder", paths, lambda: _decode(root, paths, encoder), objective, *encoder.options
    )
    return encoder.described(of_files(root, tensors, paths, objective))


def _decode(root: Path, paths: Sequence[Path], encoder: Encoder) -> dict[str, Tensor]:
    """Return the texts of a folder as tensors, including the account."""
    places = [_place(root, path, classes=not encoder.next_token) for path in paths]
    layouts = {(not of[0], not of[1]): path for path, of in zip(paths, places, strict=True)}
    if len(layouts) > 1:
        first, other, *_ = layouts.values()
        raise ValueError(f"{root}: {first} and {other} are of two layouts; keep one of them")
    names = {part for part, _, _ in places}
    read = [part for part in ("", "train", "test", "valid") if part in names][:2]
    if read[0] not in ("", "train"):
        raise ValueError(f"{root}: there is {read[0]!r} but no folder 'train'")
    classes = sorted({label for _, _, label in places}, key=in_order)
    clients = {client for part, client, _ in places if part == read[0]}
    owners, parts = sorted(clients - {""}, key=in_order), []
    for part in read:
        rows = [i for i, place in enumerate(places) if place[0] == part]
        texts = (_text(paths[i], root) for i in rows)
        ids = encoder.encode(texts, (str(paths[i]) for i in rows))
        label = np.array([classes.index(places[i][2]) for i in rows])
        number = {client: k for k, client in enumerate(owners)}
        owner = np.array([number.get(places[i][1], len(owners)) for i in rows])
        parts.append(Texts(ids, label, owner))
    fields, notes = encoder.fields(parts, len(owners), root)
    if unread := names - {*read}:
        notes.append(f"folders {', '.join(sorted(unread))} are not read")
    listed = () if encoder.next_token else tuple(classes)
    account = Account(notes=tuple(notes), owners=tuple(owners), classes=listed)
    return {**fields, "account": account.packed()}


def _text(path: Path, root: Path) -> str:
    """Return the content of a regular file inside ``root``."""
    check_regular(path, root)
    return read_text(path)


def _place(root: Path, path: Path, *, classes: bool) -> tuple[str, str, str]:
    """Return part, owner and class of a file, each empty if its folders do not say it."""
    folders = list(path.relative_to(root).parts[:-1])
    label = folders.pop() if classes and folders else ""
    part = PARTS.get(folders[-1].casefold(), "") if folders else ""
    folders = folders[:-1] if part else folders
    if len(folders) > 1 or (classes and (not label or label.casefold() in PARTS)):
        layout = LAYOUTS["classes" if classes else "next-token"]
        raise ValueError(f"{path}: the layout of {root} is {layout}")
    return part, folders[0] if folders else "", label
