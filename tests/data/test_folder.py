"""Image folders: of one data set, and of several clients."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from common.data import decoded, load, set_aside
from common.data.folder import load_folder
from common.data.overview import overview
from common.data.shares import share
from common.settings.config import Data


def picture(path: Path, value: int = 0, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode != "RGB" else (value, 0, 255)).save(path)


def tree(root: Path, *, parts: tuple[str, ...] = ("train", "test"), n: int = 3, **more) -> Path:
    for p, part in enumerate(parts):
        for c, name in enumerate(("cat", "dog")):
            for i in range(n):
                picture(root / part / name / f"{i}.png", 100 * p + 10 * c + i, **more)
    return root


def test_train_and_test_folders_are_the_parts_and_class_folders_alone_are_cut(options, tmp_path):
    dataset = load_folder(options(name="folder", dir=str(tree(tmp_path / "pets"))))
    assert (dataset.name, dataset.classes, dataset.shape) == ("pets", ("cat", "dog"), (3, 8, 8))
    assert dataset.x[:, 0, 0, 0].tolist() == [0, 1, 2, 10, 11, 12]
    assert dataset.x[0, :, 5, 5].tolist() == [0, 0, 255]
    assert dataset.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.x_test[:, 0, 0, 0].tolist() == [100, 101, 102, 110, 111, 112]
    assert dataset.mean[2] == 1.0 and dataset.std[2] == 1.0  # a constant channel
    root = tree(tmp_path / "classes", parts=(".",), n=10)
    dataset = load_folder(options(name="folder", dir=str(root)))
    assert torch.bincount(dataset.y).tolist() == [8, 8]
    assert torch.bincount(dataset.y_test).tolist() == [2, 2]
    seen = torch.cat([dataset.x, dataset.x_test])[:, 0, 0, 0]
    assert sorted(seen.tolist()) == [*range(10), *range(10, 20)]
    again = load_folder(options(name="folder", dir=str(root)))
    assert torch.equal(dataset.x, again.x)


def test_valid_becomes_the_public_or_the_test_set_and_annotations_are_followed(options, tmp_path):
    root = tree(tmp_path / "cinic", parts=("train", "test", "valid"))
    dataset = load_folder(options(name="folder", dir=str(root)))
    assert dataset.x_public[:, 0, 0, 0].tolist() == [200, 201, 202, 210, 211, 212]
    pool, public, _ = set_aside(dataset, 0.5, seed=1)
    assert len(pool.x) == 6 and len(public) == 3 and int(public.max()) >= 200
    root = tree(tmp_path / "pets", parts=("train", "val"))
    dataset = load_folder(options(name="folder", dir=str(root)))
    assert dataset.x_public is None and int(dataset.x_test[0, 0, 0, 0]) == 100
    root = tmp_path / "tiny"
    for c, name in enumerate(("n01", "n02")):
        picture(root / "train" / name / "images" / f"{name}_0.png", c)
    for i in range(3):
        picture(root / "val" / "images" / f"val_{i}.png", 50 + i)
    lines = [f"val_{i}.png\t{name}\t0\t0\t62\t62" for i, name in enumerate(("n02", "n01", "n02"))]
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines))
    picture(root / "test" / "images" / "test_0.png", 9)
    dataset = load_folder(options(name="folder", dir=str(root)))
    assert dataset.classes == ("n01", "n02") and dataset.x[:, 0, 0, 0].tolist() == [0, 1]
    assert dataset.y_test.tolist() == [1, 0, 1]
    assert dataset.x_test[:, 0, 0, 0].tolist() == [50, 51, 52]


def test_grey_images_keep_one_channel_and_a_single_coloured_one_makes_all_rgb(options, tmp_path):
    root = tree(tmp_path / "pets", mode="L")
    assert load_folder(options(name="folder", dir=str(root))).shape == (1, 8, 8)
    picture(root / "test" / "dog" / "9.png", 7)
    assert load_folder(options(name="folder", dir=str(root))).shape == (3, 8, 8)


def test_images_are_decoded_once_and_again_when_the_folder_changes(options, tmp_path, monkeypatch):
    calls = []
    decode = decoded.cached

    def counted(root, paths, size, make, kind=""):
        return decode(root, paths, size, lambda: (calls.append(size), make())[1], kind)

    monkeypatch.setattr(decoded, "cached", counted)
    root = tree(tmp_path / "pets")
    data = options(name="folder", dir=str(root))
    first, second = load_folder(data), load_folder(data)
    assert calls == [0] and torch.equal(first.x, second.x)
    picture(root / "train" / "cat" / "0.png", 77)
    os.utime(root / "train" / "cat" / "0.png", ns=(1, 1))
    assert int(load_folder(data).x[0, 0, 0, 0]) == 77
    load_folder(options(name="folder", dir=str(root), image_size=4))
    assert calls == [0, 0, 4]
    (tmp_path / ".pets-0.safetensors").write_bytes(b"half a file")
    assert len(load_folder(data).x) == 6 and calls == [0, 0, 4, 0]
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".pets-0.safetensors", ".pets-4.safetensors", "pets"]


@pytest.mark.parametrize("anywhere", [True, False])
def test_the_copy_goes_to_the_users_cache_where_the_folder_cannot_be_written(
    anywhere, options, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tree(tmp_path / "pets")
    (tmp_path / ".pets-0.safetensors").mkdir()  # stands in the way, also for a superuser
    if not anywhere:
        (tmp_path / "cache").write_text("a file, not a folder")
    assert len(load_folder(options(name="folder", dir=str(root))).x) == 6
    copies = list((tmp_path / "cache").glob("fedmosaic/folders/*"))
    assert [path.suffix for path in copies] == [".safetensors"] * anywhere
    assert not list(tmp_path.glob("*.tmp")) and not list(tmp_path.glob(".*.tmp"))


def test_images_of_different_sizes_need_an_image_size(options, tmp_path):
    root = tree(tmp_path / "pets")
    picture(root / "train" / "dog" / "wide.png", 1, size=(9, 8))
    with pytest.raises(ValueError, match=r"wide.png is 9×8, .* is 8×8\): set data.image-size"):
        load_folder(options(name="folder", dir=str(root)))
    assert load(options(name="folder", dir=str(root), image_size=6)).shape == (3, 6, 6)


def truncated_image(root: Path) -> None:
    noise = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    path = root / "train" / "cat" / "bad.png"
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:120])


def listening(root: Path) -> None:
    here = os.getcwd()
    os.chdir(root / "train" / "dog")  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket.png")
    finally:
        os.chdir(here)


def annotated_pipe(root: Path) -> None:
    shutil.rmtree(root / "test")
    (root / "val" / "images").mkdir(parents=True)
    os.mkfifo(root / "val" / "images" / "0.png")
    (root / "val" / "val_annotations.txt").write_text("0.png\tcat\n")


def annotated_outside(root: Path) -> None:
    annotated_pipe(root)
    picture(root.parent / "secret.png")
    (root / "val" / "val_annotations.txt").write_text("../../../secret.png\tcat\n")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: (r / "train/cat/bad.jpg").write_bytes(b"no image"), "bad.jpg: not a readable"),
        (truncated_image, "bad.png: not a readable image"),
        (
            lambda r: Image.fromarray(np.zeros((8, 8), np.uint16)).save(r / "test/cat/bad.png"),
            "bad.png: not a readable image .more than 8 bits",
        ),
        (lambda r: os.mkfifo(r / "train/cat/pipe.png"), "pipe.png: not a regular file"),
        (lambda r: (r / "test/dog/zero.png").symlink_to("/dev/zero"), "zero.png: not a regular"),
        (listening, "socket.png: not a regular file"),
        (annotated_pipe, "0.png: not a regular file"),
        (annotated_outside, "secret.png is outside of .*; only files inside are read"),
        (lambda r: picture(r / "test/emu/0.png"), "class 'emu' has no training folder"),
        (lambda r: (r / "test").rename(r / "exam"), "neither test nor valid"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_in_one_line(options, tmp_path, spoil, message):
    root = tree(tmp_path / "pets")
    spoil(root)
    with pytest.raises(ValueError, match=message) as refusal:
        load_folder(options(name="folder", dir=str(root)))
    assert "\n" not in str(refusal.value)


def test_a_class_without_images_is_for_a_clients_own_folder_only(options, tmp_path):
    root = tree(tmp_path / "pets")
    (root / "train" / "emu").mkdir()
    with pytest.raises(ValueError, match="class 'emu' has no samples"):
        load(options(name="folder", dir=str(root)))
    own = load(options(name="folder", dir=str(root), partition="own"))
    assert own.classes == ("cat", "dog", "emu") and torch.bincount(own.y).tolist() == [3, 3]
    for picture_file in (root / "train").rglob("*.png"):
        picture_file.unlink()
    with pytest.raises(ValueError, match="train: no images"):
        load_folder(options(name="folder", dir=str(root), partition="own"))


@pytest.mark.parametrize(
    ("name", "folder", "line"),
    [
        ("folder", "", r"needs data\.dir"),
        ("folder", "nowhere", "is not a folder"),
        ("folder", "pets/train", "1 class folders, at least 2"),
        ("client-folders", "empty", "no client's folder in it"),
        ("client-folders", "pets", "pets/train: 'train' is a part of a data set, not a client"),
    ],
)
def test_a_folder_that_is_none_is_refused(options, tmp_path, name, folder, line):
    (tmp_path / "empty").mkdir()
    picture(tmp_path / "pets" / "train" / "cat" / "0.png")
    with pytest.raises(ValueError, match=line):
        load(options(name=name, dir=str(tmp_path / folder) if folder else ""))


Options = Callable[..., Data]


def paint(folder: Path, images: int, shade: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(images):
        Image.new("L", (6, 6), shade + i).save(folder / f"{i}.png")


def hospitals(root: Path) -> Path:
    """Two clients with folders of classes alone, one with train and test; no one has all."""
    paint(root / "h2" / "cat", 5, 0)
    paint(root / "h2" / "dog", 10, 20)
    paint(root / "h10" / "dog", 5, 40)
    paint(root / "h1" / "train" / "cat", 3, 60)
    paint(root / "h1" / "train" / "emu", 4, 80)
    paint(root / "h1" / "test" / "emu", 2, 100)
    return root


def test_each_folder_is_an_owners(options: Options, tmp_path: Path) -> None:
    data = load(options(name="client-folders", dir=str(hospitals(tmp_path / "h"))))
    assert data.classes == ("cat", "dog", "emu") and data.shape == (1, 6, 6)
    assert torch.bincount(data.owner).tolist() == [7, 12, 4]  # h1, h2, h10
    assert torch.bincount(data.owner_test).tolist() == [2, 3, 1]
    assert data.x_test[data.owner_test == 0, 0, 0, 0].tolist() == [100, 101]
    assert data.y[data.owner == 2].tolist() == [1] * 4
    own = options(name="client-folders", dir=str(tmp_path / "h"), partition="natural", test="own")
    assert [len(share(own, k, 3, 1).test) for k in range(3)] == [2, 3, 1]
    again = load(options(name="client-folders", dir=str(tmp_path / "h"), image_size=4))
    assert again.shape == (1, 4, 4) and again.y.equal(data.y)
    # the same folder read as classes has a decoded copy of its own
    assert load(options(name="folder", dir=str(tmp_path / "h" / "h1"))).classes == ("cat", "emu")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".h-clients-0.safetensors", ".h-clients-4.safetensors", "h"]


def with_half_an_image(root: Path) -> None:
    path = root / "h10" / "dog" / "0.png"
    path.write_bytes(path.read_bytes()[:40])


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda r: (r / "h1/test").rename(r / "h1/exam"), "h1: there is a train folder, but no"),
        (lambda r: (r / "h3/cat").mkdir(parents=True), "h3: no images"),
        (lambda r: paint(r / "h1/test/gnu", 1, 0), "h1/test/gnu: class 'gnu' has no training"),
        (with_half_an_image, "h10/dog/0.png: not a readable image"),
    ],
)
def test_what_is_wrong_with_a_clients_folder_is_one_line(options, tmp_path, spoil, line) -> None:
    spoil(hospitals(tmp_path / "h"))
    with pytest.raises(ValueError, match=line) as refused:
        load(options(name="client-folders", dir=str(tmp_path / "h")))
    assert "\n" not in str(refused.value)


def test_a_digest_is_of_the_content_of_one_folder(options, tmp_path):
    root, elsewhere = tree(tmp_path / "pets"), tmp_path / "elsewhere" / "animals"
    with pytest.raises(ValueError, match=r"has other content than data.digest = '\?'") as refusal:
        load(options(name="folder", dir=str(root), digest="?"))
    digest = str(refusal.value).split()[-1]
    shutil.copytree(root, elsewhere)
    (elsewhere / ".DS_Store").write_text("left out")
    for place in (root, elsewhere):
        data = options(name="folder", dir=str(place), digest=digest)
        assert torch.equal(load(data).x, load(data.model_copy(update={"digest": ""})).x)
    os.rename(elsewhere / "train" / "cat" / "0.png", elsewhere / "train" / "cat" / "9.png")
    with pytest.raises(ValueError, match=f"content than data.digest = '{digest}': its digest is"):
        load(options(name="folder", dir=str(elsewhere), digest=digest, seed=1))
    picture(root / "train" / "dog" / "2.png", 13)
    with pytest.raises(ValueError, match=f"content than data.digest = '{digest}': its digest is"):
        load(options(name="folder", dir=str(root), digest=digest, seed=1))
    with pytest.raises(ValueError, match="data.digest = 'a' needs one folder, and data.dir is"):
        Data(digest="a").check()
    with pytest.raises(ValueError, match="one folder, and data.partition = 'own' has several"):
        Data(digest="a", dir="x", partition="own").check()


@pytest.mark.parametrize(
    "names", [("Training", "Testing"), ("TRAIN", "val"), ("train", "Validation")]
)
def test_parts_have_several_names_in_any_case(options, tmp_path, names):
    root = tree(tmp_path / "pets", parts=names)
    dataset = load_folder(options(name="folder", dir=str(root)))
    assert dataset.classes == ("cat", "dog") and dataset.x_public is None
    assert (len(dataset.y), int(dataset.x_test[0, 0, 0, 0])) == (6, 100)
    clients = tmp_path / "clients"
    for client in ("a", "b"):
        shutil.copytree(root, clients / client)
    owned = load(options(name="client-folders", dir=str(clients)))
    assert owned.classes == ("cat", "dog") and owned.account.owners == ("a", "b")
    shutil.copytree(root / names[0], root / "training" / "more")
    if names[0] != "Training":
        with pytest.raises(ValueError, match="training: .* is the same part; keep one of them"):
            load_folder(options(name="folder", dir=str(root)))


@pytest.mark.parametrize(
    ("name", "folders", "line"),
    [
        (
            "folder",
            ("north/ill", "north/well", "south/ill", "south/well"),
            "'client-folders' reads",
        ),
        (
            "folder",
            ("ill/train", "ill/test", "well/train", "well/test"),
            "put them above the class",
        ),
        ("folder", ("Testing/ill", "Testing/well", "val/ill"), "there is 'Testing' but no folder"),
        ("client-folders", ("Train/ill", "test/ill", "test/well"), "set data.name to 'folder'"),
        (
            "client-folders",
            ("a/x/ill", "a/x/well", "a/y/ill", "a/y/well"),
            "so they are no classes",
        ),
    ],
)
def test_a_layout_that_looks_like_another_is_refused(options, tmp_path, name, folders, line):
    for folder in folders:
        picture(tmp_path / folder / "0.png")
    with pytest.raises(ValueError, match=line) as refused:
        load(options(name=name, dir=str(tmp_path)))
    assert "\n" not in str(refused.value)


def test_files_of_one_frame_are_read_and_the_others_are_counted(options, tmp_path):
    root = tree(tmp_path / "pets", n=2, mode="L", parts=("train", "test"))
    for suffix in ("tif", "GIF", "jfif"):
        picture(root / "train" / "fox" / f"0.{suffix}", 200, mode="L")
    frames = [Image.new("L", (8, 8), value) for value in (1, 99)]
    for suffix in ("tiff", "gif"):
        path = root / "train" / "cat" / f"many.{suffix}"
        frames[0].save(path, save_all=True, append_images=frames[1:])
    (root / "train" / "cat" / "Thumbs.db").write_text("")
    (root / "train" / "cat" / ".hidden.txt").write_text("")
    dataset = load_folder(options(name="folder", dir=str(root)))
    assert torch.bincount(dataset.y).tolist() == [2, 2, 3] and dataset.shape == (1, 8, 8)
    assert dataset.account.images == {"8×8 L": 11}
    assert {suffix: n for suffix, (n, _) in dataset.account.ignored.items()} == {
        ".tiff": 1,
        ".gif": 1,
        ".db": 1,
    }
    rows = dict(overview(dataset).rows())
    assert "fox (3 + 0)" in rows["classes"] and "1 of .db (train/cat/Thumbs.db)" in rows["not read"]
    with pytest.raises(ValueError, match="class 'fox' has no samples"):
        stored = options(name="folder", dir=str(root), images="stored")
        shutil.move(root / "train" / "fox" / "0.jfif", root / "train" / "fox" / "0.tif")
        load(stored)


@pytest.mark.parametrize("form", ["jpg", "png", "tif", "webp"])
def test_photos_are_turned_upright_unless_they_are_read_as_stored(options, tmp_path, form):
    upright = np.zeros((8, 16), np.uint8)  # bright at the top
    upright[:4] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # a viewer turns it by 90 degrees, clockwise
    for part in ("train", "test"):
        for c, name in enumerate(("cat", "dog")):
            path = tmp_path / "pets" / part / name / f"0.{form}"
            path.parent.mkdir(parents=True)
            image = Image.fromarray(255 - upright if c else upright)
            image.transpose(Image.Transpose.ROTATE_90).save(path, exif=exif.tobytes())
    data = options(name="folder", dir=str(tmp_path / "pets"))
    dataset = load_folder(data)
    assert dataset.shape[1:] == (8, 16) and next(iter(dataset.account.images)).startswith("16×8 ")
    assert bool((dataset.x[0, 0, :3] > 200).all()) and bool((dataset.x[0, 0, 5:] < 50).all())
    if form != "tif":  # it is not read then
        stored = load_folder(data.model_copy(update={"images": "stored"}))
        assert stored.shape[1:] == (16, 8)
        assert torch.equal(stored.x.rot90(-1, (2, 3)), dataset.x)
