"""PFLlib's and HtFLlib's files: what they hold, and what is never opened."""

import os
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.data import Dataset, arrays, decoded, load, unpickle
from common.data.arrays import labels, load_npz
from common.data.unpickle import read_npz
from common.settings.config import Data
from tests.support.data_files import write_clients, write_npz
from tests.support.recorded_calls import record_calls

Npz = Callable[..., Dataset]


@pytest.fixture
def npz(options: Callable[..., Data]) -> Npz:
    """``npz(folder, kind="image")``: the data set of a folder's files."""
    return lambda folder, **changes: load(options(name="npz", dir=str(folder), **changes))


def test_each_file_is_an_owners(npz: Npz, tmp_path: Path) -> None:
    data = npz(write_clients(tmp_path / "mine", 12))
    assert (data.name, data.shape, data.classes) == ("mine", (1, 8, 8), ("0", "1", "2"))
    assert data.owners == 12 and data.owner is not None and data.owner_test is not None
    assert torch.bincount(data.owner).tolist() == [24 + k for k in range(12)]
    assert torch.bincount(data.owner_test).tolist() == [9 + k for k in range(12)]
    held = read_npz(tmp_path / "mine" / "test" / "10.npz", "data")
    assert data.x_test[data.owner_test == 10].numpy().tobytes() == held["x"].tobytes()
    assert data.y_test[data.owner_test == 10].tolist() == held["y"].tolist()
    # floats stay floats, and their own statistics normalise them
    assert data.x.dtype == torch.float32 and float(data.x.min()) < 0
    assert data.mean == pytest.approx((float(data.x.mean()),))


def test_the_generators_config_tells_of_classes_that_are_not_seen(npz: Npz, tmp_path: Path) -> None:
    folder = write_clients(tmp_path, 1)
    (folder / "config.json").write_text('{"num_clients": 1, "num_classes": 5}')
    assert npz(folder, partition="own").num_classes == 5
    for text, line in (
        ('{"num_classes": 2}', "num_classes = 2, but there are labels to 2"),
        ('{"num_clients": 1}', "damaged, or without 'num_classes'"),
        ('{"num_classes": 5', "damaged, or without 'num_classes'"),
        ("[" * 100_000, "damaged, or without 'num_classes'"),
        ('{"num_classes": 200000}', "num_classes = 200000: label 199999 is not allowed"),
    ):
        (folder / "config.json").write_text(text)
        with pytest.raises(ValueError, match=f"config.json: {line}"):
            load_npz(Data(name="npz", dir=str(folder)))


def test_a_client_may_have_nothing_for_testing(npz: Npz, tmp_path: Path) -> None:
    folder = write_clients(tmp_path, 3)
    for nothing in (np.zeros((0, 1, 8, 8)), np.zeros(0), []):
        write_npz(folder / "test" / "1.npz", {"x": nothing, "y": []})
        data = load_npz(Data(name="npz", dir=str(folder)))
        assert data.owner_test is not None and data.owners == 3
        assert torch.bincount(data.owner_test).tolist() == [9, 0, 11]
    for k in range(3):
        write_npz(folder / "test" / f"{k}.npz", {"x": [], "y": []})
    with pytest.raises(ValueError, match="there are no samples for training, or none for testing"):
        load_npz(Data(name="npz", dir=str(folder)))


def test_large_files_are_unpickled_once(npz, tmp_path, monkeypatch) -> None:
    folder, read = write_clients(tmp_path, 2), record_calls(monkeypatch, arrays, "read_npz")
    monkeypatch.setattr(decoded, "SMALL", 0)
    first, second = (load_npz(Data(name="npz", dir=str(folder))) for _ in range(2))
    assert len(read) == 4 and first.x.equal(second.x)
    assert first.owner_test is not None and first.owner_test.equal(second.owner_test)


@pytest.mark.parametrize(
    ("x", "shape", "dtype"),
    [
        (np.zeros((6, 4, 4, 3), np.uint8), (3, 4, 4), torch.uint8),
        (np.zeros((6, 3, 4, 4), np.uint8), (3, 4, 4), torch.uint8),
        (np.full((6, 4, 4), 255), (1, 4, 4), torch.uint8),
        (np.zeros((6, 16)), (1, 4, 4), torch.float32),
        (np.full((6, 1, 4, 4), -3), (1, 4, 4), torch.float32),
        (list(np.zeros((6, 1, 4, 4), np.float32)), (1, 4, 4), torch.float32),
        ("objects", (1, 4, 4), torch.float32),
    ],
)
def test_images_come_in_many_shapes(npz, tmp_path, x, shape, dtype) -> None:
    if isinstance(x, str):  # as some versions store them
        x = np.empty(6, dtype=object)
        x[:] = [np.zeros((1, 4, 4), np.float32) for _ in range(6)]
    for part in ("train", "test"):
        write_npz(tmp_path / part / "0.npz", {"x": x, "y": [0, 1, 2] * 2})
    data = npz(tmp_path, kind="image")
    assert (data.shape, data.x.dtype, data.y.tolist()) == (shape, dtype, [0, 1, 2] * 2)


