"""FedPer, FedRep, FedBN and Ditto: what travels, what stays, and what both are computed to be."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from client_app.bases.global_copy import GlobalCopy
from client_app.bases.partly_shared import ClientState, PartlyShared
from client_app.methods.ditto import ClientState as DittoState
from client_app.methods.fedper import FedPer as ClientHalf
from client_app.participant import Participant
from common import models
from common.exchange import tree
from common.exchange.model_file import write
from common.exchange.protocol import ModelRequest
from common.exchange.records import StateDict
from common.models import Architecture
from common.models.classifier import Classifier
from common.parse import parse
from server_app.methods.fedper import FedPer
from tests.support.recorded_calls import record_calls
from tests.support.scalar import PLAIN, descend, result
from tests.support.tiny import Run, TinyRun, flat
from tests.support.weights import own_models, same

HEAD = {"head.weight", "head.bias"}
METHODS = ("fedper", "fedrep", "fedbn")


def private(run: TinyRun, t: int) -> list[StateDict]:
    """Return what each client kept in round t."""
    return own_models(run, t, ClientState, "w")


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


def network(
    monkeypatch: pytest.MonkeyPatch, name: str, kind: type[Classifier], size: int, loss: Any
) -> None:
    """Add an architecture with ``size`` parameters, and let every client minimise ``loss``."""
    row = Architecture(kind, size, "a test", (1, 8, 8), {"own": 1})
    monkeypatch.setitem(models.MODELS, name, row)
    monkeypatch.setattr(GlobalCopy, "loss", loss)


def by_hand(run: Run, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> TinyRun:
    def loss(self: GlobalCopy[Any, Any], request: Any, net: Classifier) -> Any:
        y = (2.0, 0.0)[self.participant.k]
        return lambda x, _: 0.5 * (net(x)[0, 0] - y).square()

    network(monkeypatch, "product", Product, 2, loss)
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
def test_base_and_heads_by_hand(settings, heads, bases, run, monkeypatch) -> None:
    played = by_hand(run, monkeypatch, **{"rounds": 1, **settings})
    assert float(played.model["a"]) == pytest.approx(bases, abs=1e-5)
    if heads == ():
        assert float(played.model["head.weight"]) == pytest.approx(1, abs=1e-5)
        return
    t = settings.get("rounds", 1)
    found = [float(private(played, t)[k]["head.weight"]) for k in (0, 1)]
    assert found == pytest.approx(heads or (1.19, 0.81), abs=1e-5)


def test_statistics_of_batchnorm_by_hand(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Normed(Product):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.second = nn.BatchNorm1d(1)  # a name without "bn"

    def loss(self: GlobalCopy[Any, Any], request: Any, net: Any) -> Any:
        values = ((1.0, 3.0), (10.0, 14.0))[self.participant.k]
        return lambda x, y: 0 * (net.second(torch.tensor(values)[:, None]) + net(x)[0]).sum()

    network(monkeypatch, "normed", Normed, 4, loss)
    settings = {"clients": 2, "rounds": 1, "fleet": "normed", "train__steps": 1}
    played = run(method="fedbn", **settings)
    assert played.model.keys() == {"a", "head.weight"}
    # momentum .1, unbiased variances 2 and 8
    for k, (mean, variance) in enumerate([(0.2, 1.1), (1.2, 1.7)]):
        own = private(played, 1)[k]
        assert float(own["second.running_mean"]) == pytest.approx(mean)
        assert float(own["second.running_var"]) == pytest.approx(variance)
        assert int(own["second.num_batches_tracked"]) == 1
    by_name = run(method="fedbn", fedbn__by_name=True, **settings).model
    fedavg = run(method="fedavg", **settings).model
    for found in (by_name, fedavg):
        assert float(found["second.running_mean"]) == pytest.approx(0.7)
        assert float(found["second.running_var"]) == pytest.approx(1.4)


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
def test_with_everything_shared_it_is_fedavg(settings, fedavg, across, run) -> None:
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
def test_without_exchange_it_is_local_training(settings, run, tmp_path) -> None:
    file = {"fleet": "mlp@0.25", "weights": weights_of(tmp_path, "mlp@0.25")}
    settings = {**UNEVEN, **file, **settings}
    ours, theirs = (run(**{**settings, **local}) for local in ({}, {"method": "local"}))
    assert same([{**ours.model, **w} for w in private(ours, 3)], own_models(theirs, 3))
    assert ours.journal[-1]["scores"] == theirs.journal[-1]["scores"]


@pytest.mark.parametrize("method", METHODS)
def test_the_private_part_never_leaves(method, run, monkeypatch) -> None:
    sent = record_calls(monkeypatch, FedPer, "check", lambda _, __, client, reply: reply.w)
    played = run(method=method, fleet="cnn2@0.5", rounds=1)
    whole = played.model.keys() | private(played, 1)[0].keys()
    own = {n for n in whole if "bn." in n} if method == "fedbn" else HEAD
    assert len(sent) == 4 and all(w.keys() == whole - own for w in sent)
    assert played.model.keys() == whole - own
    assert all(held.keys() == own for held in private(played, 1))


def test_statistics_of_the_base_stay_if_they_are_not_shared(run: Run) -> None:
    settings = {"method": "fedper", "rounds": 2, "fleet": "cnn2@0.5"}
    played = run(**settings, fedper__share_statistics=False)
    assert not {name for name in played.model if "running" in name or "tracked" in name}
    held = private(played, 2)
    assert {"stem.bn.running_mean", *HEAD} <= held[0].keys()
    assert not torch.equal(*(own["stem.bn.running_mean"] for own in held[:2]))


@pytest.mark.parametrize("method", METHODS)
def test_every_client_scores_the_newest_shared_part_also_before_it_has_trained(method, run) -> None:
    played = run(method=method, rounds=1, per_round=1, average__across="same")
    entry = played.journal[1]
    assert len(entry["replied"]) == 1 and [s["k"] for s in entry["scores"]] == [0, 1, 2, 3]
    accuracies = [(s["accuracy"] is None, s["accuracy_global"] is None) for s in entry["scores"]]
    assert accuracies == [(False, True)] * 4 and entry.get("accuracy") is None


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


def phases(monkeypatch: pytest.MonkeyPatch) -> list[tuple[StateDict, StateDict]]:
    """Record the weights before and after each training, client by client."""
    pairs, real = list[tuple[StateDict, StateDict]](), Participant.train

    def train(self: Participant, *given: Any, **named: Any) -> Any:
        before = tree.snapshot(nets[-1])
        metrics = real(self, *given, **named)
        pairs.append((before, tree.snapshot(nets[-1])))
        return metrics

    nets = record_calls(monkeypatch, PartlyShared, "completed")
    monkeypatch.setattr(Participant, "train", train)
    return pairs


@pytest.mark.parametrize("frozen", [False, True])
def test_each_phase_leaves_the_other_part_as_it_is(frozen, run, monkeypatch) -> None:
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
    head = {name: first[name] for name in HEAD}
    heads = run(**settings, fedrep__body_epochs=0, fedrep__freeze_statistics=True)
    assert same(heads.model, {n: w for n, w in first.items() if n not in HEAD})
    bodies = run(**settings, fedrep__head_epochs=0)
    assert same(private(bodies, 2), [head] * 4)
    assert not any(same(own, head) for own in private(heads, 2))


HAND = {"method": "ditto", "clients": 2, **PLAIN}


def personal(run: TinyRun, t: int) -> list[StateDict]:
    """Return the clients' v_k of round t."""
    return own_models(run, t, DittoState, "v")


