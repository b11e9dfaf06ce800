"""KT-pFL: how the coefficients are learnt, and which limits it has."""

from typing import Any

import pytest
import torch
from torch import Tensor

import server_app.methods.kt_pfl as half
from common.exchange.predictions import spoken
from common.journal import Entry
from common.methods.kt_pfl import Options, Reply, step
from deploy.report import sections
from deploy.report.read import read
from deploy.report.style import inline
from server_app.method import Replies
from tests.support import battery, halves
from tests.support.tiny import Run
from tests.support.weights import own_models, same

SMALL: dict[str, Any] = {**battery.PUBLIC, "method": "kt-pfl", "clients": 3, "train__epochs": 1}
HAND = torch.tensor([[0.8, 0.2], [0.4, 0.6]])


def server(clients: int = 2, **more: Any) -> Any:
    method = halves.server(**{**SMALL, **more})
    method.clients = [halves.client(k) for k in range(clients)]
    method.c = torch.full((clients, clients), 1 / clients)
    return method


def replies(said: dict[int, Tensor]) -> Replies[Reply]:
    pairs = ((k, Reply(**spoken(p, "float32", probabilities=True))) for k, p in said.items())
    return Replies.of([(halves.client(k), reply) for k, reply in pairs])


def said(n: int, seed: int = 0) -> Tensor:
    """What n clients say about five samples of three classes."""
    z = torch.randn(n, 5, 3, generator=torch.Generator().manual_seed(seed))
    return torch.softmax(2 * z, dim=2)


def test_the_step_is_looked_for_five_times() -> None:
    steps = {0.08: 0.2, 0.01: 1.0, 0.004: 5.0, 1e-6: 5.0**5, 1e6: 5.0**-5}
    assert {m: step(m) for m in steps} == pytest.approx(steps)


def test_one_step_by_hand() -> None:
    method, sent = server(), {k: row[None] for k, row in enumerate(HAND)}
    method.step(1, replies(sent))
    assert method.c[0].tolist() == pytest.approx([0.5399, 0.4601], abs=5e-5)
    told = method.second(1, replies(sent))[0].said(probabilities=True)
    assert told[0].tolist() == pytest.approx((method.c[0] @ HAND).tolist(), abs=1e-6)


@pytest.mark.parametrize("rho", [0.0, 0.7])
def test_what_is_descended_is_the_papers_objective(rho: float) -> None:
    o, p = Options(rho=rho), said(4).flatten(1)
    c = torch.softmax(torch.randn(4, generator=torch.Generator().manual_seed(1)), 0)
    free = c.clone().requires_grad_()
    mse = torch.nn.functional.mse_loss
    loss = mse(free @ p, p[2]) + rho * mse(free, torch.full((4,), 0.25))
    (g,) = torch.autograd.grad(loss, free)
    r = step(float(g.abs().mean()))
    assert torch.allclose(o.learnt(c, p, 2), torch.softmax(5 * (c - r * g), 0), atol=1e-6)


def test_only_who_takes_part_moves_and_rows_always_sum_to_one() -> None:
    method, p = server(clients=4), said(4)
    method.step(1, replies(dict(enumerate(p))))
    before = method.c.clone()
    assert not torch.allclose(before, torch.full((4, 4), 0.25))
    method.step(2, replies({0: p[1], 2: p[3]}))
    now = method.c
    assert torch.allclose(now.sum(1), torch.ones(4))
    present = torch.zeros(4, 4, dtype=torch.bool)
    present[[0, 0, 2, 2], [0, 2, 0, 2]] = True
    assert torch.equal(now[~present], before[~present])
    assert not torch.allclose(now[present], before[present])
    told = method.second(2, replies({0: p[1], 2: p[3]}))
    share = now[2, [0, 2]] / now[2, [0, 2]].sum()
    target = share[0] * p[1] + share[1] * p[3]
    assert sorted(told) == [0, 2]
    assert torch.allclose(told[2].said(probabilities=True), target, atol=1e-6)


def test_everybody_speaks_at_the_temperature() -> None:
    o, z = Options(temperature=10.0), torch.tensor([[20.0, 0.0]])
    assert o.speak(z)[0].tolist() == pytest.approx([0.880797, 0.119203], abs=1e-6)
    whole = float(Options(kl="batchmean").distance(z, torch.tensor([[0.5, 0.5]])))
    assert whole == pytest.approx(0.433781, abs=1e-6), "no factor T²"
    assert float(o.distance(z, torch.tensor([[0.5, 0.5]]))) == pytest.approx(whole / 2)


def test_uniform_coefficients_at_temperature_one_are_fedmd_bit_for_bit(run: Run) -> None:
    common = {**SMALL, "clients": 2, "public__optimizer": "adam", "public__lr": 0.01}
    frozen = {"c_scale": 0.0, "temperature": 1.0, "kl": "batchmean", "grow": False}
    ours = run(**common, **{f"kt-pfl.{name.replace('_', '-')}": v for name, v in frozen.items()})
    theirs = run(**{**common, "method": "fedmd", "fedmd.align": "kl", "fedmd.first-epochs": 1})
    for our, their in zip(ours.journal[1:], theirs.journal[1:], strict=True):
        assert our["metrics"] == their["metrics"] and our["metrics"]["client_align_loss"] > 0
    assert same(own_models(ours, 2), own_models(theirs, 2))
    assert ours.summary["coefficients"] == [[0.5, 0.5], [0.5, 0.5]]
    assert theirs.summary["coefficients"] is None


def test_private_epochs_grow_by_one_a_round(run: Run) -> None:
    grown = run(**{**SMALL, "clients": 2, "rounds": 3, "train__epochs": 2})
    steps = [entry["metrics"]["client_steps"] for entry in grown.journal[1:]]
    assert steps[1] == steps[2] == 2 * steps[0]


def test_the_page_shows_the_coefficients_unless_clients_are_many(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(**{**SMALL, "rounds": 1})
    c = done.summary["coefficients"]
    assert all(sum(row) == pytest.approx(1, abs=2e-4) for row in c)
    section = sections.coefficients(read(done.folder))
    assert section is not None and section.cards[0].figure is not None
    drawn = inline(section.cards[0].figure, "c", section.cards[0].alt)
    assert drawn.count("<title>") == 9
    assert f"<title>client 0 from client 2: {c[0][2]:.3f}</title>" in drawn
    monkeypatch.setattr(sections, "MOST_CLIENTS", 2)
    assert sections.coefficients(read(done.folder)) is None
    monkeypatch.setattr(half, "MAX_LOGGED", 1)
    entry = Entry(round=1)
    server().aggregate_second([], entry)
    assert entry.coefficients == []
