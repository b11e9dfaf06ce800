"""Tokenizers, and samples of tokens made of texts.

A token is an id from 1 to ``vocab`` - 1, because 0 is the padding behind a text, whatever the
tokenizer. No tokenizer needs a download, and two of them need no vocabulary to agree on: bytes,
and hashes of words.
"""

import hashlib
import json
import re
import unicodedata
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from common.errors import first_line
from common.extras import imported
from common.files import check_regular, read_text
from common.settings.config import TOKENIZERS, Data

WORD = re.compile(r"(?:[^\W\d_]|')+|\d+|[^\w\s]|_")
"""A word of letters of any alphabet and apostrophes, a number, or one other mark."""
PADDING = "<padding>"
FILE = "tokenizer.json"  #: file of a tokenizer in a Hugging Face folder
BYTE = re.compile(r"<0x[0-9A-F]{2}>")  #: token of a single byte in vocabularies with byte fallback
EVERY_BYTE = "".join(
    map(chr, [*range(256), *range(256, 2048, 64), 2048, *range(4096, 0xD800, 4096), 0xE000, 0xF000])
) + "".join(map(chr, range(0x10000, 0x110000, 0x30000)))
"""A text in which every byte occurs that a text in UTF-8 can have."""
PROBE = f"It's  TWO words,\n\tnaïve\r\n{EVERY_BYTE} end "


class Tokenizer(ABC):
    """Converts between texts and ids from 1 to ``vocab`` - 1."""

    vocab: int  #: number of ids, padding included
    fingerprint: str  #: name, and digest of the vocabulary; equal ones give equal ids
    reversible: bool = False  #: whether a text can be read back from its ids
    names: tuple[str, ...] = ()  #: a name for each id, [vocab], if reversible; no two are equal
    lengths: tuple[int, ...] = ()
    """Bytes in UTF-8 of each id's text, [vocab], if reversible; padding has 0. They add up to the
    length of a text."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, each at least 1."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, without padding; bytes that are no UTF-8 become ``\\ufffd``.

        Raises ``ValueError``, one line, for a tokenizer that is not reversible.
        """
        raise ValueError(f"tokenizer {self.fingerprint!r} cannot read texts back from tokens")

    @final
    def gives_back(self, text: str, ids: Iterable[int]) -> bool:
        """Return whether ``ids`` are read back as ``text``, apart from composed letters (NFC)."""
        back, text = (unicodedata.normalize("NFC", form) for form in (self.decode(ids), text))
        return back == text


@final
class Bytes(Tokenizer):
    """The bytes of a text in UTF-8: id 1 + byte."""

    vocab, fingerprint, reversible = 257, "byte", True
    names = (PADDING, *(chr(b) if 32 < b < 127 else f"<0x{b:02X}>" for b in range(256)))
    lengths = (0, *[1] * 256)

    def encode(self, text: str) -> list[int]:
        return [1 + byte for byte in text.encode()]

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(i - 1 for i in ids if i).decode(errors="replace")


@final
class Hashes(Tokenizer):
    """Words by their hash: id 2 + crc32(word) mod (vocab - 2), so that words can share an id."""

    def __init__(self, vocab: int) -> None:
        self.vocab, self.fingerprint = vocab, f"hash:{vocab}"

    def encode(self, text: str) -> list[int]:
        slots = self.vocab - 2
        return [2 + zlib.crc32(word.encode()) % slots for word in _words(text)]


@final
class Words(Tokenizer):
    """Words of a list, one per line: id 2 is the first; all other words have id 1."""

    def __init__(self, path: Path) -> None:
        check_regular(path)
        words = read_text(path).splitlines()
        ids: dict[str, int] = {}
        for line, word in enumerate(words, 1):
            if _words(word) != [word]:
                raise ValueError(
                    f"{path}: line {line}: {word[:40]!r} is not one lower-case word, number or mark"
                )
            if word in ids:
                raise ValueError(f"{path}: line {line}: {word!r} is line {ids[word] - 1} too")
            ids[word] = line + 1
        if not ids:
            raise ValueError(f"{path}: there is no word in it")
        self._ids, self.vocab = ids, len(ids) + 2
        self.fingerprint = f"file:{_digest(chr(10).join(words).encode())}"

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(word, 1) for word in _words(text)]


