"""Tokenizers, and samples of tokens."""

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.data.dataset import Dataset
from common.data.external import check
from common.data.texts import Encoder
from common.data.tokens import PROBE, Bytes, Folder, encoded, samples, tokenizer_of, tokenizer_with
from common.settings.config import Data
from tests.support.texts import bpe

Options = Callable[..., Data]


def test_bytes_by_hand() -> None:
    tokens = Bytes()
    assert tokens.encode("Aé\n") == [1 + 65, 1 + 0xC3, 1 + 0xA9, 1 + 10]
    assert tokens.decode([66, 196, 170, 11, 0, 0]) == "Aé\n"
    assert tokens.decode([66, 196]) == "A\ufffd"
    assert (tokens.names[0], tokens.names[66], tokens.names[11]) == ("<padding>", "A", "<0x0A>")
    assert len({*tokens.names}) == len(tokens.lengths) == tokens.vocab == 257
    assert tokens.lengths[:2] == (0, 1)


@given(st.text())
def test_bytes_give_back_every_text(text: str) -> None:
    assert Bytes().decode(Bytes().encode(text)) == text


def test_hashes_by_hand(options: Options) -> None:
    tokens = tokenizer_of(options(vocabulary=100))
    words = ["it's", "2", "élan", "über", "_", "!"]
    assert tokens.encode("It's 2E\u0301LAN\tÜber_!") == [
        2 + zlib.crc32(w.encode()) % 98 for w in words
    ]
    assert (tokens.vocab, tokens.fingerprint, tokens.reversible) == (100, "hash:100", False)
    with pytest.raises(ValueError, match="'hash:100' cannot read texts back"):
        tokens.decode([2])


def test_a_list_of_words_by_hand(options: Options, tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("the\ncat\n.\n")
    tokens = tokenizer_of(options(tokenizer=str(path)))
    assert tokens.encode("The dog. The cat") == [2, 1, 4, 2, 3]
    assert tokens.vocab == 5 and not tokens.names
    old = tokens.fingerprint
    path.write_text("the\ndog\n.\n")
    assert tokenizer_of(options(tokenizer=str(path))).fingerprint != old  # it is read again


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("the\nThe\n", "line 2: 'The' is not one lower-case word"),
        ("the\n\ncat", "line 2: '' is not one lower-case word"),
        ("a\nb\na\n", "line 3: 'a' is line 1 too"),
        ("", "there is no word in it"),
    ],
)
def test_bad_lists_of_words_are_one_line(
    options: Options, tmp_path: Path, content: str, line: str
) -> None:
    path = tmp_path / "words.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match=line) as refused:
        tokenizer_of(options(tokenizer=str(path)))
    assert str(refused.value).startswith(f"{path}: ") and "\n" not in str(refused.value)


