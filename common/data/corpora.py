"""Built-in data sets of texts: three inside packages of other projects, and a generated one.

The packages are not imported, and nothing of them is copied into this project. ``data.objective``
chooses between classes and next tokens. A short text is for testing if its crc32 is divisible by 5,
so that equal texts are on one side.
"""

import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
from torch import Tensor

from common.data import decoded
from common.data.account import Account, unpacked
from common.data.dataset import Dataset, measured
from common.data.packaged import file_of_package
from common.data.rda import read_lazy_texts
from common.data.texts import Encoder, Fields, Texts
from common.errors import first_line
from common.files import read_text
from common.seeds import rng
from common.settings.config import Data

DOMAINS = {
    "tweets": "tweets",
    "movies": "movieReviewSnippets",
    "amazon": "amazonReviewSnippets",
    "nyt": "nytEditorialSnippets",
}
"""Owners of ``sentiment``, and how the names of their files begin; ``RATED`` is how they end."""
ARCHIVE = "vaderSentiment-3.3.2.tar.gz"
DOWNLOAD = "pip download --no-deps --no-binary :all: vaderSentiment==3.3.2"
INNER, RATED = "hutto_ICWSM_2014.tar.gz", "_GroundTruth.txt"
NEUTRAL = 0.5  #: largest absolute rating that has no sign
MOST_BYTES = 2**26  #: most bytes of a file in an archive
TOPICS = (
    *("definitions", "songs-poems", "platitudes", "zippy", "startrek", "knghtbrd", "linux"),
    "work",
)
"""Classes of ``fortunes``; some of the other topics are rude."""
FORTUNES = Path("/usr/share/games/fortunes")
TESTED = 5  #: texts whose crc32 is divisible by it are for testing
NOVELS = (
    *("emma", "mansfieldpark", "northangerabbey", "persuasion", "prideprejudice"),
    "sensesensibility",
)
AUSTEN = Path("/usr/lib/R/site-library/janeaustenr/data")
TAIL = 0.1  #: share of each novel for testing
ALPHABET, WRITERS = "abcdefgh", 5  #: letters and owners of ``grammar``
WRITTEN = 60, 20  #: texts of each owner for training and for testing
LETTERS = 65  #: of a text of ``grammar``, so that 64 are learnt
Row = tuple[str, int, int]  #: text, class and owner


def sentiment(data: Data) -> Dataset:
    """Return 19,136 sentences of four domains, the owners, with the sign of their mean rating.

    The source archive of PyPI's ``vaderSentiment`` 3.3.2 in ``data.dir`` has them (Hutto and
    Gilbert 2014, "VADER: A Parsimonious Rule-based Model for Sentiment Analysis of Social Media
    Text"). Ratings are -4 to 4; sentences of 0.5 or less either way are left out.
    """
    path = file_of_package(data, ARCHIVE, None, DOWNLOAD)

    def read() -> Iterator[Row]:
        contents = _unpacked(path)
        for owner, start in enumerate(DOMAINS.values()):
            if (name := start + RATED) not in contents:
                raise ValueError(f"{path}: there is no {name} in it")
            for row, line in enumerate(contents[name].decode("utf-8-sig").strip().split("\n"), 1):
                rating, text = _rated(line, f"{name}: row {row}")
                if abs(rating) > NEUTRAL:
                    yield text, int(rating > 0), owner

    return _corpus(data, [path], read, ("negative", "positive"), tuple(DOMAINS))


def _rated(line: str, place: str) -> tuple[float, str]:
    """Return the rating and the text of a line of ``sentiment``."""
    try:
        _, rating, text = line.split("\t")
        return float(rating), text.strip()
    except ValueError:
        raise ValueError(f"{place} is not a number, a rating and a text") from None


def _unpacked(path: Path) -> dict[str, bytes]:
    """Return the files of rated sentences in an archive by name; nothing is unpacked to disk.

    Raises ``ValueError``, one line with ``path``, for a damaged archive or one with a larger file
    than ``MOST_BYTES``.
    """
    try:
        with tarfile.open(path) as tar:
            return dict(_members(tar))
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise ValueError(f"{path}: damaged or no archive ({first_line(error)})") from None


