"""FedPer, FedRep and FedBN: what travels, what stays, and what both are computed to be."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from client_app.bases.global_copy import GlobalCopy
from client_app.bases.own_model import ClientState as OwnState
from client_app.bases.partly_shared import ClientState, PartlyShared
from client_app.methods.fedper import FedPer as ClientHalf
from client_app.participant import Participant
from common import models
from common.exchange.protocol import ModelRequest
from common.exchange.records import StateDict
from common.model_file import write
from common.models import Architecture
from common.models.classifier import Classifier
from common.settings.parse import parse
from common.training import tree
from server_app.methods.fedper import FedPer
from tests.support.recorded_calls import record_calls
from tests.support.scalar import kept
from tests.support.tiny import Run, TinyRun, flat
from tests.support.weights import same

HEAD = {"head.weight", "head.bias"}
METHODS = ("fedper", "fedrep", "fedbn")


def private(run: TinyRun, t: int, k: int) -> StateDict:
    """Return what client k kept in round t."""
    return ClientState.load(kept(run.folder, t, k, ClientState.kind)).w


def weights_of(folder: Path, spec: str) -> str:
    """Return a file of initial weights, from which every network of a run starts."""
    net = models.build(spec, (1, 8, 8), 3, seed=7)
    write(folder / "weights.safetensors", tree.snapshot(net))
    return str(folder / "weights.safetensors")


# By hand: z = a·b, the base a, the head b, losses ½ (z − y)² for y = 2 and 0, η = 0.1.


class Product(Classifier):
    """Network with the base a and the head b, both initially 1."""

    def __init__(self, shape: Any, classes: int, factor: float) -> None:
        super().__init__()
        self.classes, self.a = classes, nn.Parameter(torch.ones(1))
        self.head = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.head.weight)

    def features(self, x: Tensor) -> Tensor:
        return self.a.expand(len(x), 1)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(self.features(x))
        return z.expand(-1, self.classes)


def by_hand(run: Run, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> TinyRun:
    def loss(self: GlobalCopy[Any, Any], request: Any, net: Classifier) -> Any:
        y = (2.0, 0.0)[self.participant.k]
        return lambda x, _: 0.5 * (net(x)[0, 0] - y).square()

    row = Architecture(Product, 2, "a test", (1, 8, 8), {"own": 1})
    monkeypatch.setitem(models.MODELS, "product", row)
    monkeypatch.setattr(GlobalCopy, "loss", loss)
    one_batch = {"train__batch_size": 1000, "train__epochs": 1, "train__momentum": 0.0}
    return run(clients=2, fleet="product", train__lr=0.1, **one_batch, **changes)


@pytest.mark.parametrize(
    ("settings", "heads", "bases"),
    [
        ({"method": "fedper"}, (1.1, 0.9), 1.0),
        ({"method": "fedper", "rounds": 2}, (1.19, 0.81), 1.009),
        ({"method": "fedper", "rounds": 2, "fedper__personal": 0}, (), 1.0),
        ({"method": "fedrep", **{"fedrep__head_epochs": 2, "fedrep__body_epochs": 1}}, 0, 1.01539),
    ],
    ids=["one round", "two rounds", "FedAvg", "FedRep"],
)
def test_base_and_heads_by_hand(
    settings: dict[str, Any], heads: Any, bases: float, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = by_hand(run, monkeypatch, **{"rounds": 1, **settings})
    assert float(played.model["a"]) == pytest.approx(bases, abs=1e-5)
    if heads == ():
        assert float(played.model["head.weight"]) == pytest.approx(1, abs=1e-5)
        return
    t = settings.get("rounds", 1)
    found = [float(private(played, t, k)["head.weight"]) for k in (0, 1)]
    assert found == pytest.approx(heads or (1.19, 0.81), abs=1e-5)


def test_statistics_of_batchnorm_by_hand(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Normed(Product):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.second = nn.BatchNorm1d(1)  # a name without "bn"

    def loss(self: GlobalCopy[Any, Any], request: Any, net: Any) -> Any:
        values = ((1.0, 3.0), (10.0, 14.0))[self.participant.k]
        return lambda x, y: 0 * (net.second(torch.tensor(values)[:, None]) + net(x)[0]).sum()

    row = Architecture(Normed, 4, "a test", (1, 8, 8), {"own": 1})
    monkeypatch.setitem(models.MODELS, "normed", row)
    monkeypatch.setattr(GlobalCopy, "loss", loss)
    settings = {"clients": 2, "rounds": 1, "fleet": "normed", "train__steps": 1}
    played = run(method="fedbn", **settings)
    assert played.model.keys() == {"a", "head.weight"}
    # momentum .1, unbiased variances 2 and 8
    for k, (mean, variance) in enumerate([(0.2, 1.1), (1.2, 1.7)]):
        own = private(played, 1, k)
        assert float(own["second.running_mean"]) == pytest.approx(mean)
        assert float(own["second.running_var"]) == pytest.approx(variance)
        assert int(own["second.num_batches_tracked"]) == 1
    by_name = run(method="fedbn", fedbn__by_name=True, **settings).model
    fedavg = run(method="fedavg", **settings).model
    for found in (by_name, fedavg):
        assert float(found["second.running_mean"]) == pytest.approx(0.7)
        assert float(found["second.running_var"]) == pytest.approx(1.4)


# Reductions, bit for bit.

UNEVEN = {"data__partition": "quantity_dirichlet", "data__alpha": 1.0, "rounds": 3, "per_round": 3}


@pytest.mark.parametrize(
    ("settings", "fedavg"),
    [
        ({"method": "fedper", "fedper__personal": 0}, {}),
        ({"method": "fedbn", "fleet": "lenet5@0.5"}, {"average__weights": "uniform"}),
    ],
    ids=["FedPer that shares everything", "FedBN without BatchNorm"],
)
@pytest.mark.parametrize("across", ["none", "same"])
def test_with_everything_shared_it_is_fedavg(
    settings: dict[str, Any], fedavg: dict[str, Any], across: str, run: Run
) -> None:
    # no confusions among the scores, which FedAvg's clients do not send either
    ours = {**UNEVEN, "average__across": across, "share_counts": False, **settings}
    theirs = {**ours, **fedavg, "method": "fedavg"}
    mine, plain = run(**ours), run(**theirs)
    assert mine.weights == plain.weights
    assert [e["bytes"]["arrays_up"] for e in mine.journal[1:]] == [
        e["bytes"]["arrays_up"] for e in plain.journal[1:]
    ]
    scores = {s["k"]: s["accuracy_global"] for s in plain.journal[-1]["scores"]}
    assert {s["k"]: s["accuracy"] for s in mine.journal[-1]["scores"]} == scores


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "fedper", "fedper__personal": 9},
        {"method": "fedbn", "clients": 1, "per_round": 1},
        {"method": "fedper", "clients": 1, "per_round": 1},
    ],
    ids=["nothing shared", "FedBN, one client", "FedPer, one client"],
)
def test_without_exchange_it_is_local_training(
    settings: dict[str, Any], run: Run, tmp_path: Path
) -> None:
    file = {"fleet": "mlp@0.25", "weights": weights_of(tmp_path, "mlp@0.25")}
    settings = {**UNEVEN, **file, **settings}
    ours, theirs = (run(**{**settings, **local}) for local in ({}, {"method": "local"}))
    last = {k: t for t, entry in enumerate(ours.journal) for k in entry.get("replied", ())}
    assert len(last) == len(ours.summary["clients"])
    for k, t in last.items():
        local = OwnState.load(kept(theirs.folder, t, k, OwnState.kind)).local
        assert same({**ours.model, **private(ours, t, k)}, local)
    assert ours.journal[-1]["scores"] == theirs.journal[-1]["scores"]


# What travels and what stays.


@pytest.mark.parametrize("method", METHODS)
def test_the_private_part_never_leaves_and_costs_no_bytes(
    method: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = record_calls(monkeypatch, FedPer, "check", lambda _, __, client, reply: reply.w)
    settings = {"fleet": "cnn2@0.5", "rounds": 1, "share_counts": False}
    played, fedavg = run(method=method, **settings), run(method="fedavg", **settings)
    whole = fedavg.model
    own = {n for n in whole if "bn." in n} if method == "fedbn" else HEAD
    assert len(sent) == 4 and all(w.keys() == whole.keys() - own for w in sent)
    assert played.model.keys() == whole.keys() - own
    assert all(private(played, 1, k).keys() == own for k in range(4))
    size = sum(whole[name].nbytes for name in own)
    ours, theirs = played.journal[1]["bytes"], fedavg.journal[1]["bytes"]
    assert theirs["arrays_up"] - ours["arrays_up"] == 4 * size
    # two messages down to each client: for training and for the scores after the last round
    assert theirs["arrays_down"] - ours["arrays_down"] == 2 * 4 * size


def test_statistics_of_the_base_stay_if_they_are_not_shared(run: Run) -> None:
    settings = {"method": "fedper", "rounds": 2, "fleet": "cnn2@0.5"}
    played = run(**settings, fedper__share_statistics=False)
    buffers = {name for name in played.model if "running" in name or "tracked" in name}
    assert not buffers and {"stem.bn.running_mean", *HEAD} <= private(played, 2, 0).keys()
    means = [private(played, 2, k)["stem.bn.running_mean"] for k in (0, 1)]
    assert not torch.equal(*means)


@pytest.mark.parametrize("method", METHODS)
def test_every_client_scores_the_newest_shared_part_also_before_it_has_trained(
    method: str, run: Run
) -> None:
    played = run(method=method, rounds=1, per_round=1, average__across="same")
    assert len(played.journal[1]["replied"]) == 1
    scores = played.journal[1]["scores"]
    assert [s["k"] for s in scores] == [0, 1, 2, 3]
    assert all(s["accuracy"] is not None and s["accuracy_global"] is None for s in scores)
    assert played.summary["accuracy"] is None and played.journal[1].get("accuracy") is None


def test_a_request_with_other_entries_is_refused_by_the_client(tmp_path: Path) -> None:
    config = parse(flat(tmp_path, method="fedper"))
    p = Participant(config, {"partition-id": 0, "num-partitions": 4}, "e")
    half, whole = ClientHalf(p), tree.snapshot(p.model(p.global_spec))
    base = {name: w for name, w in whole.items() if name not in HEAD}
    assert half.completed(1, base).spec == p.global_spec
    for w in (whole, {}, {**base, "x": torch.zeros(1)}):
        with pytest.raises(ValueError, match="w has other entries than the shared part"):
            half.train(ModelRequest(w=w, t=1))


def test_a_network_without_batchnorm_is_announced(run: Run) -> None:
    notes = run(method="fedbn", fleet="lenet5@0.5,mlp@0.25", average__across="same", rounds=1)
    (note,) = notes.journal[0]["notes"]
    assert note == "lenet5@0.5 has no BatchNorm that fedbn could keep: everything is averaged"
    assert "notes" not in run(method="fedbn", rounds=1).journal[0]


# FedRep's phases.


def phases(monkeypatch: pytest.MonkeyPatch) -> list[tuple[StateDict, StateDict]]:
    """Record the weights before and after each training, client by client."""
    pairs = list[tuple[StateDict, StateDict]]()
    real = Participant.train

    def train(self: Participant, *given: Any, **named: Any) -> Any:
        net = nets[-1]
        before = tree.snapshot(net)
        metrics = real(self, *given, **named)
        pairs.append((before, tree.snapshot(net)))
        return metrics

    nets = record_calls(monkeypatch, PartlyShared, "completed")
    monkeypatch.setattr(Participant, "train", train)
    return pairs


@pytest.mark.parametrize("frozen", [False, True])
def test_each_phase_leaves_the_other_part_as_it_is(
    frozen: bool, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = phases(monkeypatch)
    epochs = {"fedrep__head_epochs": 1, "fedrep__body_epochs": 1}
    more = {"train__weight_decay": 0.1, "fedrep__freeze_statistics": frozen}
    run(method="fedrep", fleet="cnn2@0.5", rounds=1, **epochs, **more)
    assert len(pairs) == 8
    for i, (before, after) in enumerate(pairs):
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        statistics = {name for name in before if "running" in name or "tracked" in name}
        if i % 2:
            assert moved == before.keys() - HEAD
        else:
            assert moved == (HEAD if frozen else HEAD | statistics)


def test_a_phase_of_no_epochs_moves_nothing(run: Run, tmp_path: Path) -> None:
    file = weights_of(tmp_path, "mlp@0.25")
    settings = {"method": "fedrep", "fleet": "mlp@0.25", "weights": file, "rounds": 2}
    first = tree.snapshot(models.build("mlp@0.25", (1, 8, 8), 3, seed=7))
    heads = run(**settings, fedrep__body_epochs=0, fedrep__freeze_statistics=True)
    assert same(heads.model, {n: w for n, w in first.items() if n not in HEAD})
    bodies = run(**settings, fedrep__head_epochs=0)
    for k in range(4):
        assert same(private(bodies, 2, k), {name: first[name] for name in sorted(HEAD)})
        assert not same(private(heads, 2, k), {name: first[name] for name in sorted(HEAD)})
