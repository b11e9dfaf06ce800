"""Readers of texts: columns, JSON Lines, folders, LEAF's files and the hub."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from common.data import Dataset, load
from common.data.arrays import LETTERS
from common.data.overview import overview
from common.data.shares import check_public_tests, share
from common.data.tokens import Bytes
from common.settings.config import Data
from tests.support.texts import bpe

Read = Callable[..., Dataset]
BYTES = Bytes()


@pytest.fixture
def read(options: Callable[..., Data], tmp_path: Path) -> Read:
    """``read("csv", text_column="text")``: the data set of the files in ``tmp_path``."""

    def reader(name: str, **changes: Any) -> Dataset:
        are_texts = name in ("text-folder", "leaf") or "text_column" in changes
        known = {"tokenizer": "byte", "max_length": 8} if are_texts else {}
        return load(options(**{"name": name, "dir": str(tmp_path), **known, **changes}))

    return reader


def lines(path: Path, *rows: object) -> Path:
    """Write each row in a line, as JSON unless it is text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def texts(x: torch.Tensor) -> list[str]:
    return [BYTES.decode(row) for row in x.tolist()]


def reviews(n: int = 20) -> list[dict[str, Any]]:
    """``n`` short texts of two classes, of owners ``p2`` and ``p10``."""
    names = ("bad", "good")
    return [
        {"text": f"{names[i % 2]} {i}", "label": names[i % 2], "who": f"p{(2, 10)[i // 2 % 2]}"}
        for i in range(n)
    ]


def as_csv(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]


@pytest.mark.parametrize("name", ["csv", "jsonl", "client-csv"])
def test_a_column_of_texts(read: Read, tmp_path: Path, name: str) -> None:
    rows = reviews()
    if name == "client-csv":
        for who in ("p2", "p10"):
            of_client = [row for row in rows if row["who"] == who]
            lines(tmp_path / who / "a.csv", *as_csv(of_client))
    else:
        lines(tmp_path / f"train.{name}", *(as_csv(rows) if name == "csv" else rows))
    owner = "" if name == "client-csv" else "who"
    data = read(name, text_column="text", owner_column=owner)
    assert (data.kind.name, data.shape, data.vocab, data.tokenizer) == (
        "tokens",
        data.shape,
        257,
        "byte",
    )
    assert data.x.dtype == torch.int32 and data.x.shape[1] == 8 and not data.mean
    assert (data.classes, data.account.features) == (("bad", "good"), ("text",))
    both = texts(torch.cat([data.x, data.x_test]))
    assert sorted(both) == sorted(row["text"][:8] for row in rows)
    place = {row["text"]: row for row in rows}
    owners = torch.cat([data.owner, data.owner_test]).tolist()
    for text, y, who in zip(both, torch.cat([data.y, data.y_test]).tolist(), owners, strict=True):
        assert place[text]["label"] == data.classes[y] and place[text]["who"] == ("p2", "p10")[who]
    # a fifth of each owner's five texts of each class
    counts = torch.bincount(2 * data.owner_test + data.y_test)
    assert counts.tolist() == [1, 1, 1, 1]


def test_lines_may_end_with_a_carriage_return_and_texts_may_be_long(
    read: Read, tmp_path: Path
) -> None:
    rows = *as_csv(reviews()), f"{'long ' * 40_000},bad,p2"
    (tmp_path / "train.csv").write_bytes("\r".join(rows).encode())
    found = read("csv", text_column="text", owner_column="who")
    assert len(found.x) + len(found.x_test) == 21


def test_a_quote_that_does_not_end_is_one_line(read: Read, tmp_path: Path) -> None:
    lines(tmp_path / "train.csv", *as_csv(reviews()), 'a,bad,"p2', "b,good,p2")
    with pytest.raises(ValueError, match=r"train.csv: not readable as CSV \(unexpected end"):
        read("csv", text_column="text", owner_column="who")