@final
class Folder(Tokenizer):
    """The tokenizer of a Hugging Face folder (the extra ``text``): id 1 + its own id.

    It adds no special tokens, such as the beginning of a text, and cuts nothing. It is reversible
    if it gives back a text with every byte, apart from Unicode's composition of letters (NFC).
    """

    def __init__(self, folder: Path) -> None:
        path = folder / FILE
        check_regular(path)
        content, package = path.read_bytes(), imported("tokenizers")
        try:
            self._own: Any = package.Tokenizer.from_buffer(content)
        except Exception as error:  # tokenizers has no class of errors
            raise ValueError(f"{path}: damaged or no tokenizer ({first_line(error)})") from None
        self._own.no_truncation()
        self._own.no_padding()
        self.fingerprint = fingerprint_of(content)
        self._by_id = {i + 1: name for name, i in self._own.get_vocab().items()}
        self._added = {i + 1 for i in self._own.get_added_tokens_decoder()}
        self.vocab = max(self._by_id, default=0) + 1
        self._of_bytes = "ByteLevel" in json.dumps(json.loads(content).get("decoder"))
        self.reversible = self.gives_back(PROBE, self.encode(PROBE))
        if ids := range(1, self.vocab) if self.reversible else ():
            self.names = (PADDING, *(self._by_id.get(i, f"<unused {i - 1}>") for i in ids))
            self.lengths = (0, *map(self._length, ids))

    def _length(self, i: int) -> int:
        """Return the bytes of an id; an id behind another one keeps a space at its beginning."""
        name = self._by_id.get(i, "")
        if self._of_bytes:  # a character for each byte, but an added token is text
            return len(name.encode() if i in self._added else name)
        if BYTE.fullmatch(name):
            return 1
        return len(self.decode([i, i]).encode()) - len(self.decode([i]).encode())

    def encode(self, text: str) -> list[int]:
        return [1 + i for i in self._own.encode(text, add_special_tokens=False).ids]

    def decode(self, ids: Iterable[int]) -> str:
        own = [i - 1 for i in ids if i]
        return str(self._own.decode(own, skip_special_tokens=False))


def fingerprint_of(content: bytes) -> str:
    """Return the fingerprint of the tokenizer in a ``tokenizer.json``."""
    return f"folder:{_digest(content)}"


def _words(text: str) -> list[str]:
    """Return the lower-case words, numbers and marks; accents are part of their letter (NFC)."""
    return WORD.findall(unicodedata.normalize("NFC", text.lower()))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def tokenizer_of(data: Data) -> Tokenizer:
    """Return the tokenizer ``data.tokenizer``.

    Raises ``ValueError``, one line, for a path that is neither a list of words nor a folder with a
    tokenizer, and for a tokenizer that is not reversible where next tokens are learnt: the bytes of
    the text would not be known, and no text could be made of predictions.
    """
    following, name = data.objective_of_files == "next-token", data.tokenizer
    if name == "auto":
        name = "byte" if following else "hash"
    tokenizer = _made(name, data.vocabulary if name == "hash" else 0, changed(name))
    if following and not tokenizer.reversible:
        raise ValueError(
            f"data.tokenizer = {data.tokenizer!r} is not allowed with data.objective = "
            "'next-token', because texts cannot be read back from its tokens; allowed: 'byte', or "
            "a folder with a reversible tokenizer, such as byte-level BPE"
        )
    return tokenizer


def changed(name: str) -> int:
    """Return when (ns) the file of the tokenizer ``name`` last changed; 0 if it has no file."""
    path = Path(name).expanduser()
    file = path / FILE if path.is_dir() else path
    return file.stat().st_mtime_ns if name not in TOKENIZERS and file.is_file() else 0