def _members(tar: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the files of rated sentences, also of those in ``INNER``."""
    for member in tar:
        name = member.name.rpartition("/")[2]
        file = tar.extractfile(member) if member.isfile() else None
        if file is not None and name == INNER:
            with tarfile.open(fileobj=file) as inner:
                yield from _members(inner)
        elif file is not None and name.endswith(RATED):
            if member.size > MOST_BYTES:
                raise ValueError(f"{name} has more than {MOST_BYTES:,} bytes")
            yield name, file.read()


def fortunes(data: Data) -> Dataset:
    """Return 4,704 sayings of eight topics, which are the classes, or for next tokens the owners.

    Debian's packages ``fortunes`` and ``fortunes-min`` have the files.
    """
    paths = [
        file_of_package(data, topic, FORTUNES, "apt-get install fortunes fortunes-min")
        for topic in TOPICS
    ]

    def read() -> Iterator[Row]:
        for topic, path in enumerate(paths):
            for text in re.split(r"(?m)^%$", read_text(path)):
                if text.strip():
                    yield text.strip(), topic, topic

    owners = TOPICS if data.objective_of_files == "next-token" else ()
    return _corpus(data, paths, read, TOPICS, owners)


def austen(data: Data) -> Dataset:
    """Return Jane Austen's six novels, the owners, for next tokens; 4 million bytes.

    The last 10 % of each novel are for testing. Debian's package ``r-cran-janeaustenr`` has the
    files.
    """
    package = "apt-get install r-cran-janeaustenr"
    paths = [file_of_package(data, f"Rdata.{suffix}", AUSTEN, package) for suffix in ("rdx", "rdb")]
    data = data.model_copy(update={"objective": "next-token"})

    def decode(encoder: Encoder) -> Fields:
        novels = read_lazy_texts(paths[0], NOVELS)
        ids = encoder.encode(("\n".join(novels[name]) for name in NOVELS), NOVELS)
        owner = np.arange(len(NOVELS))
        return encoder.fields([Texts(ids, owner, owner)], len(NOVELS), data.name, TAIL)

    return _dataset(data, paths, decode, NOVELS, NOVELS)


def grammar(data: Data) -> Dataset:
    """Return texts of 65 letters of five writers, the owners: 60 for training and 20 for testing.

    Each writer is a Markov chain over eight letters, whose first letter has the stationary
    distribution. Next tokens, whose least perplexity is 3.64, are learnt unless ``data.objective``
    is ``classes``: then the writer is the class, and texts have no owner.
    The tokenizer is ``byte`` unless ``data.tokenizer`` is another.
    """
    update = {"objective": "next-token"} if data.objective == "auto" else {}
    update |= {"tokenizer": "byte"} if data.tokenizer == "auto" else {}
    data = data.model_copy(update=update)
    names = tuple(f"writer {k}" for k in range(WRITERS))
    owners = names if data.objective == "next-token" else ()

    def decode(encoder: Encoder) -> Fields:
        draw, parts = rng(0, "grammar-texts"), []
        for n in WRITTEN:
            texts = [text for chain in transitions() for text in _written(chain, n, draw)]
            writer = np.repeat(np.arange(WRITERS), n)
            begins = 0 if encoder.next_token else 1  # the first letter of a window is not learnt
            cut = (text[begins:] for text in texts)
            ids = encoder.encode(cut, (f"grammar: text {i}" for i in count(1)))
            parts.append(Texts(ids, writer, writer))
        return encoder.fields(parts, len(owners), data.name)

    return _dataset(data, [], decode, names, owners)


def _written(chain: np.ndarray, n: int, draw: np.random.Generator) -> list[str]:
    """Return n texts of a Markov chain."""
    letters, below = np.empty((n, LETTERS), np.int64), chain.cumsum(1)[:, :-1]
    letters[:, 0] = draw.choice(len(ALPHABET), n, p=stationary(chain))
    for t in range(1, LETTERS):
        letters[:, t] = (draw.random((n, 1)) >= below[letters[:, t - 1]]).sum(1)
    return ["".join(ALPHABET[i] for i in row) for row in letters]


def transitions() -> np.ndarray:
    """Return the probabilities (5, 8, 8) of the next letter, by writer and letter, of ``grammar``.

    Rows are draws of Dir(0.3).
    """
    n = len(ALPHABET)
    chains: np.ndarray = rng(0, "grammar").dirichlet(np.full(n, 0.3), (WRITERS, n))
    return chains


def stationary(chain: np.ndarray) -> np.ndarray:
    """Return the distribution π (n,) with π = π P of a Markov chain P (n, n)."""
    distribution: np.ndarray = np.linalg.matrix_power(chain, 1024)[0]
    distribution /= distribution.sum()
    return distribution


def _corpus(
    data: Data,
    paths: Sequence[Path],
    read: Callable[[], Iterator[Row]],
    classes: tuple[str, ...],
    owners: tuple[str, ...],
) -> Dataset:
    """Return the data set of the texts that ``read`` gets from the files ``paths``."""

    def decode(encoder: Encoder) -> Fields:
        texts, *numbers = zip(*read(), strict=True)
        label, owner = (np.array(column, np.int64) for column in numbers)
        ids = encoder.encode(texts, (f"{data.name}: text {i}" for i in count(1)))
        tested = np.array([zlib.crc32(text.encode()) % TESTED == 0 for text in texts])
        parts = [Texts(ids[side], label[side], owner[side]) for side in (~tested, tested)]
        return encoder.fields(parts, len(owners), data.name)

    return _dataset(data, paths, decode, classes, owners)


def _dataset(
    data: Data,
    paths: Sequence[Path],
    decode: Callable[[Encoder], Fields],
    classes: tuple[str, ...],
    owners: tuple[str, ...],
) -> Dataset:
    """Return the data set of the samples that ``decode`` makes of the files ``paths``."""
    encoder = Encoder(data)

    def tensors() -> dict[str, Tensor]:
        fields, notes = decode(encoder)
        return fields | {"account": Account(notes=tuple(notes), owners=owners).packed()}

    options = data.objective_of_files, *encoder.options
    fields = dict(decoded.cached_files(data.name, paths, tensors, *options))
    account = unpacked(fields.pop("account"))
    return encoder.described(replace(measured(data.name, classes, **fields), account=account))
