"""DepthFL: exits at every depth, mutual distillation, dynamic regularisation."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from client_app.bases.global_copy import GlobalCopy
from client_app.methods.depthfl import ClientState, mutual
from common.methods.depthfl import Options, Reply
from common.parse import defaults, parse
from server_app.method import Replies
from server_app.methods.depthfl import DepthFL, State
from server_app.storage.checkpoint import Checkpoint, path_in
from tests.support.battery import Losing
from tests.support.halves import client, server
from tests.support.scalar import kept
from tests.support.tiny import Run, TinyRun, flat, play

SPECS = [f"cnn4-exits{d}@0.5" for d in (1, 2, 3)]
FLEET: dict[str, Any] = {"fleet": ",".join(SPECS)}
PLAIN = {"depthfl__feddyn": False}
UNEVEN = {"data__partition": "quantity_dirichlet", "data__alpha": 1.0}


def options(**changes: Any) -> Options:
    own = {f"depthfl.{name}": value for name, value in changes.items()}
    return parse({**defaults(), "method": "depthfl", **own}).method


def state(run: TinyRun) -> State:
    return State(**Checkpoint.load(path_in(run.folder)).state)


def test_the_loss_by_hand_and_its_growing_weight() -> None:
    z, y = [torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 0.0]])], torch.tensor([0])
    # CE .126928 and .693147; the exits' KL to each other: .433781 and .327813
    assert float(mutual(z, y, 1.0)) == pytest.approx(1.581669, abs=1e-6)
    assert float(mutual(z, y, options().weight(1))) == pytest.approx(0.825207, abs=1e-6)
    assert float(mutual(z, y, 1.0, alone=True)) == pytest.approx(0.693147 + 0.327813, abs=1e-6)
    three = [*z, torch.tensor([[1.0, 0.0]])]
    apart = [float(mutual(three, y, w)) - float(mutual(three, y, 0.0)) for w in (1.0, 0.5)]
    assert apart[0] == pytest.approx(2 * apart[1]) and apart[0] > 0
    z = [torch.tensor([[2.0, 0.0]], requires_grad=True), torch.tensor([[0.0, 0.0]])]
    loss = mutual(z, torch.tensor([0]), 1.0)
    # CE: p − y; KL(σ(z₂) ‖ σ(z₁)): p − q, with p = .880797 and q = ½
    (gradient,) = torch.autograd.grad(loss, z[0])
    assert float(gradient[0, 0]) == pytest.approx((0.880797 - 1) + (0.880797 - 0.5), abs=1e-6)
    o = options()
    weights = [o.weight(t) for t in (1, 151, 301, 900)]
    assert weights == pytest.approx([0.006738, 0.286505, 1, 1], abs=1e-6)
    assert options(distil=False).weight(151) == 0


def halves(**changes: Any) -> DepthFL:
    """The server half with four clients, of depths 2, 1, 2 and 1, and every number 0."""
    found = server(method="depthfl", **{"fleet": ",".join(SPECS[:2]), **changes})
    found.begin([client(k, model=SPECS[1 - k % 2]) for k in range(4)])
    found.w = {name: torch.zeros_like(w) for name, w in found.w.items()}
    return found


def upload(ours: DepthFL, k: int, shared: float, deep: float = 0.0) -> tuple[Any, Reply]:
    own, shallow = (ours.task.expected(spec) for spec in (ours.clients[k].architecture, SPECS[0]))
    values = {n: shared if n in shallow else deep for n in own}
    w = {n: torch.full(v.shape, values[n], dtype=v.dtype) for n, v in own.items()}
    return ours.clients[k], Reply(w=w, t=1)


def test_the_server_by_hand_with_and_without_dynamic_regularisation() -> None:
    ours = halves()
    ours.step(1, Replies.of([upload(ours, 0, 3, 5), upload(ours, 1, 1)]))
    shallow = ours.task.expected(SPECS[0])
    for name, h in ours.h.items():
        expected = (-0.1, 3.0) if name in shallow else (-0.125, 6.25)
        assert float(h.mean()) == pytest.approx(expected[0], abs=1e-6), name
        assert float(ours.w[name].mean()) == pytest.approx(expected[1], abs=1e-5), name
    buffers = {n: float(ours.w[n].double().mean()) for n in ours.w.keys() - ours.h.keys()}
    assert {n in shallow: v for n, v in buffers.items() if "var" in n} == {True: 2, False: 5}
    assert ours.accepted == {0: 1, 1: 1}
    # a round without a deep client leaves what only they have
    before = dict(ours.w)
    ours.step(2, Replies.of([upload(ours, 1, 3)]))
    assert all(torch.equal(ours.w[n], before[n]) for n in ours.w if n not in shallow)
    ours = halves(**PLAIN)
    ours.step(1, Replies.of([upload(ours, 0, 3, 5), upload(ours, 1, 1)]))
    assert {n in shallow: float(ours.w[n].mean()) for n in ours.h} == {True: 2, False: 5}
    assert ours.accepted == {} and not any(bool(h.any()) for h in ours.h.values())


def test_the_last_exit_alone_is_layerwise_averaging_with_a_head_for_each_depth(run, monkeypatch):
    def last(self: GlobalCopy[Any, Any], request: Any, net: Any) -> Any:
        return lambda x, y: F.cross_entropy(net.each(x)[-1], y)

    monkeypatch.setattr(GlobalCopy, "loss", last)
    given = {**FLEET, "per_round": 3, "rounds": 3, **UNEVEN}
    alone = {"depthfl__exits": "last", "depthfl__distil": False}
    ours = run(method="depthfl", **alone, **PLAIN, **given)
    across = {"average__across": "layerwise", "average__weights": "uniform"}
    assert ours.weights == run(method="fedavg", **across, **given).weights


def held(run: TinyRun, t: int, k: int) -> dict[str, torch.Tensor]:
    """g_k as client k kept it in round t."""
    return ClientState.load(kept(run.folder, t, k, ClientState.kind)).g


def check_sum(run: TinyRun, rounds: list[int]) -> None:
    """h is the mean of the g_k that the server counts on."""
    own = [held(run, t, k) for k, t in enumerate(rounds)]
    for name, h in state(run).h.items():
        total = sum(g[name] for g in own if name in g)
        assert torch.allclose(h, total / len(rounds), atol=1e-6), name


def test_a_lost_reply_and_a_restart_do_not_part_the_server_from_its_clients(tmp_path: Path) -> None:
    given: dict[str, Any] = {"method": "depthfl", **FLEET, "clients": 3, "min_replies": 0.5}
    for rounds, accepted in ((2, [2, 1, 2]), (4, [4, 4, 4])):
        played = play(flat(tmp_path, **given, rounds=rounds, resume=rounds > 2), Losing)
        assert state(played).accepted == dict(enumerate(accepted))
        check_sum(played, accepted)


def test_a_client_keeps_minus_alpha_times_its_way(run: Run) -> None:
    given = {"method": "depthfl", **FLEET, "clients": 3, "depthfl__alpha": 0.5, "rounds": 1}
    played, plain = run(**given), run(**given, depthfl__feddyn=False)
    # one round: h = −α/N Σ (w_k − w), so a mean over all that have it, less h/α, goes twice as far
    check_sum(played, [1, 1, 1])
    assert all(bool(g.any()) for g in held(played, 1, 0).values())
    assert plain.journal[1]["client_metrics"] != played.journal[1]["client_metrics"]
    assert not kept(plain.folder, 1, 0, ClientState.kind).exists()


def test_the_deepest_networks_exits_are_scored_and_every_client_scores_its_depth(run: Run) -> None:
    played = run(method="depthfl", **FLEET, clients=3, node__1__model=SPECS[0])
    assert all(list(e["accuracies"]) == ["exit1", "exit2", "exit3"] for e in played.journal)
    clients = [(c["model"], c["accuracy"] is None) for c in played.summary["clients"]]
    assert clients == [(SPECS[i], False) for i in (0, 0, 2)]
