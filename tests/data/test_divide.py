"""Data divided: shares, a public set without test images, and validation samples."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from common.data import divide, load, pool_of, set_aside, shares
from common.data.dataset import fingerprint, fitted, image_digests
from common.data.embedded import toy
from common.data.overview import clients_of, overview
from common.data.partition import PARTITIONS
from common.data.published import FASHION_MNIST
from common.data.shares import check_public_tests, check_share, for_testing, share
from common.parse import defaults, parse
from common.settings.config import Data
from deploy.run.preflight import preflight
from server_app.stopped import Stopped
from tests.support.data_files import write_npz
from tests.support.tiny import flat, play, under


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


def test_another_data_set_is_brought_to_the_shape_and_colours_of_the_task():
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
    red, green = (torch.zeros(1, 3, 8, 8, dtype=torch.uint8) for _ in range(2))
    red[:, 0], green[:, 1] = 200, 100
    grey = fitted(torch.cat([red, green]), (1, 4, 6), "it")
    assert grey.shape == (2, 1, 4, 6) and grey.dtype == torch.uint8
    assert grey[0].unique().tolist() == [60] and grey[1].unique().tolist() == [59]
    colour = fitted(grey[:1], (3, 4, 6), "it")
    assert colour.shape == (1, 3, 4, 6) and colour.unique().tolist() == [60]
    assert fitted(grey, (1, 4, 6), "it") is grey


def test_who_only_needs_a_share_does_without_the_other_data_set():
    options = data(name="toy", public_name="folder", public_dir="/nowhere")
    assert pool_of(options, 1) is load(options)
    with pytest.raises(ValueError, match="/nowhere"):
        divide(options, 1)
    share = data(public=0.8)
    assert pool_of(share, 1) is divide(share, 1).pool


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
def test_the_check_refuses_whom_the_share_refuses(name, fraction) -> None:
    settings = {"name": "toy", "samples": 90, "partition": name, "min_size": 0, "alpha": 0.3}
    data = Data.model_validate({**settings, "test_fraction": fraction}, by_name=True)
    said = refused(shares.check_share, data)
    assert said == refused(shares.share, data)
    assert any(said) or fraction < 0.9


def test_a_share_that_is_large_enough_is_not_drawn(monkeypatch) -> None:
    monkeypatch.setattr(shares, "share", lambda *given: pytest.fail("drawn"))
    data = Data.model_validate({"name": "toy", "samples": 90, "partition": "iid"}, by_name=True)
    assert refused(shares.check_share, data) == [""] * CLIENTS


BASE = {"name": "digits", "partition": "label_dirichlet", "samples": 600}


@pytest.mark.parametrize("test", ["split", "merge"])
def test_validation_samples_are_training_samples_and_the_server_scores_on_all_of_them(test) -> None:
    plain = Data(**BASE, test=test)
    held = plain.model_copy(update={"validation": 0.25})
    scored = held.model_copy(update={"score_on": "validation"})
    for k in range(4):
        whole, rest, validation = (share(data, k, 4, 1) for data in (plain, held, scored))
        assert torch.equal(whole.test, rest.test) and torch.equal(rest.train, validation.train)
        parts = torch.cat([rest.train, validation.test])
        assert torch.equal(parts.sort().values, whole.train)
        assert len(validation.test) == len(whole.train) - int(0.75 * len(whole.train))
    data = Data(**BASE, test=test, validation=0.25, score_on="validation")
    rows = torch.cat([share(data, k, 4, 1).test for k in range(4)]).sort().values
    scored, pool = for_testing(data, 4, 1), pool_of(data, 1)
    assert torch.equal(scored.x_test, pool.x[rows]) and torch.equal(scored.y_test, pool.y[rows])
    tested = for_testing(data.model_copy(update={"score_on": "test"}), 4, 1)
    if test == "split":
        assert torch.equal(tested.x_test, load(data).x_test)


def test_samples_of_two_clients_are_no_validation_samples_of_the_server() -> None:
    data = Data(**BASE | {"partition": "niid3"}, validation=0.25, score_on="validation")
    trained = torch.cat([share(data, k, 5, 1).train for k in range(5)])
    own = torch.cat([share(data, k, 5, 1).test for k in range(5)]).unique()
    alone = own[~torch.isin(own, trained)]
    assert 0 < len(alone) < len(own)
    assert torch.equal(for_testing(data, 5, 1).y_test, pool_of(data, 1).y[alone])


def test_impossible_values_are_refused() -> None:
    for changes, line in (
        ({"score_on": "validation"}, 'data.score-on = "validation" needs a data.validation above'),
        ({"score_on": "validation", "validation": 0.1, "partition": "own"}, "has no validation"),
    ):
        with pytest.raises(ValueError, match=line):
            Data(**{**BASE, **changes}).check()
    few = Data(**BASE | {"partition": "iid"}, validation=0.99)
    with pytest.raises(ValueError, match="client 0 has 1 training .* or a smaller data.validation"):
        check_share(few, 0, 4, 1)
    with pytest.raises(ValueError, match='data.score-on = "validation" needs clients'):
        for_testing(Data(**BASE, validation=0.1, score_on="validation"), 0, 1)


Options = Callable[..., Data]
SMALL: dict[str, Any] = {"method": "fedmd", "rounds": 1, "train__epochs": 1, "clients": 2}
SMALL |= {"fedmd__first_epochs": 1, "data__public_name": "toy"}
REMEDY = "choose another data set, or a share of the training set with data.public"


def test_equal_images_have_equal_digests_whatever_their_numbers() -> None:
    draw = np.random.default_rng(0)
    images = torch.from_numpy(draw.integers(0, 256, (9, 3, 4, 4), dtype=np.uint8))
    digests = image_digests(images)
    assert len(set(digests)) == 9
    assert image_digests(images.float()) == digests
    assert image_digests(images.float() / 255) == digests
    odd = torch.cat([images.float() / 255, torch.full((1, 3, 4, 4), -7.3)])
    assert image_digests(odd)[:9] == digests, "each image by itself"
    points = torch.randn(5, 3, 4, 4)
    assert image_digests(points) == image_digests(points.clone())
    assert not set(image_digests(points)) & set(image_digests(points + 1e-6))
    assert image_digests(torch.zeros(1, 1, 2, 2)) == image_digests(-torch.zeros(1, 1, 2, 2))
    assert image_digests(images[:0]) == []


@pytest.mark.parametrize(
    "method",
    [{"method": name} for name in ("fedmd", "dl-sh", "feddf")]
    + [{"method": "fedavg", "average__robust": "fltrust"}],
    ids=str,
)
def test_the_runs_own_data_set_is_no_public_set(method, tmp_path) -> None:
    settings = {**method, "clients": 2, "data__public_name": "toy"}
    line = "data.public-name = 'toy' is not allowed: 12 of the 12 test images of client 0 are in"
    with pytest.raises(ValueError, match=line) as refused:
        preflight(flat(tmp_path, **settings))
    assert str(refused.value).endswith(REMEDY) and "\n" not in str(refused.value)
    preflight(flat(tmp_path, method="fedavg", clients=2, data__public_name="toy"))  # reads none


def test_the_census_refuses_a_public_set_with_a_clients_test_images(tmp_path) -> None:
    line = "census: node 1 answered: client 0: .*-name = 'toy' is not allowed: 12 of the 12"
    with pytest.raises(Stopped, match=line):
        play(flat(tmp_path, **SMALL))
    line = "data.public-name = 'toy' is not allowed: 12 of the 12 test images of client 0"
    with pytest.raises(Stopped, match=line):  # its clients have no public set
        play(flat(tmp_path / "server", **SMALL | {"method": "feddf"}))
    trusting = {"clients": 2, "data__public_name": "toy", "average__robust": "fltrust"}
    with pytest.raises(Stopped, match=line):
        play(flat(tmp_path / "fltrust", method="fedavg", **trusting))


def test_single_test_images_of_the_server_and_of_clients_with_own_data(options, tmp_path) -> None:
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (30, 1, 8, 8), dtype=np.uint8)

    def write_parts(folder: Path, train: np.ndarray, test: np.ndarray) -> None:
        for part, pixels in (("train", train), ("test", test)):
            data = {"x": pixels.astype(np.float32) / 255, "y": np.arange(len(pixels)) % 2}
            write_npz(folder / part / "0.npz", data)

    for name, rows in (("server", x[:12]), ("0", x[12:20]), ("1", x[20:28])):
        write_parts(tmp_path / "own" / name, 255 - rows, rows)
    own = {"clients": 2, "fleet": "mlp@0.25", "data__dir": str(tmp_path / "own" / "{k}")}
    own |= {"data__name": "npz", "data__partition": "own", "data__test": "own", "method": "fedmd"}
    own |= {"data__samples": 0, "data__test_samples": 0}

    def public(name: str, images: np.ndarray) -> dict[str, Any]:
        write_parts(tmp_path / name, images, x[28:])
        return {**own, "data__public_dir": str(tmp_path / name)}

    for images, line in (
        (x[3:5], "2 of the 12 test images of the server"),
        (x[21:22], "1 of the 8 test images of client 1"),
    ):
        others = draw.integers(0, 256, (6, 1, 8, 8), dtype=np.uint8)
        settings = public(str(len(images)), np.concatenate([images, others]))
        key = f"data.public-dir = '{settings['data__public_dir']}' is not allowed"
        with pytest.raises(ValueError, match=f"{key}: {line} are in the public set"):
            preflight(flat(tmp_path / "out", **settings))
    training = public("training", 255 - x[20:28])  # a client's training images can be public
    preflight(flat(tmp_path / "out", **training))


def test_a_share_of_the_training_set_is_disjoint(options, tmp_path) -> None:
    names = ["digits", "toy", *["fashion-mnist"] * Path(FASHION_MNIST.system).is_dir()]
    for name in names:
        data = options(name=name, public=0.2, partition="iid")
        public = set(image_digests(divide(data, 1).public))
        assert not public & set(image_digests(load(data).x_test))
        for k in range(2):
            assert not public & set(image_digests(share(data, k, 2, 1).test_set[0]))
        check_public_tests(data, 2, 1)
    # equal images in a folder belong to different parts by their index
    for c, name in enumerate("ab"):
        for part in ("train", "test"):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(8):
                Image.new("L", (6, 6), 100 * c).save(tmp_path / part / name / f"{i}.png")
    same = {"name": "folder", "dir": str(tmp_path), "public": 0.5, "public_name": ""}
    preflight(flat(tmp_path / "out", **SMALL | under("data", **same, samples=0, test_samples=0)))


@pytest.mark.parametrize("name", [n for n in PARTITIONS if not n.startswith(("flwr", "natural"))])
@pytest.mark.parametrize("test", ["split", "merge"])
def test_no_validation_sample_is_a_test_sample_of_any_client(name: str, test: str) -> None:
    settings = {"partition": name, "test": test, "validation": 0.4, "alpha": 5.0}
    if name == "own" and test == "merge":
        return  # each client has a data set of its own
    mine = data(name="digits", **settings)
    clients = 1 if name == "own" else 10

    def parts(settings: Data) -> tuple[set[int], set[int], set[int]]:
        shares = [share(settings, k, clients, 1) for k in range(clients)]
        train, test = ({i for s in shares for i in getattr(s, side).tolist()} for side in SIDES)
        scored = settings.model_copy(update={"score_on": "validation"})
        shares = [share(scored, k, clients, 1) for k in range(clients)]
        return train, test, {i for s in shares for i in s.test.tolist()}

    train, tested, validation = parts(mine)
    assert validation and not validation & tested
    old = parts(mine.model_copy(update={"validation_from": "any"}))
    drawn = name.startswith(("niid", "iid_draw"))
    assert bool(old[2] & old[1]) is drawn
    assert (old == (train, tested, validation)) is not drawn


SIDES = ("train", "test")


def test_clients_that_test_on_one_class_or_on_copies_are_named(tmp_path: Path) -> None:
    x = np.arange(12 * 64, dtype="float32").reshape(12, 1, 8, 8)
    write_npz(tmp_path / "train" / "0.npz", {"x": x, "y": np.arange(12) % 2})
    write_npz(tmp_path / "test" / "0.npz", {"x": x[:3] + 9999, "y": np.arange(3) % 2})
    write_npz(tmp_path / "train" / "1.npz", {"x": x + 99999, "y": np.arange(12) % 2})
    write_npz(tmp_path / "test" / "1.npz", {"x": x[:3] + 99999, "y": np.ones(3, int)})
    mine = data(name="npz", dir=str(tmp_path), partition="natural", test="own")
    found = clients_of(share(mine, k, 2, 1) for k in range(2))
    assert (found.one_class, found.untested, found.copied, found.tested) == ((1,), (), 3, 6)
    assert overview(load(mine)).leaked == 3
