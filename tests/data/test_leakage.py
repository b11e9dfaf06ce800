"""No test image is public: neither the server's nor a client's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from common.data import divide, load
from common.data.dataset import image_digests
from common.data.published import FASHION_MNIST
from common.data.shares import check_public_tests, share
from common.settings.config import Data
from deploy.run.preflight import preflight
from server_app.stopped import Stopped
from tests.support.data_files import write_npz
from tests.support.tiny import flat, play, under

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
def test_the_runs_own_data_set_is_no_public_set(method: dict[str, str], tmp_path: Path) -> None:
    settings = {**method, "clients": 2, "data__public_name": "toy"}
    line = "data.public-name = 'toy' is not allowed: 12 of the 12 test images of client 0 are in"
    with pytest.raises(ValueError, match=line) as refused:
        preflight(flat(tmp_path, **settings))
    assert str(refused.value).endswith(REMEDY) and "\n" not in str(refused.value)
    preflight(flat(tmp_path, method="fedavg", clients=2, data__public_name="toy"))  # reads none


def test_the_census_refuses_a_public_set_with_a_clients_test_images(tmp_path: Path) -> None:
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


def test_a_share_of_the_training_set_is_disjoint(options: Options, tmp_path: Path) -> None:
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