def test_next_tokens_of_a_column_ignore_the_labels(read: Read, tmp_path: Path) -> None:
    rows = [{"text": "x" * i + "!", "label": None, "who": "ab"[i // 11]} for i in range(1, 21)]
    lines(tmp_path / "train.jsonl", *rows)
    data = read("jsonl", objective="next-token", text_column="text", owner_column="who")
    assert data.objective == "next-token" and data.y.dtype == torch.int32
    assert data.classes == BYTES.names and data.token_bytes == BYTES.lengths
    assert (data.account.label, data.account.unused) == ("", {"label": "not the text"})
    assert sum(int((y > 0).sum()) for y in (data.y, data.y_test)) == sum(range(1, 21))
    for part in (data.y_test[data.owner_test == k] for k in (0, 1)):  # two of ten whole texts
        assert int((part == 1 + ord("!")).sum()) == 2


def test_texts_without_a_token_to_learn_are_counted(read: Read, tmp_path: Path) -> None:
    lines(tmp_path / "train.jsonl", *({"text": text} for text in ("", "a", "ab", "abc")))
    lines(tmp_path / "test.jsonl", {"text": "ab"}, {"text": "b"})
    data = read("jsonl", objective="next-token", text_column="text")
    assert (texts(data.x), texts(data.y), texts(data.x_test)) == (["a", "ab"], ["b", "bc"], ["a"])
    assert data.account.notes == ("3 of 6 texts have no token to learn and are left out",)
    lines(tmp_path / "test.jsonl", {"text": "b"})
    with pytest.raises(ValueError, match="no samples for testing"):
        read("jsonl", objective="next-token", text_column="text", max_length=9)


def test_few_texts_are_tested_on_their_ends(read: Read, tmp_path: Path) -> None:
    lines(tmp_path / "a" / "1.txt", "0123456789abcdefghi")  # 20 bytes with the end of the line
    lines(tmp_path / "b" / "1.txt", "zyxwvutsrq")
    data = read("text-folder", objective="next-token")
    assert texts(data.x) == ["01234567", "89abcde", "zyxwvuts"]
    assert texts(data.y) == ["12345678", "9abcdef", "yxwvutsr"]
    assert (texts(data.x_test), texts(data.y_test)) == (["ghi", "q"], ["hi\n", "\n"])
    assert (data.owner.tolist(), data.owner_test.tolist()) == ([0, 0, 1], [0, 1])
    assert data.account.owners == ("a", "b")
    lines(tmp_path / "c" / "1.txt", "abcd")  # with an end of one token: nothing is learnt of it
    lines(tmp_path / "c" / "2.txt", "")
    assert read("text-folder", objective="next-token", max_length=9).account.notes == (
        "1 of 4 texts have no token to learn and are left out",
    )


def test_labels_and_numbers_of_texts(read: Read, tmp_path: Path) -> None:
    rows = [{"text": f"t{i}", "ill": i % 2, "dose": i / 4} for i in range(10)]
    lines(tmp_path / "train.jsonl", *rows)
    data = read("jsonl", objective="number", label_column="dose", text_column="text")
    both = dict(
        zip(texts(torch.cat([data.x, data.x_test])), torch.cat([data.y, data.y_test]), strict=True)
    )
    assert all(float(both[f"t{i}"]) == i / 4 for i in range(10))
    assert data.account.unused == {"ill": "not the text"}


def test_cut_texts_are_counted_and_shown(read: Read, tmp_path: Path) -> None:
    rows = reviews()
    lines(tmp_path / "train.csv", *as_csv(rows))
    data = read("csv", text_column="text", max_length=5)
    assert data.account.notes == (
        "15 of 20 texts have more than 5 tokens; data.max-length = 5 cuts them",
    )
    shown = dict(overview(data).rows())
    assert shown["tokenizer"] == "byte, 257 different tokens"
    assert shown["lengths"] == "5 to 5 tokens, median 5"
    assert shown["features"] == "'text'" and shown["samples"].endswith("texts of 5 tokens")
    follow = overview(read("csv", text_column="text", objective="next-token"))
    assert follow.classes == () and sum(follow.learnt) == sum(len(row["text"]) - 1 for row in rows)
    learnt = "{:,} tokens to learn in training, {:,} in testing".format(*follow.learnt)
    assert dict(follow.rows())["next-token"] == learnt


def test_a_cached_copy_belongs_to_one_tokenizer(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.data.decoded.SMALL", 0)
    lines(tmp_path / "train.csv", *as_csv(reviews()))
    folder = bpe(tmp_path)
    for tokenizer in ("byte", "hash", str(folder)):
        first, again = (read("csv", text_column="text", tokenizer=tokenizer) for _ in range(2))
        assert torch.equal(first.x, again.x) and first.tokenizer.startswith(
            tokenizer[:4].strip("/tmp") or "f"
        )
    short = read("csv", text_column="text", max_length=3)
    assert short.shape[0] == 3 and texts(short.x)[0] in ("bad", "goo")


def test_another_vocabulary_has_another_partition(
    options: Callable[..., Data], tmp_path: Path
) -> None:
    """The file of the tokenizer has the same path, but fewer windows of the texts."""
    for i in range(40):
        lines(tmp_path / "texts" / f"{i}.txt", "the cat sat on the mat " * 3)
    known = {"name": "text-folder", "dir": str(tmp_path / "texts"), "objective": "next-token"}
    data = options(tokenizer=str(tmp_path), max_length=4, min_size=0, **known)
    sizes = []
    for vocab in (259, 300):
        bpe(tmp_path, vocab)
        shares = [share(data, k, 2, 0) for k in range(2)]
        rows = torch.cat([rows for of in shares for rows in (of.train, of.test)])
        assert sorted(rows.tolist()) == list(range(len(shares[0].pool.y)))
        sizes.append(len(rows))
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (["text,label", "a,x", ",y"], r"train\.csv: row 2: the text is empty"),
        (
            ["words,label", "a,x"],
            "no column 'text' besides label and owner; .* one of words, label",
        ),
        (["text,note", "a,x"], "no column 'label'; data.label-column should be one of text, note"),
    ],
)
def test_bad_tables_of_texts_are_one_line(
    read: Read, tmp_path: Path, rows: list[str], line: str
) -> None:
    lines(tmp_path / "train.csv", *rows)
    with pytest.raises(ValueError, match=line) as refused:
        read("csv", text_column="text")
    assert str(tmp_path) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ('{"text": "a", "label": ', r"row 2 is no JSON \(Expecting value"),
        (["a", "x"], "row 2 is no JSON object"),
        (
            {"text": "a", "lable": "x"},
            "row 2 has the columns text, lable; those of row 1 are text, l",
        ),
        ({"body": "a", "label": "x"}, "row 2 has the columns body, label; those of row 1"),
        ({"text": ["a"], "label": "x"}, "row 2, column 'text': a list or an object is no value"),
        ({"text": None, "label": "x"}, "row 2 has no text"),
        ({"text": 5, "label": "x"}, "row 2 has '5', which is no text"),
        ({"text": "a", "label": None}, "row 2 has no 'label'"),
        ({"text": "\ud800", "label": "x"}, "row 2: character 0 of the text is no Unicode"),
        ("[" * 100_000, "row 2 is no JSON"),
    ],
)
def test_bad_lines_of_json_are_one_line(read: Read, tmp_path: Path, row: object, line: str) -> None:
    path = lines(tmp_path / "train.jsonl", {"text": "a", "label": "x"}, row)
    with pytest.raises(ValueError, match=line) as refused:
        read("jsonl", text_column="text")
    assert str(refused.value).startswith(f"{path}: ") and "\n" not in str(refused.value)