@pytest.mark.parametrize(
    ("shape", "kind", "expected"),
    [
        ((6, 9, 128), "signal", (9, 128)),
        ((6, 9, 1, 128), "signal", (9, 128)),  # PFLlib's HAR
        ((6, 9, 3, 256), "signal", (27, 256)),  # PFLlib's PAMAP2
        ((6, 50), "signal", (1, 50)),
        ((6, 16), "table", (16,)),
        ((6, 9, 128), "image", (1, 9, 128)),
        ((6, 3, 1, 64), "image", (3, 1, 64)),
    ],
)
def test_arrays_of_more_than_one_kind_need_data_kind(npz, tmp_path, shape, kind, expected) -> None:
    x = np.arange(np.prod(shape)).reshape(shape) / 1000
    for part in ("train", "test"):
        write_npz(tmp_path / part / "0.npz", {"x": x, "y": [0, 1, 2] * 2})
    with pytest.raises(ValueError, match="which can be images, signals or a table; set data.kind"):
        npz(tmp_path)
    data = npz(tmp_path, kind=kind)
    assert data.shape == expected and data.kind.name == kind and data.x.dtype == torch.float32
    assert data.x.numpy().tobytes() == x.astype(np.float32).tobytes()


@pytest.mark.parametrize(
    ("x", "kind", "line"),
    [
        (np.zeros((3, 2, 4, 5, 6)), "signal", r"\(3, 2, 4, 5, 6\); it should be a shape of sig"),
        (np.zeros((3, 9, 128)), "table", r"\(3, 9, 128\); rows of a table have the shape \(N, F\)"),
        (np.full((3, 4), np.inf), "table", "numbers that are not finite"),
    ],
)
def test_an_array_that_is_not_of_its_kind_is_one_line(npz, tmp_path, x, kind, line) -> None:
    for part in ("train", "test"):
        write_npz(tmp_path / part / "0.npz", {"x": x, "y": [0, 1, 2]})
    with pytest.raises(ValueError, match=line):
        npz(tmp_path, kind=kind)


class Command:
    """What runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/this-was-run",)


GOOD: dict[str, Any] = {"x": np.zeros((3, 1, 4, 4)), "y": np.arange(3)}


@pytest.mark.parametrize(
    ("held", "line"),
    [
        (Command(), "its pickle calls posix.system, which is not allowed"),
        (GOOD | {"extra": Command()}, "its pickle calls posix.system"),
        (GOOD | {"x": torch.zeros(3, 1, 4, 4)}, "its pickle calls torch._utils._rebuild_tenso"),
        (GOOD | {"x": Path("/")}, "its pickle calls pathlib.PosixPath"),
        ({"images": 1, "y": 2}, "there are no 'x' and 'y', but 'images', 'y'"),
        ([1, None], "it is no pickled dictionary"),
        (None, "there are no 'x' and 'y', but NoneType"),
        (GOOD | {"y": np.arange(4)}, r"y has the shape \(4,\), but there are 3 samples"),
        (GOOD | {"y": np.array([0, 1, -1])}, "y has values that are not classes"),
        (GOOD | {"y": np.array([0.5, 1, 2])}, "sample 0 has 0.5. To learn numbers, set data.obj"),
        (GOOD | {"y": np.ones((3, 2))}, "For several labels set data.objective to 'labels'"),
        (GOOD | {"y": np.eye(3)}, r"1.npz: y is \(3, 3\), that of .*0.npz \(3,\)"),
        (GOOD | {"y": ["a", "b", "c"]}, "it holds text, not numbers"),
        (GOOD | {"y": np.array([0, 1, "c"], dtype=object)}, "it holds text, not numbers"),
        (GOOD | {"x": [np.zeros(4), [0, 0, 0, "c"], np.zeros(4)]}, "it holds text, not numbers"),
        (GOOD | {"y": [0, 1, 20_000_000]}, "y: label 20000000 is not allowed; .* 0 to 99999"),
        (GOOD | {"y": np.array([0, 1, np.inf])}, "y: label inf is not allowed"),
        (GOOD | {"x": {"a": 1}}, "it holds object, not numbers"),
        (GOOD | {"x": None}, "it holds object, not numbers"),
        (GOOD | {"x": np.zeros((3, 17))}, r"\(3, 17\), which can be images, signals or a table"),
        (GOOD | {"x": [np.zeros(4), np.zeros(5), np.zeros(4)]}, "samples differ in shape"),
        (GOOD | {"x": np.full((3, 1, 4, 4), np.nan)}, "numbers that are not finite"),
        (GOOD | {"x": np.zeros((3, 1, 5, 5))}, r"samples are float32 \(1, 5, 5\), those of .*0.n"),
    ],
)
def test_what_is_no_clients_data_is_one_line_with_the_path(npz, tmp_path, held, line) -> None:
    write_clients(tmp_path, 2)
    for part, k in (("train", 0), ("test", 0), ("test", 1)):
        write_npz(tmp_path / part / f"{k}.npz", GOOD)
    path = write_npz(tmp_path / "train" / "1.npz", held)
    with pytest.raises(ValueError, match=line) as refused:
        npz(tmp_path)
    assert str(refused.value).startswith(f"{path}: ") and "\n" not in str(refused.value)
    assert not Path("/tmp/this-was-run").exists()


def pickled(path: Path) -> bytes:
    """What a file's archive holds: a header of one line, and the pickle."""
    with zipfile.ZipFile(path) as archive:
        return archive.read("data.npy")