@pytest.mark.parametrize(
    ("strength", "first", "second"),
    [
        (0.0, (0.0, 0.0, 0.0), (0.76, 1.3756, 1.874236)),
        (0.1, None, (0.756, 1.36201, 1.847847)),
        (1.0, (0.0, 0.0684, 0.16758), (0.72, 1.2492, 1.643292)),
    ],
)
def test_three_rounds_by_hand(strength, first, second, run, monkeypatch) -> None:
    # f_k = ½ (w − a_k)², a = (0, 4), η = 0.1, two steps: w is FedAvg's for every λ.
    descend(monkeypatch, (0.0, 4.0))
    played = run(**HAND, rounds=3, ditto__lambda_prox=strength)
    assert result(played) == pytest.approx(0.937118, abs=1e-6)
    for k, expected in enumerate((first, second)):
        found = [float(personal(played, t)[k]["w"]) for t in (1, 2, 3)]
        assert expected is None or found == pytest.approx(expected, abs=1e-5)


def test_more_epochs_move_the_personal_model_only(run: Run) -> None:
    runs = [run(method="ditto", rounds=2, ditto__epochs=n) for n in (0, 1, 2, 3)]
    assert len({one.weights for one in runs}) == 1
    usual, fewer, equal, more = (personal(one, 2)[0] for one in runs)
    assert same(usual, equal), "train.epochs is 2"
    assert not same(usual, fewer) and not same(usual, more)


@pytest.mark.parametrize("across", ["none", "same"])
def test_without_a_pull_personal_models_are_those_of_local_training(across, run, tmp_path) -> None:
    for spec in ("mlp@0.25", "cnn2@0.5"):
        start = tree.snapshot(models.build(spec, (1, 8, 8), 3, seed=7))
        write(tmp_path / f"{spec}.safetensors", start)
    fleet = "mlp@0.25" if across == "none" else "mlp@0.25,cnn2@0.5"
    settings = {"fleet": fleet, "weights": str(tmp_path / "{model}.safetensors"), "rounds": 3}
    settings |= {"per_round": 2, "data__partition": "quantity_dirichlet"}
    ditto = run(**settings, method="ditto", ditto__lambda_prox=0.0, average__across=across)
    local = run(**settings, method="local")
    assert same(personal(ditto, 3), own_models(local, 3))
    own, alone = ([s["accuracy"] for s in one.journal[-1]["scores"]] for one in (ditto, local))
    assert own == alone


def test_a_personal_model_starts_from_the_servers_first_weights(tmp_path: Path, run: Run) -> None:
    node = {"partition-id": 1, "num-partitions": 4}
    p = Participant(parse(flat(tmp_path, method="ditto")), node, "e")
    drawn = models.build("mlp@0.25", (1, 8, 8), 3, seed=1, name=("init", "global"))
    assert p.spec != p.global_spec == "mlp@0.25"
    assert same(tree.snapshot(p.initial(p.global_spec)), tree.snapshot(drawn))
    played = run(method="ditto", rounds=1, per_round=1)
    scores = played.journal[1]["scores"]
    assert all(s["accuracy"] is not None and s["accuracy_global"] is not None for s in scores)
