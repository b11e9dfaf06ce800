"""Data divided: into shares and a public set."""

from collections.abc import Callable

import pytest
import torch

from common.data import divide, load, pool_of, set_aside, shares
from common.data.dataset import fingerprint, fitted
from common.data.embedded import toy
from common.settings.config import Data
from common.settings.parse import defaults, parse


def data(**changes):
    flat = {**defaults(), "data.name": "toy"}
    return parse(flat | {f"data.{k.replace('_', '-')}": v for k, v in changes.items()}).data


@pytest.mark.parametrize("side", [8, 9])
def test_a_folder_of_its_own_is_public_as_a_whole_if_its_images_fit(side, tmp_path):
    from PIL import Image

    for part, size, shade in (("private", 8, 40), ("public", side, 200)):
        for name in ("a", "b"):
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            for i in range(5):
                Image.new("L", (size, size), shade + i).save(folder / f"{i}.png")
    options = data(name="folder", dir=str(tmp_path / "private"))
    away = options.model_copy(update={"public_dir": str(tmp_path / "public")})
    if side != 8:
        line = r"public-dir = .* has images 1×9×9, the data set images 1×8"
        with pytest.raises(ValueError, match=line):
            divide(away, 1)
        return
    divided = divide(away, 1)
    assert divided.pool is load(options)
    assert divided.public is not None and int(divided.public.min()) >= 200


def test_methods_that_distil_ask_for_a_public_set():
    with pytest.raises(ValueError, match=r"method = 'dl-sh' needs a public set: set data\.public"):
        parse({**defaults(), "method": "dl-sh"})


def test_another_data_set_is_brought_to_the_shape_of_the_task():
    options = data(name="toy", public_name="digits", public_samples=50)
    divided = divide(options, 1)
    assert divided.pool is load(options)
    assert divided.public is not None and divided.public.shape == (50, 1, 8, 8)
    assert divided.labels is None, "digits are no classes of the task"
    assert fingerprint(divide(options, 1).public) == fingerprint(divided.public)
    other = divide(options, 2).public
    assert other is not None and fingerprint(other) != fingerprint(divided.public)
    same = divide(data(name="digits", public_name="digits"), 1)
    assert same.labels is not None and torch.equal(same.labels, load(data(name="digits")).y)
    without = divide(data(), 1)
    assert without.pool is load(data()) and without.public is None


def test_who_only_needs_a_share_does_without_the_other_data_set():
    options = data(name="toy", public_name="folder", public_dir="/nowhere")
    assert pool_of(options, 1) is load(options)
    with pytest.raises(ValueError, match="/nowhere"):
        divide(options, 1)
    share = data(public=0.8)
    assert pool_of(share, 1) is divide(share, 1).pool


def test_colour_becomes_grey_and_grey_becomes_colour():
    red, green = (torch.zeros(1, 3, 8, 8, dtype=torch.uint8) for _ in range(2))
    red[:, 0], green[:, 1] = 200, 100
    grey = fitted(torch.cat([red, green]), (1, 4, 6), "it")
    assert grey.shape == (2, 1, 4, 6) and grey.dtype == torch.uint8
    assert grey[0].unique().tolist() == [60] and grey[1].unique().tolist() == [59]
    colour = fitted(grey[:1], (3, 4, 6), "it")
    assert colour.shape == (1, 3, 4, 6) and colour.unique().tolist() == [60]
    assert fitted(grey, (1, 4, 6), "it") is grey


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "digits", "public_name": "points"}, r"data\.public-name = 'points' has float32"),
        ({"public_name": "digits", "public_samples": 5}, "5 samples cannot hold 10 classes"),
        ({"public_name": "nothing"}, r"unknown data\.public-name 'nothing'"),
        ({"public_name": "folder", "public_dir": "/nowhere"}, r"-dir = '/nowhere' is not a folder"),
        ({"public": 0.2, "public_name": "digits"}, r"data\.public = 0\.2 is not allowed with data"),
        ({"public_samples": 9}, r"data\.public-samples = 9 needs data\.public-name or"),
    ],
)
def test_another_data_set_that_does_not_fit_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        divide(data(**settings), 1)


def test_pool_and_public_set_share_the_training_set_and_keep_its_labels():
    dataset = toy()
    pool, public, labels = set_aside(dataset, 0.8, seed=1)
    assert len(public) == len(labels) == 288 and len(pool.x) == len(pool.y) == 72
    images = [tuple(image.flatten().tolist()) for image in torch.cat([pool.x, public])]
    expected = [tuple(image.flatten().tolist()) for image in dataset.x]
    found = zip(images, torch.cat([pool.y, labels]).tolist(), strict=True)
    assert sorted(found) == sorted(zip(expected, dataset.y.tolist(), strict=True))
    assert pool.x_test is dataset.x_test
    assert torch.equal(set_aside(dataset, 0.8, 1)[1], public)
    assert not torch.equal(set_aside(dataset, 0.8, 2)[1], public)
    divided = divide(data(public=0.8), 1)
    assert divided.public.equal(public) and divided.labels.equal(labels)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 0.001])
def test_a_public_set_that_is_empty_or_everything_is_refused(fraction):
    with pytest.raises(ValueError, match="1 to 359 are possible"):
        set_aside(toy(), fraction, 1)


CLIENTS, SEED = 12, 3


def refused(look: Callable[[Data, int, int, int], object], data: Data) -> list[str]:
    """What ``look`` says about each client; empty where it takes it."""
    said = []
    for k in range(CLIENTS):
        try:
            look(data, k, CLIENTS, SEED)
        except ValueError as error:
            said.append(str(error))
        else:
            said.append("")
    return said


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("name", ["iid", "label_dirichlet", "quantity_dirichlet", "iid_draw"])
def test_the_check_refuses_whom_the_share_refuses(name: str, fraction: float) -> None:
    settings = {"name": "toy", "samples": 90, "partition": name, "min_size": 0, "alpha": 0.3}
    data = Data.model_validate({**settings, "test_fraction": fraction}, by_name=True)
    said = refused(shares.check_share, data)
    assert said == refused(shares.share, data)
    assert any(said) or fraction < 0.9


def test_a_share_that_is_large_enough_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "share", lambda *given: pytest.fail("drawn"))
    data = Data.model_validate({"name": "toy", "samples": 90, "partition": "iid"}, by_name=True)
    assert refused(shares.check_share, data) == [""] * CLIENTS
