"""Built-in texts, read from miniature files in the packages' formats."""

import gzip
import io
import math
import struct
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from common.data import Dataset, load
from common.data.corpora import (
    ALPHABET,
    DOMAINS,
    INNER,
    NOVELS,
    TOPICS,
    stationary,
    transitions,
)
from common.data.tokens import Bytes
from common.settings.config import Data
from tests.support.data_files import ATTRIBUTES, attributes, integer, strings

Options = Callable[..., Data]
BYTES = Bytes()


def texts(x: torch.Tensor) -> list[str]:
    return [BYTES.decode(row) for row in x.tolist()]


def is_tested(text: str) -> bool:
    return zlib.crc32(text.encode()) % 5 == 0


SENTENCES = [f"{word} {i}" for i in range(12) for word in ("awful", "great")]


def archive(path: Path, members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    path.write_bytes(buffer.getvalue())
    return buffer.getvalue()


def ground_truth() -> dict[str, bytes]:
    """The four files: each sentence begins with the domain; every third rating has no sign."""
    files = {}
    for domain, name in DOMAINS.items():
        rows = [
            f"{i}\t{(-1.5, 2.0)[i % 2] if i % 3 else 0.5}\t{domain} {text} \r"
            for i, text in enumerate(SENTENCES)
        ]
        files[f"{name}_GroundTruth.txt"] = ("\ufeff" + "\n".join(rows) + "\n").encode()
    return files


def test_sentiment_by_hand(options: Options, tmp_path: Path) -> None:
    inside = {f"hutto_ICWSM_2014/{name}": content for name, content in ground_truth().items()}
    content = archive(tmp_path / INNER, inside)
    members = {f"vaderSentiment-3.3.2/additional_resources/{INNER}": content}
    archive(tmp_path / "vaderSentiment-3.3.2.tar.gz", members)
    own = options(name="sentiment", dir=str(tmp_path), tokenizer="byte")
    data = load(own)
    kept = [f"{domain} {text}" for domain in DOMAINS for i, text in enumerate(SENTENCES) if i % 3]
    assert texts(data.x) == [text for text in kept if not is_tested(text)]
    assert texts(data.x_test) == [text for text in kept if is_tested(text)] != []
    assert (data.classes, data.account.owners) == (("negative", "positive"), tuple(DOMAINS))
    for text, y, owner in zip(texts(data.x), data.y, data.owner, strict=True):
        domain, word, _ = text.split()
        assert [*DOMAINS][int(owner)] == domain and int(y) == (word == "great")
    follow = load(own.model_copy(update={"objective": "next-token"}))
    assert texts(follow.y) == [text[1:] for text in texts(data.x)] and follow.owners == 4


def test_bad_archives_are_one_line(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(line: str) -> None:
        with pytest.raises(ValueError, match=line) as error:
            load(options(name="sentiment", dir=str(tmp_path)))
        assert "\n" not in str(error.value)

    refused("vaderSentiment-3.3.2.tar.gz is not in .*; install it by pip download --no-deps")
    with pytest.raises(ValueError, match="is not on this machine; install it by pip download"):
        load(options(name="sentiment"))
    path = tmp_path / "vaderSentiment-3.3.2.tar.gz"
    path.write_bytes(b"no archive")
    refused("vaderSentiment-3.3.2.tar.gz: damaged or no archive")
    files = ground_truth()
    whole = archive(path, files)
    path.write_bytes(whole[: len(whole) // 2])
    refused("damaged or no archive")
    lost = files.pop("tweets_GroundTruth.txt")
    archive(path, files)
    refused("there is no tweets_GroundTruth.txt in it")
    archive(path, files | {"tweets_GroundTruth.txt": lost.replace(b"2.0\t", b"much\t")})
    refused("tweets_GroundTruth.txt: row 2 is not a number, a rating and a text")
    monkeypatch.setattr("common.data.corpora.MOST_BYTES", 10)
    refused("has more than 10 bytes")


def test_fortunes_by_hand(options: Options, tmp_path: Path) -> None:
    sayings = {topic: [f"{topic} {i}\n100 % true" for i in range(20)] for topic in TOPICS}
    for topic, entries in sayings.items():
        (tmp_path / topic).write_text("\n%\n".join(entries) + "\n%\n")
    own = options(name="fortunes", dir=str(tmp_path), tokenizer="byte")
    data = load(own)
    assert texts(data.x_test) == [s for of in sayings.values() for s in of if is_tested(s)]
    assert data.classes == TOPICS and data.owner is None
    assert all(TOPICS[y] == s.split()[0] for y, s in zip(data.y, texts(data.x), strict=True))
    follow = load(own.model_copy(update={"objective": "next-token"}))
    assert torch.equal(follow.owner, data.y) and follow.account.owners == TOPICS


def lazy(folder: Path, novels: dict[str, list[str]], compressed: int = 1) -> None:
    """Write a package's data as R's lazy-load files."""
    head = b"X\n" + integer(2) + integer(0x40102) + integer(0x20300)

    def named(values: dict[str, bytes]) -> bytes:
        items = integer(len(values)) + b"".join(values.values())
        return integer(19 | ATTRIBUTES) + items + attributes(names=strings([*values]))

    def whole(*values: int) -> bytes:
        return integer(13) + integer(len(values)) + b"".join(map(integer, values))

    content, places = b"", {}
    for name, rows in novels.items():
        packed = zlib.compress(head + strings(rows))
        packed = struct.pack(">I", len(packed)) + packed
        places[name] = whole(len(content), len(packed))
        content += packed
    index = {"variables": named(places), "references": named({}), "compressed": whole(compressed)}
    (folder / "Rdata.rdx").write_bytes(gzip.compress(head + named(index)))
    (folder / "Rdata.rdb").write_bytes(content)


def test_austen_by_hand(options: Options, tmp_path: Path) -> None:
    novels = {name: [name.upper(), "", f"It is {i} o'clock."] for i, name in enumerate(NOVELS)}
    lazy(tmp_path, {"other": ["x"], **novels})
    data = load(options(name="austen", dir=str(tmp_path)))
    assert (data.objective, data.account.owners, data.tokenizer) == ("next-token", NOVELS, "byte")
    for k, rows in enumerate(novels.values()):
        text = "\n".join(rows)
        cut = len(text) - round(0.1 * len(text))
        assert texts(data.x[data.owner == k]) == [text[: cut - 1]]
        assert texts(data.y[data.owner == k]) == [text[1:cut]]
        assert texts(data.y_test[data.owner_test == k]) == [text[cut + 1 :]]
    with pytest.raises(ValueError, match="'classes' is not allowed: data set 'austen' has next-to"):
        load(options(name="austen", dir=str(tmp_path), objective="classes"))


def test_bad_lazy_load_files_are_one_line(options: Options, tmp_path: Path) -> None:
    def refused(line: str) -> None:
        with pytest.raises(ValueError, match=line) as error:
            load(options(name="austen", dir=str(tmp_path)))
        assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)

    novels = {name: [name] for name in NOVELS}
    lazy(tmp_path, novels, compressed=3)
    refused("Rdata.rdx: its objects are not compressed by zlib")
    lazy(tmp_path, {"emma": ["a"]})
    refused("Rdata.rdx: it has no 'mansfieldpark', but emma")
    lazy(tmp_path, novels)
    content = (tmp_path / "Rdata.rdb").read_bytes()
    (tmp_path / "Rdata.rdb").write_bytes(content[:-20])
    refused("Rdata.rdb: damaged or no file of R")
    (tmp_path / "Rdata.rdb").unlink()
    refused("Rdata.rdb is not in .*; install it by apt-get install r-cran-janeaustenr")


@pytest.mark.parametrize(
    ("name", "package"),
    [
        (
            "fortunes",
            "definitions is not in .*; install it by apt-get install fortunes fortunes-min",
        ),
        ("austen", "Rdata.rdx is not in .*; install it by apt-get install r-cran-janeaustenr"),
    ],
)
def test_a_missing_package_is_named(
    options: Options, tmp_path: Path, name: str, package: str
) -> None:
    with pytest.raises(ValueError, match=f"data set '{name}': {package}"):
        load(options(name=name, dir=str(tmp_path)))


def nats_of(chain: np.ndarray) -> float:
    """Return the entropy rate of a stationary Markov chain, Σ_i π_i Σ_j -P_ij ln P_ij.

    Cover and Thomas, "Elements of Information Theory", theorem 4.2.4.
    """
    return float(stationary(chain) @ torch.special.entr(torch.from_numpy(chain)).sum(1).numpy())


@pytest.fixture(scope="module")
def grammar() -> Dataset:
    return load(Data(name="grammar", partition="iid"))


def test_the_perplexity_of_the_grammar_is_that_of_its_samples(grammar: Dataset) -> None:
    """The mean of -ln P of each letter behind another: 16,000 letters, error of the mean 0.8 %."""
    chains = transitions()
    nats: list[list[float]] = []
    for k, chain in enumerate(chains):
        rows = [
            (x, y)
            for part in (
                (grammar.x, grammar.y, grammar.owner),
                (grammar.x_test, grammar.y_test, grammar.owner_test),
            )
            for x, y in zip(part[0][part[2] == k], part[1][part[2] == k], strict=True)
        ]
        pairs = [
            (ALPHABET.index(a), ALPHABET.index(b))
            for x, y in rows
            for a, b in zip(BYTES.decode(x.tolist()), BYTES.decode(y.tolist()), strict=True)
        ]
        assert len(pairs) == 80 * 64
        nats.append([-math.log(chain[i, j]) for i, j in pairs])
        estimate = float(np.mean(nats[-1]))
        assert abs(estimate - nats_of(chain)) < 5 * float(np.std(nats[-1])) / math.sqrt(len(pairs))
        assert abs(estimate - math.log(len(ALPHABET))) > 0.3  # it is not that of equal letters
    rates = [*map(nats_of, chains)]
    assert abs(float(np.mean(nats)) - np.mean(rates)) < 0.02
    assert np.exp([np.mean(rates), min(rates), max(rates)]) == pytest.approx(
        [3.64, 2.88, 4.29], abs=0.005
    )


def test_the_entropy_rate_by_hand() -> None:
    """Two letters that change with probabilities 1/4 and 1/2 have π = (2/3, 1/3)."""
    chain = np.array([[0.75, 0.25], [0.5, 0.5]])
    assert stationary(chain) == pytest.approx([2 / 3, 1 / 3])
    for chain in transitions():
        assert stationary(chain) @ chain == pytest.approx(stationary(chain))


def test_writers_of_the_grammar_are_owners_or_classes(grammar: Dataset) -> None:
    assert Counter(grammar.owner.tolist()) == dict.fromkeys(range(5), 60)
    assert Counter(grammar.owner_test.tolist()) == dict.fromkeys(range(5), 20)
    data = load(Data(name="grammar", partition="iid", objective="classes"))
    assert data.owner is None and torch.equal(data.y, grammar.owner) and not data.account.notes
    assert torch.equal(data.x, grammar.y) and data.tokenizer == "byte"
