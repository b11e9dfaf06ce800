"""FedL2G: the meta step by hand and by full differentiation, and local training at its edge."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from client_app.methods.fedl2g import FedL2G, meta_gradient
from client_app.participant import Participant
from common.models.classifier import Classifier
from common.parse import parse
from common.techniques.class_table import TableReply, TableRequest
from server_app.method import Replies
from tests.support.halves import client, server
from tests.support.tiny import Run, flat
from tests.support.weights import own_models

L2G: dict[str, Any] = {"method": "fedl2g", "fedl2g__warm_up": 1, "train__batch_size": 8}
FEATURES = {**L2G, "fedl2g__guide": "features", "feature_dim": 16}


def half(folder: Path, **changes: Any) -> FedL2G:
    settings = flat(folder, **{**L2G, **changes})
    return FedL2G(Participant(parse(settings), {"partition-id": 0}, "test"))


class Weights(Classifier):
    """Network whose weights are its logits, for every image."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def features(self, x: Tensor) -> Tensor:
        return self.w.expand(len(x), -1)

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)


def test_the_meta_step_by_hand() -> None:
    """w = (0, 0), y = 0, v_0 = (1, −1), η = 0.1: w' = (0.15, −0.15)."""
    net, v = Weights(), torch.tensor([[1.0, -1.0], [5.0, 5.0]])
    x, y = torch.ones(1, 1), torch.tensor([0])

    def loss(net: Classifier, v: Tensor) -> Any:
        return lambda x, y: F.cross_entropy(net(x), y) + F.mse_loss(net(x), v[y])

    g = meta_gradient(net, loss, v, (x, y), (x, y), 0.1)
    torch.testing.assert_close(g, torch.tensor([[-0.04256, 0.04256], [0, 0]]), rtol=0, atol=1e-5)
    assert net.w.tolist() == [0, 0] and net.w.grad is None


@pytest.mark.parametrize("settings", [L2G, FEATURES], ids=["logits", "features"])
@pytest.mark.parametrize("fleet", ["mlp@0.25", "cnn2@0.25"])
def test_the_meta_step_is_the_derivative_through_one_step(fleet, settings, tmp_path) -> None:
    """Networks with BatchNorm, by a graph through the whole step."""
    ours = half(tmp_path, **settings, fleet=fleet)
    p, net = ours.participant, ours.local(1).train()
    x, y = p.train_set
    (batch,) = p.task.batches(x, y, "any").take(1)
    (quiz,) = p.task.in_order(x[:8], y[:8])
    width = 3 if settings is L2G else 16
    v = torch.randn(3, width, generator=torch.Generator().manual_seed(1)).requires_grad_()
    names, theta = zip(*net.named_parameters(), strict=True)
    slopes = torch.autograd.grad(ours.loss(net, v)(*batch), theta, create_graph=True)
    moved = {n: w - 0.3 * g for n, w, g in zip(names, theta, slopes, strict=True)}
    after = F.cross_entropy(functional_call(net, moved, quiz[0]), quiz[1])
    (expected,) = torch.autograd.grad(after, v)
    before = [w.detach().clone() for w in theta]
    g = meta_gradient(net, ours.loss, v.detach(), batch, quiz, 0.3)
    assert float(expected.abs().max()) > 1e-4
    torch.testing.assert_close(g, expected, rtol=1e-4, atol=1e-7)
    assert all(torch.equal(a, b) for a, b in zip(before, theta, strict=True))


@pytest.mark.parametrize("shuffle", [True, False])
def test_skipped_samples_have_no_part_in_training(shuffle: bool, tmp_path: Path) -> None:
    p = half(tmp_path, train__shuffle=shuffle, train__epochs=2).participant
    x, _ = p.train_set
    seen: list[Tensor] = []
    weight = nn.Parameter(torch.zeros(()))

    def loss(images: Tensor, y: Tensor) -> Tensor:
        seen.append(images)
        return weight.square()

    p.train(1, [weight], loss, skip=8)
    (rest,) = p.task.in_order(x[8:], size=len(x))
    rows = [tuple(row.tolist()) for row in torch.cat(seen).flatten(1)]
    assert sorted(rows) == sorted(2 * [tuple(row.tolist()) for row in rest[0].flatten(1)])


def test_in_the_warm_up_no_client_trains_and_the_vectors_learn(played: Run) -> None:
    run = played(**L2G, rounds=2)
    assert [len(own_models(run, t)) for t in (1, 2)] == [0, 4]
    assert "loss" not in run.journal[1]["client_metrics"]
    assert run.journal[1]["metrics"]["gradient_norm"] > 0


def test_a_reply_has_the_rows_of_the_batchs_classes(tmp_path: Path) -> None:
    two = {"data__partition": "pathological", "data__classes_per_client": 2}
    ours = half(tmp_path, rounds=6, fedl2g__warm_up=5, **two)
    reply = ours.train(TableRequest(rows=torch.ones(3, 3), present=torch.ones(3).bool(), t=1))
    has = torch.tensor(ours.participant.counts) > 0
    assert reply.counts.tolist() == has.long().tolist() and 0 < int(has.sum()) < 3
    assert reply.table.any(1).tolist() == has.tolist()


@pytest.mark.parametrize("clip", [100.0, 0.5])
def test_the_servers_step_by_hand(clip: float) -> None:
    """Two clients with class 0, one with class 1: the mean's rows are 3 at class 0, −4 at 1."""
    method = server(**L2G, fedl2g__server_clip=clip)
    method.begin([client(k) for k in range(2)])
    method.rows = torch.zeros(3, 3)
    tables = [[[2.0, 0, 0], [0, 0, 0], [0, 0, 0]], [[4.0, 0, 0], [0, 0, -4.0], [0, 0, 0]]]
    sent = [
        TableReply(table=torch.tensor(x), counts=torch.tensor(counts))
        for x, counts in zip(tables, ([1, 0, 0], [1, 1, 0]), strict=True)
    ]
    metrics = method.step(1, Replies.of([(client(k), reply) for k, reply in enumerate(sent)]))
    assert metrics == {"present": 2.0, "gradient_norm": 5.0}
    step = -0.1 * min(1.0, clip / 5.0) * torch.tensor([[3.0, 0, 0], [0, 0, -4.0], [0, 0, 0]])
    torch.testing.assert_close(method.rows, step)


def test_the_first_vectors_are_normal_and_their_rate_depends_on_the_guide() -> None:
    for settings, width, rate in ((L2G, 3, 0.1), (FEATURES, 16, 100.0)):
        method = server(**settings)
        method.begin([client(k, model="cnn2@0.5") for k in range(2)])
        request = method.request(1)
        assert request.rows.shape == (3, width) and request.present.all()
        assert 0.5 < float(request.rows.std()) < 1.5
        assert method.options.rate == rate
    assert server(**L2G, fedl2g__server_lr=7.0).options.rate == 7


def test_a_client_whose_quiz_set_takes_all_of_its_samples_is_refused(tmp_path: Path) -> None:
    for size in (24, 23):
        with pytest.raises(ValueError, match=f"client 0 has 24 samples: its quiz set takes {size}"):
            half(tmp_path, train__batch_size=size).admit()
    half(tmp_path, train__batch_size=22).admit()