def test_only_the_columns_in_use_matter(read: Read, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{**row, "meta": {"tags": ["a"]}} for row in reviews()]
    rows[3]["source"], rows[4] = ["web"], {key: rows[4][key] for key in ("who", "label", "text")}
    lines(tmp_path / "train.jsonl", *rows)
    lines(tmp_path / "test.jsonl", {"label": "bad", "text": "so so", "id": 1, "who": "p10"})
    data = read("jsonl", text_column="text", owner_column="who")
    assert texts(data.x) == [row["text"][:8] for row in rows] and texts(data.x_test) == ["so so"]
    assert data.account.unused == {"meta": "not the text"}
    lines(tmp_path / "test.jsonl", {"label": "bad", "text": "so so"})
    with pytest.raises(ValueError, match=r"test.jsonl: its columns are label, text; those of the"):
        read("jsonl", text_column="text", owner_column="who", max_length=9)


def test_a_table_of_json_lines_needs_every_column_but_ignored_ones(
    read: Read, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [{"a": i, "label": i % 2, "meta": [i]} for i in range(10)]
    del rows[1]["meta"]
    path = lines(tmp_path / "train.jsonl", *rows)
    data = read("jsonl", ignore_columns="meta")
    assert sorted(torch.cat([data.x, data.x_test])[:, 0].tolist()) == [*range(10)]
    lines(path, *rows, {"a": 1, "b": 2, "label": 0})
    with pytest.raises(ValueError, match=r"row 11 has the columns a, b, label; those of row 1"):
        read("jsonl", ignore_columns="meta", seed=1)


def test_json_lines_are_a_table_too(read: Read, tmp_path: Path) -> None:
    """The keys may have any order, and empty lines do not count."""
    rows = [{"a": i, "b": i / 2, "label": i % 2} for i in range(10)]
    rows[3] = {"label": 1, "b": 1.5, "a": 3}
    lines(tmp_path / "train.jsonl", *rows[:5], "", *rows[5:])
    lines(tmp_path / "test.jsonl", *rows)
    data = read("jsonl")
    assert data.kind.name == "table" and data.x.tolist() == [[i, i / 2] for i in range(10)]
    assert data.classes == ("0", "1")
    (tmp_path / "train.jsonl").unlink()
    with pytest.raises(ValueError, match=r"train\.jsonl is missing"):
        read("jsonl", seed=1)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("toy", "text-column", "text"),
        ("toy", "tokenizer", "byte"),
        ("toy", "vocabulary", 100),
        ("toy", "max-length", 32),
        ("grammar", "text-column", "text"),
        ("grammar", "vocabulary", 100),
    ],
)
def test_a_setting_that_the_data_set_does_not_read_is_one_line(
    options: Callable[..., Data], name: str, key: str, value: str | int
) -> None:
    load(options(name=name))
    with pytest.raises(ValueError, match=f"^data.{key} = .* is not allowed with .*; allowed: "):
        load(options(name=name, **{key.replace("-", "_"): value}))


