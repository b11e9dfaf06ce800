"""FedKTL: losses, frame and generator by hand, local training at its edge, files of generators."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from client_app.methods.fedktl import FedKTL
from client_app.participant import Participant
from common import seeds
from common.losses.transfer import arcface, mmd
from common.methods.fedktl import Request
from common.models import stylegan
from common.models.simplex import Simplex, simplex
from common.models.stylegan import StyleGAN
from common.parse import parse
from common.techniques.class_table import TableReply
from server_app.method import Replies
from tests.support.halves import client, server
from tests.support.tiny import Run, flat
from tests.support.weights import own_models, same

KTL: dict[str, Any] = {"method": "fedktl", "fedktl__server_epochs": 5, "train__clip": 5.0}


def half(folder: Path, **changes: Any) -> FedKTL:
    settings = flat(folder, **{**KTL, **changes})
    return FedKTL(Participant(parse(settings), {"partition-id": 0}, "test"))


def any_simplex(classes: int) -> Tensor:
    return simplex(classes, torch.Generator().manual_seed(3))


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_directions_have_equal_angles(classes: int) -> None:
    gram = any_simplex(classes) @ any_simplex(classes).T
    expected = torch.full((classes, classes), -1 / (classes - 1))
    torch.testing.assert_close(gram, expected.fill_diagonal_(1.0), rtol=0, atol=1e-6)


def test_the_angular_loss_and_the_discrepancy_of_samples_by_hand() -> None:
    """A true cosine of 1 becomes cos 0.5: 56.165 of 64."""
    cosines, y = torch.tensor([[1.0, -0.5, -0.5]]), torch.tensor([0])
    value = float(arcface(cosines, y, 64.0, 0.5))
    assert value == pytest.approx(math.log(1 + 2 * math.exp(-32 - 56.165)), abs=1e-6)
    low = torch.tensor([[0.0, 0.6]])
    expected = math.log(1 + math.exp(2 * (0.6 + math.sin(0.5))))
    assert float(arcface(low, torch.tensor([0]), 2.0, 0.5)) == pytest.approx(expected, abs=1e-6)
    plain = F.cross_entropy(3 * cosines, y)
    torch.testing.assert_close(arcface(cosines, y, 3.0, 0.0), plain)
    for true in (1.0, -1.0):
        edge = torch.tensor([[true, 0.0]], requires_grad=True)
        arcface(edge, torch.tensor([0]), 64.0, 0.5).backward()
        assert edge.grad is not None and bool(edge.grad.isfinite().all())
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    assert float(mmd(x, x.clone())) == pytest.approx(0.0, abs=1e-6)
    far = mmd(torch.zeros(1, 1), torch.tensor([[math.sqrt(20)]]))
    assert float(far) == pytest.approx(3.3869, abs=1e-4)


def test_the_class_is_that_of_the_nearest_direction() -> None:
    directions, net = any_simplex(3), nn.Identity()
    net.spec, net.head = "x", nn.Linear(3, 3)
    cosines = Simplex(net, directions)(7 * directions)  # type: ignore[arg-type]
    assert cosines.argmax(1).tolist() == [0, 1, 2]
    assert cosines.diagonal().tolist() == pytest.approx([1.0] * 3, abs=1e-5)


def test_the_loss_of_generated_images_by_hand(tmp_path: Path) -> None:
    ours = half(tmp_path, fedktl__mu=3.0)
    p, net = ours.participant, ours.local(1).eval()
    x, y = next(iter(p.task.in_order(*p.train_set)))
    projection, v = nn.Linear(net.head.in_features, 2), torch.ones(3, 2)
    value = ours.loss(net, projection)(x, y, x[:3], v)
    apart = (projection(net.features(x[:3])) - 1).square().mean()
    torch.testing.assert_close(value, ours.loss(net)(x, y) + 3 * apart)


def test_a_reply_has_normalised_means_of_the_trained_models_projections(tmp_path: Path) -> None:
    ours = half(tmp_path, data__partition="pathological", data__classes_per_client=2)
    p = ours.participant
    images = torch.randint(0, 256, (3, *p.task.shape), dtype=torch.uint8)
    reply = ours.train(Request(images=images, vectors=torch.ones(3, 4), t=2))
    net = ours.local(3).eval()
    x, labels = next(iter(p.task.in_order(*p.train_set)))
    z = F.normalize(net(x)).detach()
    for c, count in enumerate(reply.counts.tolist()):
        assert count == int(p.counts[c] > 0)
        expected = F.normalize(z[labels == c].mean(0), dim=0) if count else torch.zeros(3)
        torch.testing.assert_close(reply.table[c], expected, rtol=0, atol=1e-5)
    assert sorted(reply.counts.tolist()) == [0, 1, 1]


def test_a_client_scores_by_angle(played: Run) -> None:
    run = played(**KTL)
    for k, score in enumerate(run.journal[-1]["scores"]):
        p = Participant(parse(flat(run.folder / "other", **KTL)), {"partition-id": k}, "test")
        net = p.model(p.spec, own_models(run, 2)[k])
        directions = simplex(3, seeds.stream(p.task.seed, "init", "simplex"))
        assert score["accuracy"] == p.score(Simplex(net, directions))


def replies(*tables: list[int]) -> Replies[TableReply]:
    """Return replies with the directions of the listed classes."""
    counts = [torch.tensor([int(c in classes) for c in range(3)]) for classes in tables]
    sent = [TableReply(table=any_simplex(3) * n[:, None], counts=n) for n in counts]
    return Replies.of([(client(k), reply) for k, reply in enumerate(sent)])


def test_the_servers_round() -> None:
    method = server(**{**KTL, "fedktl__server_epochs": 60})
    first = method.request(1)
    assert first.images is None and first.vectors is None
    before = method.vectors.clone()
    losses = [method.step(t, replies([0, 1], [0]))["server_loss"] for t in (1, 2)]
    assert losses[1] < losses[0]
    request = method.request(3)
    assert request.images.shape == (3, *method.task.shape) and request.images.dtype == torch.uint8
    assert torch.equal(request.vectors[2], before[2]), "nobody has sent class 2"
    assert not torch.equal(request.vectors[:2], before[:2])
    images = method.generator.pixels(request.vectors, method.size)
    assert torch.equal(request.images, images)
    assert len({tuple(image.flatten().tolist()) for image in images}) == 3
    assert method.state().images is request.images


@pytest.mark.parametrize(("epochs", "rows"), [(5, [[1]]), (0, [[0, 1], [2]])])
def test_a_single_row_and_no_epochs_train_nothing(epochs: int, rows: list[list[int]]) -> None:
    method = server(**{**KTL, "fedktl__server_epochs": epochs})
    weights = method.transformer
    assert method.step(1, replies(*rows)) == {} and method.images is not None
    assert same(method.transformer, weights)


def test_a_row_of_another_length_is_refused() -> None:
    method, good = server(**KTL), TableReply(table=torch.eye(3), counts=torch.ones(3).long())
    sender = client(classes=[0, 1, 2])
    method.check(sender, good)
    table = torch.eye(3)
    table[1] *= 1.1
    with pytest.raises(ValueError, match=r"its row of class 1 has the length 1\.1, not 1"):
        method.check(sender, good.model_copy(update={"table": table}))


def generator(channels: int = 1) -> StyleGAN:
    with seeds.scope(5, "test"):
        return StyleGAN(channels, 6, 5, 4, 3)


@pytest.mark.parametrize("size", [(8, 8), (4, 4), (5, 28), (32, 32)])
def test_an_untrained_generator_fills_the_image(size: tuple[int, int]) -> None:
    with seeds.scope(5, "test"):
        net = stylegan.untrained(3, size)
    levels = {8: 2, 4: 1, 28: 4, 32: 4}[max(size)]
    assert len(net.levels) == levels
    v = net.mapping(torch.randn(4, net.latent))
    side = stylegan.FIRST * 2 ** (levels - 1)
    assert net.synthesis(v).shape == (4, 3, side, side) and side >= max(size)
    images = net.pixels(v, size)
    assert images.shape == (4, 3, *size) and len(images.unique()) > 20
    assert not torch.equal(images[0], images[1])


def test_the_server_uses_the_generator_of_a_file(tmp_path: Path) -> None:
    net = generator()
    save_file(net.state_dict(), file := tmp_path / "net.safetensors")
    method = server(**KTL, fedktl__generator=str(file))
    assert method.vectors.shape == (3, 5)
    v = torch.randn(2, 5, generator=torch.Generator().manual_seed(2))
    assert torch.equal(method.generator.synthesis(v), net.synthesis(v))
    method.step(1, replies([0, 1, 2]))
    assert torch.equal(method.request(2).images, net.pixels(method.vectors, (8, 8)))


FILES: dict[str, Any] = {
    "No such file": None,
    "is damaged or no safetensors": b"\x80\x04 a pickle",
    "is no StyleGAN for 1 channels: it has 0 levels": lambda: {"w": torch.ones(2)},
    "it lacks 'layers.0.weight'": lambda: {"levels.0.weight": torch.ones(2)},
    r"'levels.0.colour' is float32\[3, 4, 1, 1\], expected float32\[1, 4, 1, 1\]": (
        lambda: generator(3).state_dict()
    ),
    "'const' has values that are not fin": lambda: with_const(torch.full((1, 4, 4, 4), math.nan)),
    "it has shapes": lambda: with_const(torch.ones(4)),
}
"""Contents of files by what is said of them."""


def with_const(const: Tensor) -> dict[str, Tensor]:
    return {**generator().state_dict(), "const": const}


@pytest.mark.parametrize("line", FILES)
def test_a_file_that_is_no_generator_is_one_line(line: str, tmp_path: Path) -> None:
    content, file = FILES[line], tmp_path / "net.safetensors"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content:
        save_file(content(), file)
    with pytest.raises(ValueError, match=line) as refused:
        server(**KTL, fedktl__generator=str(file))
    text = str(refused.value)
    assert text.startswith(f"fedktl.generator = '{file}'") and "\n" not in text