def archived(path: Path, inner: bytes) -> Path:
    """Write a whole archive with this content."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.npy", inner)
    return path


def unpickling(path: Path, code: bytes) -> Path:
    """Write a file whose pickle is ``code``."""
    return archived(path, pickled(write_npz(path, GOOD)).partition(b"\n")[0] + b"\n" + code)


def test_a_file_that_is_cut_off_anywhere_is_one_line(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "0.npz", GOOD)
    whole, inner = path.read_bytes(), pickled(path)
    cuts = [("damaged or no .npz file", whole[:at]) for at in range(0, len(whole) - 1, 31)]
    for at in range(0, len(inner) - 1, 7):  # the archive is whole, what is in it is not
        cuts.append(("", archived(path, inner[:at]).read_bytes()))
    for line, content in cuts:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"0.npz: {line}") as refused:
            read_npz(path, "data")
        assert "\n" not in str(refused.value)


def claims(path: Path, size: int) -> None:
    """Change the uncompressed size that a file's directory states."""
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\x01\x02") + 24
    content[at : at + 4] = size.to_bytes(4, "little")
    path.write_bytes(content)


def test_a_small_file_with_a_large_content_is_refused_by_its_size(npz, tmp_path, monkeypatch):
    path = write_clients(tmp_path, 1) / "test" / "0.npz"
    claims(path, 3 * 2**30)
    line = f"{path}: 'data' holds 3,221,225,472 bytes, at most 1,073,741,824 are allowed for "
    line += f"{path.stat().st_size:,}"
    with pytest.raises(ValueError, match=line):
        read_npz(path, "data")
    monkeypatch.setattr("common.data.arrays.read_npz", lambda *_: pytest.fail("content was read"))
    with pytest.raises(ValueError, match=line):
        npz(tmp_path)


def test_files_that_are_large_together_are_refused(npz, tmp_path, monkeypatch) -> None:
    for k in range(3):
        for part in ("train", "test"):
            np.savez(write_npz(tmp_path / part / f"{k}.npz", GOOD), data=np.array(GOOD))
    npz(tmp_path)
    monkeypatch.setattr(unpickle, "MOST_BYTES", 2000)
    line = f"{tmp_path}/train/2.npz: it and the files before it hold .*, at most 2,000 are allowed"
    with pytest.raises(ValueError, match=line):
        load_npz(Data(name="npz", dir=str(tmp_path)))


def shared(levels: int, end: object) -> object:
    """A list of two equal lists of two equal lists of …, which a pickle stores once each."""
    for _ in range(levels):
        end = [end, end]
    return end


@pytest.mark.parametrize("end", [0, np.zeros(9), "text"])
def test_objects_that_a_pickle_shares_without_end_are_refused(tmp_path: Path, end: object) -> None:
    path = write_npz(tmp_path / "0.npz", {"x": shared(50, end), "y": [0]})
    with pytest.raises(ValueError, match=r"0.npz: its pickle of .* bytes makes objects of") as no:
        read_npz(path, "data")
    assert "at most 67,108,864 are allowed" in str(no.value) and "\n" not in str(no.value)
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(ValueError, match=r"0.npz: .* makes objects of"):
        read_npz(write_npz(path, {"x": loop, "y": [0]}), "data")
    assert read_npz(write_npz(path, {"x": shared(5, end), "y": [0]}), "data")["y"] == [0]