def test_settings_that_do_not_go_together(read: Read, tmp_path: Path) -> None:
    lines(tmp_path / "train.csv", *as_csv(reviews()))
    for changes, line in (
        (
            {"objective": "next-token"},
            "not allowed with data.name = 'csv' without data.text-column",
        ),
        (
            {"text_column": "text", "window": 3},
            "data.window = 3 is not allowed with data.text-column",
        ),
        ({"text_column": "text", "kind": "table"}, "data.kind = 'table' is not allowed"),
        (
            {"text_column": "text", "objective": "next-token", "tokenizer": "hash"},
            "data.tokenizer = 'hash' is not allowed with data.objective = 'next-token'",
        ),
    ):
        with pytest.raises(ValueError, match=line):
            read("csv", **changes)
    with pytest.raises(ValueError, match="not allowed with data.name = 'folder'; allowed: texts"):
        read("folder", objective="next-token")


LAYOUTS = {
    "classes": [
        "{c}/{i}.txt",
        "{part}/{c}/{i}.txt",
        "{who}/{c}/{i}.txt",
        "{who}/{part}/{c}/{i}.txt",
    ],
    "next-token": ["{i}.txt", "{part}/{i}.txt", "{who}/{i}.txt", "{who}/{part}/{i}.txt"],
}