@lru_cache(maxsize=8)
def _made(name: str, vocabulary: int, stamp: int) -> Tokenizer:
    if name == "byte":
        return Bytes()
    if name == "hash":
        return Hashes(vocabulary)
    if (path := Path(name).expanduser()).is_dir():
        return Folder(path)
    if path.suffix.lower() == ".txt" and stamp:
        return Words(path)
    why = "" if path.exists() else ": there is no such file or folder"
    raise ValueError(
        f"data.tokenizer = {name!r} is not allowed{why}; allowed: "
        f"{', '.join(map(repr, TOKENIZERS))}, a list of words (*.txt), or a folder with {FILE}"
    )


def tokenizer_with(fingerprint: str, data: Data) -> Tokenizer | None:
    """Return the tokenizer with this fingerprint; None if the settings have no file of it."""
    kind, _, vocab = fingerprint.partition(":")
    name = kind if kind in TOKENIZERS else data.tokenizer
    try:
        tokenizer = _made(name, int(vocab) if kind == "hash" else 0, changed(name))
    except ValueError:  # of a data set that has a tokenizer of its own
        return None
    return tokenizer if tokenizer.fingerprint == fingerprint else None


def continued(tokenizer: Tokenizer, ids: Sequence[int], more: Sequence[int]) -> str:
    """Return the text of ``more`` behind ``ids``; read alone, a tokenizer could lose its space."""
    return tokenizer.decode([*ids, *more]).removeprefix(tokenizer.decode(ids))


def encoded(tokenizer: Tokenizer, text: object, place: str, *, least: int = 1) -> np.ndarray:
    """Return the ids of a text, int32 (t,); ``place``: file and row, for messages.

    Raises ``ValueError``, one line, for a value that is no text, and for fewer than ``least`` ids.
    """
    if not isinstance(text, str):
        shown = "no text" if text is None else f"{str(text)[:40]!r}, which is no text"
        raise ValueError(f"{place} has {shown}")
    try:
        ids = np.array(tokenizer.encode(text), np.int32)
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can have
        raise ValueError(f"{place}: character {error.start} of the text is no Unicode") from None
    if len(ids) < least:
        raise ValueError(f"{place}: the text is empty")
    return ids


def has_prompt(ids: np.ndarray) -> bool:
    """Return whether a text begins with tokens that are not learnt, which are negative."""
    return len(ids) > 0 and bool(ids[0] < 0)


@final
class Samples(NamedTuple):
    """Samples of tokens, made of texts."""

    x: np.ndarray  #: int32 (n, T), padded with 0 on the right
    y: np.ndarray | None
    """Next tokens, int32 (n, T): the token behind each one in ``x``, 0 where there is none."""
    row: np.ndarray  #: text that each sample came from, int64 (n,)


def samples(texts: Sequence[np.ndarray] | np.ndarray, length: int, *, next_token: bool) -> Samples:
    """Return samples of ``length`` tokens of texts, each an array of ids.

    A text is one sample, cut after ``length`` tokens. For next tokens a text becomes consecutive
    windows of ``length`` + 1 tokens that overlap by one, so that each token but the first is learnt
    once. A text with a prompt, whose tokens are negative because they are not learnt, is one sample
    of next tokens, cut after ``length`` + 1 tokens, and none if no other token is left.
    """
    step = length if next_token else max(map(len, texts), default=0) + 1
    starts = [
        range(int((ids[: length + 1] > 0).any()))
        if has_prompt(ids)
        else range(0, len(ids) - next_token, step)
        for ids in texts
    ]
    n = sum(map(len, starts))
    x, row = np.zeros((n, length), np.int32), np.empty(n, np.int64)
    y = np.zeros((n, length), np.int32) if next_token else None
    i = 0
    for of, (ids, begins) in enumerate(zip(texts, starts, strict=True)):
        for begin in begins:
            window = ids[begin : begin + length + 1]
            if y is not None:
                y[i, : len(window) - 1] = window[1:].clip(min=0)
                window = window[:-1]
            x[i, : min(len(window), length)] = abs(window[:length])
            row[i] = of
            i += 1
    return Samples(x, y, row)