def test_values_outside_arrays_are_counted_before_they_are_made(tmp_path, monkeypatch) -> None:
    path = write_npz(tmp_path / "0.npz", {"x": [*range(2000)], "y": [0]})
    assert len(read_npz(path, "data")["x"]) == 2000
    monkeypatch.setattr(unpickle, "MOST_VALUES", 1000)
    with pytest.raises(ValueError, match=r"0.npz: it holds more than 1,000 values outside arrays"):
        read_npz(path, "data")


@pytest.mark.parametrize(
    ("kind", "elements", "line"),
    [
        (b"u1", b"\x8a\x05\0\0\0\0\x02", "an array without bytes"),  # LONG1 2**33: 8 GiB of zeros
        (b"O", b"U\x04text", "an array of objects without a list"),  # an object for each byte
    ],
)
def test_an_array_whose_elements_need_more_memory_than_the_file_is_not_made(
    tmp_path: Path, kind: bytes, elements: bytes, line: str
) -> None:
    made = b"cnumpy.core.multiarray\n_reconstruct\n(tR(I1\n(I4\ntcnumpy\ndtype\n(S'%s'\ntRI0\n"
    path = unpickling(tmp_path / "0.npz", b"\x80\x02" + made % kind + elements + b"tb.")
    with pytest.raises(ValueError, match=f"0.npz: damaged .*{line}"):
        read_npz(path, "data")


def test_numbers_are_not_padded_to_the_length_of_a_text() -> None:
    values = [0.0] * 1000 + ["a" * 10**5]  # 400 MB as an array of text
    tracemalloc.start()
    with pytest.raises(ValueError, match="it holds text, not numbers"):
        labels(values, len(values))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2**20


def test_every_way_to_name_a_function_is_closed(tmp_path: Path) -> None:
    for code in (
        b"cos\nsystem\n(S'true'\ntR.",
        b"cposix\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
        b"\x80\x04\x8c\x05numpy\x8c\x08core.os.\x93.",
        b"(S'true'\nios\nsystem\n.",
        b"cnumpy\nload\n.",
        b"\x80\x02\x82\x01.",  # an extension's code
        b"Pname\n.",  # a persistent id
    ):
        path = unpickling(tmp_path / "0.npz", code)
        with pytest.raises(ValueError, match="calls|damaged"):
            read_npz(path, "data")
            pytest.fail(f"{code!r} was run")


def test_files_that_are_missing_are_named(npz: Npz, tmp_path: Path) -> None:
    folder = write_clients(tmp_path / "mine", 3)
    (folder / "test" / "2.npz").unlink()
    with pytest.raises(ValueError, match=r"mine/test/2.npz is missing"):
        npz(folder)
    (folder / "train" / "1.npz").unlink()
    with pytest.raises(ValueError, match=r"mine/train/1.npz is missing"):
        npz(folder)
    for name in ("train/1.npz", "test/2.npz"):
        os.mkfifo(folder / name)
    with pytest.raises(ValueError, match=r"train/1.npz: not a regular file"):
        npz(folder)
    with pytest.raises(ValueError, match=r"train/0.npz is missing"):
        npz(tmp_path)
    with pytest.raises(ValueError, match=r"data set 'npz' needs data\.dir"):
        npz("")
    np.savez(tmp_path / "other.npz", images=1)
    with pytest.raises(ValueError, match=r"other.npz: has no key 'data'; it has images"):
        read_npz(tmp_path / "other.npz", "data")
    np.savez(tmp_path / "plain.npz", data=np.arange(3))
    with pytest.raises(ValueError, match=r"plain.npz: it is no pickled dictionary"):
        read_npz(tmp_path / "plain.npz", "data")


def test_labels_that_skip_numbers_are_numbered_anew_unless_a_client_may_lack_them(
    npz: Npz, tmp_path: Path
) -> None:
    x = np.zeros((12, 1, 8, 8), "float32")
    for part in ("train", "test"):
        write_npz(tmp_path / part / "0.npz", {"x": x, "y": np.arange(1, 4).repeat(4)[:, None]})
    data = npz(tmp_path)
    assert data.classes == ("1", "2", "3") and data.y.tolist() == data.y_test.tolist()
    assert torch.bincount(data.y).tolist() == [4, 4, 4] and len(data.account.notes) == 1
    assert npz(tmp_path, partition="own").classes == ("0", "1", "2", "3")
    (tmp_path / "config.json").write_text('{"num_classes": 6}')
    declared = npz(tmp_path, seed=1)  # classes 0, 4 and 5 have no samples
    assert declared.num_classes == 6 and declared.account.declared and not declared.account.notes
