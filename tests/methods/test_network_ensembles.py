"""FedDF and FedKEMF: losses and steps by hand, and who is taught and scored."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.methods.fedkemf import FedKEMF
from client_app.participant import Participant
from common.exchange import tree
from common.exchange.records import StateDict
from common.losses.distillation import kl
from common.methods.feddf import Reply
from common.methods.fedkemf import Options
from common.methods.fedkemf import Reply as FedKEMFReply
from common.parse import parse
from server_app.method import Replies
from tests.support import halves
from tests.support.halves import client, server
from tests.support.tiny import Run, flat, overrides, under
from tests.support.weights import moved, own_models, same

PUBLIC: dict[str, Any] = {"data__public": 0.5, "data__samples": 160}
TINY: dict[str, Any] = {"method": "feddf", **PUBLIC, "public__epochs": 1, "train__epochs": 1}
ONE_STEP: dict[str, Any] = {**TINY, "fleet": "lenet5@0.25,lenet5@0.5"}
ONE_STEP |= under("public", optimizer="sgd", lr=0.5, batch_size=500)
FLEET = [
    client(k, 10 * (k + 1), model=m)
    for k, m in enumerate(("lenet5@0.25", "lenet5@0.25", "lenet5@0.5"))
]


def uploads(half: Any, *names: str) -> dict[str, StateDict]:
    """Weights as drawn under other names, for clients 0, 1 and 2 as many as there are names."""
    built = [
        half.task.build(each.architecture, name=("init", name))
        for each, name in zip(FLEET, names, strict=False)
    ]
    return dict(zip(names, map(tree.snapshot, built), strict=True))


def received(*states: StateDict) -> Replies[Reply]:
    return Replies.of([(each, Reply(w=w)) for each, w in zip(FLEET, states, strict=False)])


def said(half: Any, spec: str, w: StateDict) -> Tensor:
    (images,) = (x for x, _ in half.task.in_order(half.public, size=500))
    return half.build(spec, w)(images)  # type: ignore[no-any-return]


@pytest.mark.parametrize("average", ["logits", "losses"])
def test_one_step_of_each_prototype_is_that_of_the_formula(average: str) -> None:
    T, rate = 2.0, 0.5
    half = server(**ONE_STEP, feddf__average=average, feddf__temperature=T)
    half.begin(FLEET)
    w = list(uploads(half, "a", "b", "c").values())
    pairs = zip(FLEET, w, strict=True)
    teachers = [said(half, c.architecture, state).detach() for c, state in pairs]
    start = {"lenet5@0.25": tree.mean(w[:2], [10, 20]), "lenet5@0.5": w[2]}
    half.step(1, received(*w))
    for spec, before in start.items():
        net = half.build(spec, before)
        (images,) = (x for x, _ in half.task.in_order(half.public, size=500))
        student = F.log_softmax(net(images) / T, dim=1)
        if average == "logits":
            target = F.softmax(sum(teachers) / 3 / T, dim=1)  # type: ignore[operator]
            loss = F.kl_div(student, target, reduction="batchmean")
        else:
            each = [F.kl_div(student, F.softmax(z / T, 1), reduction="batchmean") for z in teachers]
            loss = torch.stack(each).mean()
        loss.backward()
        expected = {name: p.detach() - rate * p.grad for name, p in net.named_parameters()}  # type: ignore[operator]
        assert moved(before, expected) > 1e-4
        assert moved(expected, half.models[spec]) < 1e-6


def test_a_prototype_learns_from_others_while_a_client_of_it_is_there() -> None:
    half = server(**ONE_STEP)
    half.begin(FLEET)
    same, other = uploads(half, "a", "b").values()
    half.step(1, received(same, same))
    assert moved(same, half.models["lenet5@0.25"]) < 1e-6
    half.step(2, received(same, other))
    assert moved(tree.mean([same, other], [10, 20]), half.models["lenet5@0.25"]) > 1e-4
    before = dict(half.models)
    half.step(3, received(*uploads(half, "a", "b").values()))
    assert moved(before["lenet5@0.5"], half.models["lenet5@0.5"]) == 0
    assert moved(before["lenet5@0.25"], half.models["lenet5@0.25"]) > 0


SWITCHES = (
    "feddf.average=losses feddf.temperature=3.0 public.anneal=true public.subset=20 "
    "public.protect-running-stats=true average.weights=uniform"
)


@pytest.mark.parametrize("switch", SWITCHES.split())
def test_every_switch_does_something(switch: str) -> None:
    spec, found = "mlp@0.25" if "protect" in switch else "lenet5@0.25", []
    for changes in ("", switch):
        settings = {**ONE_STEP, "fleet": spec, "public__batch_size": 20, **overrides(changes)}
        half = server(**settings)
        half.begin([client(k, 10 * (k + 1), model=spec) for k in range(2)])
        w = [tree.snapshot(half.task.build(spec, name=("init", k))) for k in range(2)]
        half.step(1, Replies.of([(c, Reply(w=x)) for c, x in zip(half.clients, w, strict=True)]))
        found.append(half.models[spec])
    assert moved(*found) > 0


def test_the_ensemble_is_scored_beside_the_prototypes(run: Run) -> None:
    one = run(**{**TINY, "clients": 2, "rounds": 1})
    found = one.journal[-1]["accuracies"]
    assert list(found) == ["mlp@0.25", "cnn2@0.5", "ensemble"]
    assert one.journal[-1]["accuracy"] == (found["mlp@0.25"] + found["cnn2@0.5"]) / 2
    alone = run(**{**TINY, "fleet": "mlp@0.25", "clients": 2, "rounds": 1})
    assert list(alone.journal[-1]["accuracies"]) == ["mlp@0.25"]


@pytest.mark.parametrize("kind", ["logits", "softmax"])
def test_the_ensemble_is_that_of_the_networks_as_they_are_scored(kind: str) -> None:
    half = server(**ONE_STEP, feddf__ensemble=kind)
    half.begin(FLEET)
    nets = list(half.networks().values())
    nets[0].head.bias.data.fill_(1.0)
    (ensemble,) = half.ensembles(nets).values()
    assert (ensemble.nets[0].head.bias == 1.0).all() and ensemble.kind == kind


FEDKEMF: dict[str, Any] = {"method": "fedkemf", "data__public": 0.5, "data__samples": 160}
FEDKEMF |= {"public__epochs": 1, "train__epochs": 1}
KEMF_STEP = {**FEDKEMF, "fleet": "lenet5@0.25", **under("public", lr=0.5, batch_size=500)}
OWN, SHARED, Y = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([0])


def losses(**options: Any) -> tuple[float, float]:
    half: Any = SimpleNamespace(options=Options(**options), participant=halves.learner())
    own, shared = FedKEMF.losses(half, OWN, SHARED, Y)
    return float(own), float(shared)


def test_a_pair_by_hand() -> None:
    ce = math.log(1 + math.exp(-2)), math.log(1 + math.exp(1))
    p, q = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(1))  # of class 0: own, shared
    pairs = ((q, p), (p, q))
    apart = [a * math.log(a / b) + (1 - a) * math.log((1 - a) / (1 - b)) for a, b in pairs]
    assert losses() == pytest.approx((ce[0] + apart[0], ce[1] + apart[1]), abs=1e-6)
    # mean of (2 − 0)² and (0 − 1)²
    assert losses(dml="mse") == pytest.approx((ce[0] + 2.5, ce[1] + 2.5), abs=1e-6)


def test_its_clients_learn_what_those_of_lwn_learn(run: Run) -> None:
    given = {**FEDKEMF, "rounds": 1, "clients": 2}
    fedkemf, lwn = run(**given), run(**{**given, "noise__batches": 1, "method": "lwn"})
    assert same(own_models(fedkemf, 1), own_models(lwn, 1))
    up = [one.journal[-1]["bytes"]["arrays_up"] for one in (fedkemf, lwn)]
    assert up[0] == up[1]


@pytest.mark.parametrize("order", ["joint", "sequential"])
def test_one_step_at_once_and_in_turn(order: str, tmp_path: Path) -> None:
    rate = 0.5
    settings = {**FEDKEMF, "fleet": "lenet5@0.25", "fedkemf__order": order}
    settings |= under("train", steps=1, lr=rate, momentum=0.0)
    p = Participant(parse(flat(tmp_path, **settings)), {"partition-id": 0}, "test")
    nets = [p.model("lenet5@0.25", part=name) for name in ("own", "shared")]
    expected = [p.model("lenet5@0.25", tree.snapshot(net)) for net in nets]
    (x, y), *_ = p.task.batches(*p.train_set, p.k, 1, drop_last=True)

    def step(i: int, teacher: Tensor) -> None:
        net = expected[i]
        z = net(x)
        (F.cross_entropy(z, y) + kl(teacher.detach(), z)).backward()
        for w in net.parameters():
            w.data -= rate * w.grad

    before = expected[0](x)
    step(0, expected[1](x))
    step(1, before if order == "joint" else expected[0](x))
    found = FedKEMF(p).learn_mutually(1, nets[0], nets[1])
    assert found["steps"] == 1
    for net, like in zip(nets, expected, strict=True):
        for w, v in zip(net.parameters(), like.parameters(), strict=True):
            torch.testing.assert_close(w, v, rtol=0, atol=1e-6)
    assert float((before - expected[0](x)).detach().abs().max()) > 1e-3


def stepped(*names: str, **changes: Any) -> tuple[Any, StateDict, list[StateDict]]:
    """A server half after a step with copies as drawn under these names; w before; the copies."""
    half = server(**{**KEMF_STEP, **changes})
    half.begin([client(k, model="lenet5@0.25") for k in range(len(names))])
    before = half.w
    built = [half.task.build(half.global_spec, name=("init", name)) for name in names]
    copies = [tree.snapshot(net) for net in built]
    replies = [FedKEMFReply(w=w) for w in copies]
    half.step(1, Replies.of(list(zip(half.clients, replies, strict=True))))
    return half, before, copies


@pytest.mark.parametrize("labels", [False, True])
def test_one_step_of_the_server_goes_on_from_the_previous_network(labels: bool) -> None:
    T = 20.0 if labels else 2.0
    half, before, copies = stepped("a", "b", fedkemf__temperature=T, fedkemf__labels=labels)
    (images,) = (x for x, _ in half.task.in_order(half.public, size=500))
    net = half.build(half.global_spec, before)
    said = [half.build(half.global_spec, w)(images).detach() for w in copies]
    z = net(images)
    if labels:
        p = (F.softmax(said[0], 1) + F.softmax(said[1], 1)) / 2
        apart = (p - F.softmax(z / T, 1)).square().mean()
        loss = 0.5 * F.cross_entropy(z, half.labels) + 0.5 * T**2 * apart
    else:
        p = (F.softmax(said[0] / T, 1) + F.softmax(said[1] / T, 1)) / 2
        loss = F.kl_div(F.log_softmax(z / T, 1), p, reduction="batchmean")
    loss.backward()
    expected = {n: w.detach() - 0.5 * w.grad for n, w in net.named_parameters()}  # type: ignore[operator]
    assert moved(before, expected) > 1e-4 and moved(expected, half.w) < 1e-5


def test_the_loss_with_labels_by_hand_and_no_step_without_learning() -> None:
    half, _, _ = stepped("a", fedkemf__labels=True, fedkemf__temperature=20.0)
    targets = torch.tensor([[[1.0, 0.0], [0.6, 0.4]]])  # the class, p
    # CE .126928; σ(2/20, 0) = (.524979, .475021), mean square .005628: ½ · .126928 + 200 · .005628
    loss = float(half.loss(torch.tensor([[2.0, 0.0]]), targets))
    assert loss == pytest.approx(1.189088, abs=1e-5)
    half, before, _ = stepped("a", "b", public__learn=False)
    assert moved(before, half.w) == 0


KEMF_SWITCHES = (
    "fedkemf.ensemble=max fedkemf.ensemble=vote fedkemf.temperature=3.0 fedkemf.labels=true "
    "public.subset=20"
)


@pytest.mark.parametrize("switch", KEMF_SWITCHES.split())
def test_every_switch_of_the_server_does_something(switch: str) -> None:
    assert moved(stepped("a", "b")[0].w, stepped("a", "b", **overrides(switch))[0].w) > 0