def test_a_folder_has_ids_from_1_and_no_special_tokens(options: Options, tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    own = Tokenizer.from_file(str(bpe(tmp_path) / "tokenizer.json"))
    start = own.token_to_id("<s>")
    own.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", start)])
    own.enable_truncation(2)
    own.enable_padding(length=9)
    own.save(str(tmp_path / "tokenizer.json"))
    tokens = tokenizer_of(options(tokenizer=str(tmp_path), objective="next-token"))
    ids = tokens.encode("the cat sat")
    assert ids == [1 + own.token_to_id(word) for word in ("the", "Ġcat", "Ġsat")]
    assert [tokens.lengths[i] for i in ids] == [3, 4, 4] and tokens.lengths[0] == 0
    assert [tokens.names[i] for i in ids] == ["the", "Ġcat", "Ġsat"]
    assert tokens.vocab == own.get_vocab_size() + 1 == len({*tokens.names})


@given(st.text())
def test_byte_level_bpe_gives_back_every_text(folder: Folder, text: str) -> None:
    ids = folder.encode(text)
    assert folder.decode(ids) == text
    assert sum(folder.lengths[i] for i in ids) == len(text.encode())
    assert all(1 <= i < folder.vocab for i in ids)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(bpe(tmp_path_factory.mktemp("bpe")))


def test_lengths_count_spaces_and_single_bytes(options: Options, tmp_path: Path) -> None:
    """As in Llama's vocabulary: ``▁`` is a space, and letters outside of it are bytes.

    The space before a text is one of its first token, which is never learnt.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    pieces = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "▁a"]
    model = models.BPE(
        {piece: i for i, piece in enumerate(pieces)},
        [("▁", "a")],
        byte_fallback=True,
        unk_token="<unk>",
    )
    own = Tokenizer(model)
    own.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()
    own.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    own.save(str(tmp_path / "tokenizer.json"))
    tokens = Folder(tmp_path)
    assert tokens.decode(tokens.encode("a aé")) == "a aé" and tokens.reversible
    Encoder(options(tokenizer=str(tmp_path), objective="next-token")).encode(["a aé"], ["row 1"])
    names = [tokens.names[i] for i in tokens.encode("a aé")]
    assert names == ["▁a", "▁a", "<0xC3>", "<0xA9>"]
    assert [tokens.lengths[tokens.names.index(name)] for name in names] == [2, 2, 1, 1]


def with_added(folder: Path, content: str, **options: bool) -> Folder:
    """Return a byte-level BPE with one more token, which is added to its vocabulary."""
    from tokenizers import AddedToken, Tokenizer

    own = Tokenizer.from_file(str(bpe(folder) / "tokenizer.json"))
    own.add_tokens([AddedToken(content, **options)])
    own.save(str(folder / "tokenizer.json"))
    return Folder(folder)


@pytest.mark.parametrize("content", ["日本", "<|end|>", "a b"])
def test_added_tokens_count_bytes_not_characters(tmp_path: Path, content: str) -> None:
    tokens = with_added(tmp_path, content)
    ids = tokens.encode(text := f"é{content} {content}!")
    assert ids.count(tokens.names.index(content)) == 2 and tokens.decode(ids) == text
    assert sum(tokens.lengths[i] for i in ids) == len(text.encode())


@pytest.mark.parametrize(
    ("content", "flags"), [("<m>", {"lstrip": True}), ("<m>", {"rstrip": True}), ("<é>", {})]
)
def test_a_text_that_its_tokens_do_not_give_back_is_one_line(
    options: Options, tmp_path: Path, content: str, flags: dict[str, bool]
) -> None:
    with_added(tmp_path, content, **flags)
    known = options(tokenizer=str(tmp_path), objective="next-token")
    Encoder(known).encode(["the cat", "e\u0301"], ["row 1", "row 2"])
    with pytest.raises(ValueError, match="^row 2: the tokens of .* do not give back this"):
        Encoder(known).encode(["the cat", f"a {content} cat"], ["row 1", "row 2"])
    Encoder(options(tokenizer=str(tmp_path))).encode([f"a {content} cat"], ["row 1"])


def test_only_reversible_tokenizers_serve_next_tokens(options: Options, tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.normalizers import NFC, Lowercase

    for normalizer, reversible in ((NFC(), True), (Lowercase(), False)):
        path = bpe(tmp_path) / "tokenizer.json"
        own = Tokenizer.from_file(str(path))
        own.normalizer = normalizer
        own.save(str(path))
        assert Folder(tmp_path).reversible is reversible
    known = {"objective": "next-token"}
    assert tokenizer_of(options(**known)).fingerprint == "byte"
    assert tokenizer_of(options()).fingerprint == "hash:8192"
    assert not tokenizer_of(options(tokenizer=str(tmp_path))).lengths
    for name in ("hash", str(tmp_path)):
        with pytest.raises(ValueError, match="texts cannot be read back from its tokens; allowed"):
            tokenizer_of(options(tokenizer=name, **known))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {"type": "None"}}'])
def test_a_damaged_folder_is_one_line(options: Options, tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match="damaged or no tokenizer") as refused:
        tokenizer_of(options(tokenizer=str(tmp_path)))
    assert "\n" not in str(refused.value)


def test_a_path_without_a_tokenizer_is_one_line(options: Options, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json: cannot be read"):
        tokenizer_of(options(tokenizer=str(tmp_path)))
    for name in ("words", str(tmp_path / "missing.txt"), str(tmp_path / "missing")):
        with pytest.raises(
            ValueError, match="there is no such file or folder; allowed: 'auto', 'b"
        ):
            tokenizer_of(options(tokenizer=name))
    (tmp_path / "words.csv").write_text("the")
    with pytest.raises(ValueError, match="is not allowed; allowed: 'auto', 'byte', 'hash', a list"):
        tokenizer_of(options(tokenizer=str(tmp_path / "words.csv")))


def test_a_model_finds_the_tokenizer_that_it_was_trained_with(
    options: Options, tmp_path: Path
) -> None:
    """That of a data set may be another than the settings' usual one, such as ``grammar``'s."""
    (words := tmp_path / "words.txt").write_text("the\n")
    own = options(tokenizer=str(words))
    known = tokenizer_of(own).fingerprint
    for fingerprint, data in (("byte", options()), ("hash:50", options()), (known, own)):
        tokenizer = tokenizer_with(fingerprint, data)
        assert tokenizer is not None and tokenizer.fingerprint == fingerprint
    words.write_text("a\n")
    for fingerprint in ("", "letters", known):
        assert tokenizer_with(fingerprint, options()) is None
        assert tokenizer_with(fingerprint, own) is None


def test_the_probe_has_every_byte_of_utf_8() -> None:
    never = {0xC0, 0xC1, *range(0xF5, 0x100)}
    assert {*PROBE.encode()} == {*range(256)} - never


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_a_text_is_a_sample_and_cut() -> None:
    found = samples([ids(5, 6), ids(1, 2, 3, 4), ids(7, 8, 9)], 3, next_token=False)
    assert found.x.tolist() == [[5, 6, 0], [1, 2, 3], [7, 8, 9]] and found.x.dtype == np.int32
    assert (found.y, found.row.tolist()) == (None, [0, 1, 2])


def test_windows_overlap_by_one_token() -> None:
    texts = [ids(*range(1, 9)), ids(4), ids(), ids(5, 6), ids(1, 2, 3, 4)]
    found = samples(texts, 3, next_token=True)
    assert found.x.tolist() == [[1, 2, 3], [4, 5, 6], [7, 0, 0], [5, 0, 0], [1, 2, 3]]
    assert found.y is not None and found.y.dtype == np.int32
    assert found.y.tolist() == [[2, 3, 4], [5, 6, 7], [8, 0, 0], [6, 0, 0], [2, 3, 4]]
    assert found.row.tolist() == [0, 0, 0, 3, 4]


@given(st.lists(st.lists(st.integers(1, 9), max_size=12), max_size=6), st.integers(1, 5))
def test_each_token_but_the_first_is_learnt_once(texts: list[list[int]], length: int) -> None:
    found = samples([ids(*text) for text in texts], length, next_token=True)
    assert found.y is not None
    for i, text in enumerate(texts):
        of_text = found.row == i
        learnt = found.y[of_text]
        assert learnt[learnt > 0].tolist() == text[1:]
        assert found.x[of_text][found.x[of_text] > 0].tolist() == text[:-1]
    assert ((found.x > 0) == (found.y > 0)).all()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "a.csv: row 3: the text is empty"),
        (None, "a.csv: row 3 has no text"),
        (1.5, "a.csv: row 3 has '1.5', which is no text"),
        (json.loads('"a\\ud800"'), "a.csv: row 3: character 1 of the text is no Unicode"),
    ],
)
def test_bad_texts_are_one_line(text: object, line: str) -> None:
    with pytest.raises(ValueError, match=f"^{line}$"):
        encoded(Bytes(), text, "a.csv: row 3")


def texts_of(**changes: Any) -> Dataset:
    """Two texts of a vocabulary of five, with next tokens unless ``objective`` is another."""
    x = torch.tensor([[1, 2, 3], [4, 1, 0]], dtype=torch.int32)
    y = torch.tensor([[2, 3, 4], [1, 2, 0]], dtype=torch.int32)
    names = tuple("_abcd")
    known = {"vocab": 5, "objective": "next-token", "token_bytes": (0, 1, 1, 1, 1)}
    return replace(Dataset("mine", names, x, y, x, y, (), ()), **{**known, **changes})


@pytest.mark.parametrize(
    ("field", "rows", "line"),
    [
        ("x", [[1, 2, 5], [4, 1, 0]], "x is 0 to 5; tokens are 0 to vocab - 1, and vocab = 5"),
        ("x", [[1, 2, 3], [-1, 1, 0]], "x is -1 to 3; tokens are 0 to vocab - 1"),
        ("x_test", [[1, 2, 3], [4, 0, 1]], "x_test of sample 1 is .* padding, 0, only behind it"),
        ("x", [[1, 2, 3], [0, 0, 0]], "x of sample 1 is .* a text has at least one token"),
        ("y", [[2, 3, 5], [1, 2, 0]], "y of sample 0 is .* of 1 to 4, and 0 for none"),
        ("y", [[2, 3, 4], [1, 2, 3]], "y of sample 1 is .* 0 for none, as behind the text"),
        ("y_test", [[0, 0, 0], [1, 2, 0]], "y_test of sample 0 is .* at least one token to learn"),
        ("y", [[2, 3], [1, 2]], r"y is int32 \(2, 2\), x int32 \(2, 3\); next tokens are int32"),
    ],
)
def test_tokens_of_a_plug_in_are_checked(field: str, rows: list[list[int]], line: str) -> None:
    classes = {"objective": "classes", "y": torch.tensor([0, 1]), "y_test": torch.tensor([1, 2])}
    others = classes if field[0] == "x" else {}
    check("mine", texts_of(**others))
    with pytest.raises(ValueError, match=f"data set 'mine': {line}"):
        check("mine", texts_of(**others, **{field: torch.tensor(rows, dtype=torch.int32)}))


def test_next_tokens_have_a_name_and_a_length_for_each_token() -> None:
    check("mine", texts_of())
    for changes in ({"classes": ("a", "b")}, {"token_bytes": (0, 1)}, {"token_bytes": ()}):
        with pytest.raises(ValueError, match="next tokens have one of each for all 5 tokens"):
            check("mine", texts_of(**changes))
