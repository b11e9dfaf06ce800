"""FedSSA and LG-FedAvg: heads that travel, by hand, at their edges, and in scores."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import client_app.methods
import server_app.methods
from client_app.participant import Participant, upload
from common.exchange import tree
from common.exchange.protocol import ModelReply
from common.exchange.records import StateDict
from common.methods import lg_fedavg
from common.methods.fedssa import Options, fuse, row, rows
from common.models.classifier import Classifier
from common.parse import parse
from server_app.method import Replies
from tests.support.halves import client, server
from tests.support.tiny import Run, flat, play
from tests.support.weights import own_models, same

SSA: dict[str, Any] = {"method": "fedssa", "feature_dim": 16}
UNEVEN = {"data__partition": "label_dirichlet", "data__alpha": 0.3, "data__min_size": 4}


def head(*values: list[float]) -> nn.Linear:
    """Return a head whose rows are ``values``: the weights of a class, and its bias."""
    made, table = nn.Linear(len(values[0]) - 1, len(values)), torch.tensor(values)
    made.load_state_dict({"weight": table[:, :-1], "bias": table[:, -1]})
    return made


def test_fused_rows_by_hand_and_the_falling_weight_of_the_own_ones() -> None:
    for T, weights in (
        (2, {1: 0.5, 2: 0.353553, 3: 0.0, 4: 0.0}),
        (45, {1: 0.5, 16: 0.433013, 31: 0.25, 46: 0.0}),
        (0, {1: 0.0, 2: 0.0}),
    ):
        options = Options(fusion_rounds=T)
        assert {t: options.mu_at(t) for t in weights} == pytest.approx(weights, abs=1e-6)
    received = {row(c): torch.ones(3) for c in range(2)}
    for t, expected in ((1, 2.0), (2, 1.707107), (3, 1.0)):
        own = head([2.0, 2.0, 2.0], [7.0, 8.0, 9.0])
        fuse(own, received, [0], Options().mu_at(t))
        fused = rows(own, [0, 1])
        assert fused["class 0"].tolist() == pytest.approx([expected] * 3, abs=1e-6)
        assert fused["class 1"].tolist() == [7, 8, 9], "a row of a class that it does not hold"


def reply(**given: Tensor) -> ModelReply:
    return ModelReply(w={name.replace("_", " "): value for name, value in given.items()})


def stepped(*sent: tuple[int, dict[int, float]], **settings: Any) -> list[float]:
    """Return a number of each row after a step with clients' (samples, number by class)."""
    method = server(**SSA, **settings)
    method.head = {row(c): torch.zeros(17) for c in range(3)}
    clients = [client(k, n=n, classes=[*rows]) for k, (n, rows) in enumerate(sent)]
    states = [{row(c): torch.full((17,), x) for c, x in rows.items()} for _, rows in sent]
    method.step(1, Replies.of([(c, ModelReply(w=w)) for c, w in zip(clients, states, strict=True)]))
    assert all(len(value.unique()) == 1 for value in method.head.values())
    return [float(value[0]) for value in method.head.values()]


def test_the_servers_rows_are_means_over_the_holders_and_changes_are_measured() -> None:
    assert stepped((30, {0: 1.0, 1: 5.0}), (10, {0: 3.0})) == [2.0, 5.0, 0.0], "equal weights"
    three = [(30, {0: 1.0}), (10, {0: 3.0}), (20, {0: 9.0})]
    by_samples = stepped(*three, average__weights="samples")[0]
    assert by_samples == pytest.approx((30 + 3 * 10 + 9 * 20) / 60)
    assert stepped(*three, average__robust="median")[0] == 3.0
    method = server(**SSA)
    sent, row_0 = method.request(1), method.head["class 0"]
    ((name, step),) = method.change(sent, reply(class_0=row_0 + 2))
    assert name == "class 0" and step.tolist() == pytest.approx([2.0] * 17, abs=1e-6)


def test_with_stale_the_mean_has_the_last_rows_of_every_client() -> None:
    method, one = server(**SSA, fedssa__stale=True), torch.ones(17)
    method.head = {row(c): 0 * one for c in range(3)}
    clients = [client(k, classes=classes) for k, classes in enumerate(([0], [0, 1], [0, 2]))]
    method.begin(clients)
    method.step(1, Replies.of([(clients[0], reply(class_0=6 * one))]))
    assert [float(method.head[row(c)][0]) for c in range(3)] == [2.0, 0.0, 0.0]
    method.restore(dict(method.state()))
    method.step(2, Replies.of([(clients[1], reply(class_0=3 * one, class_1=4 * one))]))
    assert [float(method.head[row(c)][0]) for c in range(3)] == [3.0, 4.0, 0.0]