@pytest.mark.parametrize(
    ("objective", "layout"), [(goal, layout) for goal, of in LAYOUTS.items() for layout in of]
)
def test_layouts_of_a_folder_of_texts(
    read: Read, tmp_path: Path, objective: str, layout: str
) -> None:
    for i in range(40):
        part = ("train", "Testing")[i % 5 == 0]
        who, c = f"h{(2, 10)[i // 2 % 2]}", ("bad", "good")[i % 2]
        path = tmp_path / layout.format(c=c, i=i, who=who, part=part)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{i:02}{c[0]}{who[1:]}")
    (tmp_path / "about.md").write_text("no text")
    data = read("text-folder", objective=objective)
    assert (len(data.y), len(data.y_test)) == (32, 8)
    assert data.owners == (2 if "{who}" in layout else 0)
    assert data.account.owners == (("h2", "h10") if "{who}" in layout else ())
    assert data.account.ignored == {".md": (1, "about.md")}
    for x, y, owner in ((data.x, data.y, data.owner), (data.x_test, data.y_test, data.owner_test)):
        for row, text in enumerate(texts(x)):
            if "{part}" in layout:
                assert (int(text[:2]) % 5 == 0) == (x is data.x_test)
            if objective == "classes":
                assert data.classes[int(y[row])][0] == text[2]
            if owner is not None:
                assert ("2", "10")[int(owner[row])].startswith(text[3:])


def test_bad_folders_of_texts_are_one_line(read: Read, tmp_path: Path) -> None:
    def refused(line: str, **changes: Any) -> None:
        with pytest.raises(ValueError, match=line) as error:
            read("text-folder", **changes)
        assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)

    refused("no \\*.txt files; the layout is CLASS/")
    lines(tmp_path / "train" / "a.txt", "hello")
    refused("a.txt: the layout of .* is CLASS/\\*.txt or CLIENT/CLASS")
    lines(tmp_path / "b.txt", "hello")
    refused("are of two layouts", objective="next-token")
    (tmp_path / "b.txt").unlink()
    lines(tmp_path / "train" / "good" / "b.txt", "hello")
    refused("a.txt: the layout of", objective="classes")
    (tmp_path / "train" / "a.txt").unlink()
    (tmp_path / "train" / "good" / "c.txt").write_bytes(b"\xff")
    refused("c.txt: byte 0 is no text in UTF-8")
    (tmp_path / "train" / "good" / "c.txt").write_text("")
    refused("c.txt: the text is empty")
    with pytest.raises(ValueError, match="'number' is not allowed with data.name = 'text-folder'"):
        read("text-folder", objective="number")
    (tmp_path / "train").rename(tmp_path / "test")
    refused("there is 'test' but no folder 'train'")


