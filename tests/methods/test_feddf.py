"""FedDF: the server's loss by hand, what it is without distillation, who is taught and scored."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from common.exchange.records import StateDict
from common.methods.feddf import Reply
from common.training import tree
from server_app.method import Replies
from tests.support.halves import client, server
from tests.support.tiny import Run, overrides, under
from tests.support.weights import moved

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
    logits: Tensor = half.build(spec, w)(images)
    return logits


@pytest.mark.parametrize("average", ["logits", "losses"])
def test_one_step_of_each_prototype_is_that_of_the_formula(average: str) -> None:
    T, rate = 2.0, 0.5
    half = server(**ONE_STEP, feddf__average=average, feddf__temperature=T)
    half.begin(FLEET)
    w = list(uploads(half, "a", "b", "c").values())
    teachers = [
        said(half, each.architecture, state).detach() for each, state in zip(FLEET, w, strict=True)
    ]
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


def test_teachers_that_say_what_the_student_says_teach_nothing() -> None:
    half = server(**ONE_STEP)
    half.begin(FLEET)
    same, other = uploads(half, "a", "b").values()
    half.step(1, received(same, same))
    assert moved(same, half.models["lenet5@0.25"]) < 1e-6
    half.step(2, received(same, other))
    assert moved(tree.mean([same, other], [10, 20]), half.models["lenet5@0.25"]) > 1e-4


def test_all_teach_whose_client_is_there_and_the_others_stay() -> None:
    half = server(**ONE_STEP)
    half.begin(FLEET)
    before = dict(half.models)
    half.step(1, received(*uploads(half, "a", "b").values()))
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