def test_rows_grow_while_their_own_weight_is_positive() -> None:
    """Without training, from a common h: 1.5 · 1.353553 · 1 = 2.030330 after three rounds."""
    method, options = server(**SSA), Options()
    h = torch.linspace(-1, 1, 3 * 17).reshape(3, 17)
    heads = [head(*h.tolist()) for _ in range(2)]
    method.head = rows(heads[0], range(3))
    clients = [client(k) for k in range(2)]
    for t in (1, 2, 3):
        for own in heads:
            fuse(own, method.request(t).w, range(3), options.mu_at(t))
        sent = [ModelReply(w=rows(own, range(3))) for own in heads]
        method.step(t, Replies.of(list(zip(clients, sent, strict=True))))
    expected = 1.5 * (1 + 0.5 * math.cos(math.pi / 4)) * h
    assert expected[0, 0] == pytest.approx(-2.030330)
    torch.testing.assert_close(torch.stack([*method.head.values()]), expected)


def test_without_own_rows_and_with_all_classes_everywhere_it_is_lg_fedavg(played: Run) -> None:
    common = {"feature_dim": 16, "rounds": 3}
    ours = played(**common, method="fedssa", fedssa__mu=0.0)
    theirs = played(**common, method="lg-fedavg", average__weights="uniform")
    assert all(n for one in ours.journal[0]["clients"] for n in one["counts"])
    for t in (1, 2, 3):
        assert same(own_models(ours, t), own_models(theirs, t))
        assert ours.journal[t]["client_metrics"] == theirs.journal[t]["client_metrics"]
    fused = played(**common, method="fedssa")
    assert not same(own_models(fused, 1), own_models(ours, 1))


def test_rows_of_other_classes_stay_as_they_are(played: Run) -> None:
    run = played(**SSA, **UNEVEN, rounds=1, train__lr=1e-9)
    (k, counts), *_ = ((c["k"], c["counts"]) for c in run.journal[0]["clients"] if 0 in c["counts"])
    config = parse(flat(run.folder / "other", **SSA, **UNEVEN))
    p = Participant(config, {"partition-id": k}, "test")
    first, after = p.model(p.spec).head.weight, own_models(run, 1)[k]["head.weight"]
    for c, n in enumerate(counts):
        assert torch.allclose(first[c], after[c], atol=1e-6) == (n == 0)


LG: dict[str, Any] = {"method": "lg-fedavg", "feature_dim": 16}
SIZES = {"data__partition": "quantity_dirichlet", "data__alpha": 1.0}


def test_one_client_whose_first_head_the_server_has_trains_locally(tmp_path: Path) -> None:
    config = parse(flat(tmp_path, fleet="cnn2@0.25"))
    first = Participant(config, {"partition-id": 0}, "test").model("cnn2@0.25")
    save_file(upload(first), file := tmp_path / "first.safetensors")
    given = {"fleet": "cnn2@0.25", "clients": 1, "weights": str(file)}
    lg, local = (play(flat(tmp_path / m, method=m, **given)) for m in ("lg-fedavg", "local"))
    assert same(own_models(lg, 2)[0], own_models(local, 2)[0])
    assert lg.journal[2]["client_metrics"] == local.journal[2]["client_metrics"]


def test_it_is_fedavg_if_all_layers_are_shared(tmp_path, played, monkeypatch) -> None:
    given = {"fleet": "cnn2@0.25", **SIZES}
    fedavg = played(method="fedavg", **given)
    head = play(flat(tmp_path / "head", method="lg-fedavg", **given))
    assert head.model.keys() == {"weight", "bias"}

    def with_all(self: Any, t: int, w: StateDict) -> Classifier:
        net: Classifier = self.local(t)
        net.load_state_dict(w)
        return net

    def train(self: Any, request: Any) -> Any:
        net = self.with_head(request.t, request.w).train()
        metrics = self.learn(request.t, net)
        self.keep(request.t, net)
        return lg_fedavg.Reply(metrics=metrics, w=upload(net))

    half = client_app.methods.half("lg-fedavg")
    monkeypatch.setattr(half, "with_head", with_all)
    monkeypatch.setattr(half, "train", train)
    sent = server_app.methods.half("lg-fedavg")
    monkeypatch.setattr(sent, "parts", lambda self, net: tree.snapshot(net))
    everything = play(flat(tmp_path / "all", method="lg-fedavg", **given))
    assert same(everything.model, fedavg.model)


def test_the_head_is_the_mean_by_samples(played: Run) -> None:
    run = played(**LG, **SIZES)
    sizes = [client["n"] for client in run.journal[0]["clients"]]
    assert len(set(sizes)) > 1
    heads = [own_models(run, 2)[k]["head.weight"].double() for k in range(4)]
    mean = sum(n * head for n, head in zip(sizes, heads, strict=True)) / sum(sizes)
    torch.testing.assert_close(run.model["weight"], mean.float(), rtol=0, atol=1e-7)