def leaf(folder: Path, part: str, **users: tuple[list[Any], list[Any]]) -> None:
    content = {
        "users": [*users],
        "num_samples": [len(x) for x, _ in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    lines(folder / part / "all.json", content)


def test_next_letters_of_leaf(read: Read, tmp_path: Path) -> None:
    """A letter outside of LEAF's 80 is none of them; ``find`` gives -1, the last one."""
    leaf(tmp_path, "train", romeo=(["to be o", "o be or"], ["r", "é"]), juliet=(["a rose"], ["$"]))
    leaf(tmp_path, "test", romeo=(["or not"], ["}"]))
    data = read("leaf")
    assert texts(data.x) == ["to be o", "o be or", "a rose"] and data.owner.tolist() == [1, 1, 0]
    assert data.classes == (*LETTERS, "other") and len(data.classes) == 81
    assert (data.y.tolist(), data.y_test.tolist()) == ([LETTERS.find("r"), 80, 80], [79])
    assert read("leaf", tokenizer="hash").account.notes == (
        "y is the next letter; data.tokenizer = 'byte' makes letters of x",
    )
    follow = read("leaf", objective="next-token")
    assert texts(follow.y) == ["o be o", " be or", " rose"] and texts(follow.y_test) == ["r not"]
    (note,) = follow.account.notes
    assert note.startswith("texts overlap") and "data.objective = 'classes' learns y" in note
    leaf(tmp_path, "train", romeo=(["to be o", "a rose"], ["r", "é"]))
    assert read("leaf", objective="next-token", max_length=9).account.notes == ()


def test_classes_of_leafs_texts(read: Read, tmp_path: Path) -> None:
    """Numbers, or texts, which numbers of one digit are too."""
    for labels in ([0, 4, 4], ["0", "4", "4"]):
        leaf(tmp_path, "train", a=(["bad", "good", "fine"], labels))
        leaf(tmp_path, "test", a=(["so so"], labels[:1]), b=(["new"], labels[1:2]))
        data = read("leaf")
        assert (data.classes, data.y.tolist(), data.y_test.tolist()) == (
            ("0", "4"),
            [0, 1, 1],
            [0, 1],
        )
        assert data.owner is not None and data.owner_test is None  # b has no training texts


@pytest.mark.parametrize(
    ("x", "y", "line"),
    [
        (["a", ""], [0, 1], "user 'a': x of sample 1: the text is empty"),
        (["a", 5], [0, 1], "user 'a': x of sample 1 has '5', which is no text"),
        (["a", "b"], ["x"], "user 'a': y has 1 texts, but there are 2 samples"),
        (["a", "b"], ["x", 1], "user 'a': it holds text, not numbers"),
        ([[1.0], [2.0]], [0, 1], "user 'a': samples are float32 .*, those of .* texts"),
    ],
)
def test_bad_texts_of_leaf_are_one_line(
    read: Read, tmp_path: Path, x: list[Any], y: list[Any], line: str
) -> None:
    leaf(tmp_path, "train", b=(["c", "d"], [0, 1]))
    leaf(tmp_path, "test", a=(x, y))
    kind = "table" if isinstance(x[0], list) else "auto"
    with pytest.raises(ValueError, match=line) as refused:
        read("leaf", kind=kind)
    assert str(refused.value).startswith(f"{tmp_path / 'test'}")


def test_a_public_set_of_texts(options: Callable[..., Data], tmp_path: Path) -> None:
    from common.data import divide

    lines(tmp_path / "train.jsonl", *reviews())
    own = options(name="grammar", objective="classes", public_dir="", public_name="grammar")
    divided = divide(own, 0)
    assert divided.public is not None and torch.equal(divided.public, divided.pool.x)
    other = own.model_copy(update={"max_length": 9})
    assert divide(other, 0).public is not None
    mixed = options(name="toy", public_name="grammar")
    with pytest.raises(
        ValueError, match="public-name has the tokenizer 'byte', the data set 'none'"
    ):
        divide(mixed, 0)


def test_a_public_set_may_have_one_text_in_a_hundred_of_the_test_texts(
    options: Callable[..., Data], tmp_path: Path
) -> None:
    for part, n in (("train", 20), ("test", 300)):
        lines(
            tmp_path / f"{part}.jsonl", *({**row, "text": part + row["text"]} for row in reviews(n))
        )
    known = {"name": "jsonl", "dir": str(tmp_path), "text_column": "text", "tokenizer": "byte"}
    for equal in (3, 4):
        found = [{**row, "text": f"test{row['text']}"} for row in reviews(equal)]
        lines(tmp_path / str(equal) / "train.jsonl", *found, *reviews())
        lines(tmp_path / str(equal) / "test.jsonl", *reviews())
        data = options(public_dir=str(tmp_path / str(equal)), **known)
        if equal == 3:
            check_public_tests(data, 2, 0)
            continue
        with pytest.raises(ValueError, match=r"4 of the 300 test texts of .* public set \(1.3 %\)"):
            check_public_tests(data, 2, 0)


@pytest.mark.full
def test_a_text_column_of_the_hub(read: Read, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = reviews()
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    features = datasets.Features(
        text=datasets.Value("string"),
        label=datasets.ClassLabel(names=["bad", "good"]),
        who=datasets.Value("string"),
    )
    folder = tmp_path / "saved"
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(str(folder))
    known = {"dir": str(folder), "text_column": "text", "owner_column": "who"}
    data = read("hub", **known)
    assert (data.classes, data.owners, data.tokenizer) == (("bad", "good"), 2, "byte")
    assert sorted(texts(torch.cat([data.x, data.x_test]))) == sorted(row["text"] for row in rows)
    assert all(data.classes[y] in text for y, text in zip(data.y, texts(data.x), strict=True))
    assert torch.bincount(2 * data.owner_test + data.y_test).tolist() == [1, 1, 1, 1]
    follow = read("hub", objective="next-token", **known)
    assert follow.objective == "next-token" and follow.owners == 2
    with pytest.raises(ValueError, match="no column 'label' with texts; there are text"):
        read("hub", **{**known, "text_column": "label"})
    columns["text"][3] = ""
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="column 'text': sample 3: the text is empty"):
        read("hub", **{**known, "dir": str(tmp_path / "empty")})


CLASSES = {"objective": "auto", "label_column": "a", "text_column": "q"}


def asked(n: int = 12) -> list[dict[str, Any]]:
    """``n`` questions with answers of one to three letters."""
    return [{"q": f"{i}?", "a": "xyz"[: 1 + i % 3], "no": i} for i in range(n)]


@pytest.mark.parametrize("name", ["csv", "jsonl", "client-csv"])
def test_a_prompt_is_read_and_not_learnt(name: str, read: Read, tmp_path: Path) -> None:
    rows = as_csv(asked()) if "csv" in name else asked()
    file = {"client-csv": "one/all.csv"}.get(name, f"train.{name}")
    lines(tmp_path / file, *rows)
    settings = {"objective": "next-token", "text_column": "a", "prompt": "{no}:{q} "}
    data = read(name, **settings, max_length=10)
    assert len(data.x) + len(data.x_test) == 12, "each is whole, though one owner has few"
    both = zip([*data.x, *data.x_test], [*data.y, *data.y_test], strict=True)
    for x, y in both:
        number = int(BYTES.decode(x.tolist()).partition(":")[0])
        prompt, answer = f"{number}:{number}? ", "xyz"[: 1 + number % 3]
        assert BYTES.decode(x.tolist()) == (prompt + answer)[:-1]
        assert y[: len(prompt) - 1].sum() == 0 and texts(y[None, len(prompt) - 1 :]) == [answer]
    assert "'no'" not in str(data.account.unused)


def test_answers_behind_long_prompts_are_cut_or_left_out(read: Read, tmp_path: Path) -> None:
    rows = [{"q": "1234567", "a": "ab"}, {"q": "123456789", "a": "ab"}, {"q": "1", "a": "ab"}]
    rows += [{"q": "123456", "a": "cd"}]  # of eight tokens, all in one window
    lines(tmp_path / "train.jsonl", *rows)
    lines(tmp_path / "test.jsonl", *rows)
    settings = {"objective": "next-token", "text_column": "a", "prompt": "{q}"}
    data = read("jsonl", **settings, max_length=7)
    assert texts(data.x) == ["1234567", "1a", "123456c"]
    assert texts(data.y) == ["a", "ab", "cd"]
    notes = data.account.notes
    assert "4 of 8 texts have more than 8 tokens; data.max-length = 7 cuts them" in notes
    assert "2 of 8 texts have a prompt of more than 7 tokens; they are left out" in notes


@pytest.mark.parametrize(
    ("rows", "changes", "line"),
    [
        (asked(), {"prompt": "{question}"}, "no column 'question' besides the text's; data.prompt"),
        (asked(), {"prompt": "{a}"}, "no column 'a' besides the text's"),
        ([{"q": "?", "a": ""}], {}, "row 1: the text is empty"),
        ([{"q": "", "a": "x"}], {}, "row 1: the text is empty"),
        (
            [{"q": "?", "a": "xy"[i % 2]} for i in range(20)],
            CLASSES,
            "data.prompt = .* do not read",
        ),
    ],
)
def test_bad_prompts_are_one_line(
    rows: Any, changes: Any, line: str, read: Read, tmp_path: Path
) -> None:
    lines(tmp_path / "train.jsonl", *rows)
    settings = {"objective": "next-token", "text_column": "a", "prompt": "{q}", **changes}
    with pytest.raises(ValueError, match=line) as refused:
        read("jsonl", **settings)
    assert "\n" not in str(refused.value)
