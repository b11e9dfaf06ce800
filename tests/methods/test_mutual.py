"""FML and FedKD: losses by hand, reductions, low-rank factors."""

import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from client_app.methods.fedkd import FedKD as ClientHalf
from client_app.methods.fedkemf import FedKEMF
from client_app.methods.fml import FML
from client_app.participant import Participant
from common.exchange.records import Records
from common.methods.fedkd import Options as FedKDOptions
from common.methods.fedkd import Reply
from common.methods.fml import Options
from common.parse import parse
from common.techniques import low_rank
from server_app.methods.fedkd import FedKD as ServerHalf
from tests.support import halves
from tests.support.battery import Losing
from tests.support.recorded_calls import record_calls
from tests.support.tiny import Run, flat, play

OWN, SHARED, Y = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 0.0]]), torch.tensor([0])
FLEET = {"fleet": "cnn2@0.25,mlp@0.25"}


def losses(own: Tensor = OWN, shared: Tensor = SHARED, **options: Any) -> tuple[Tensor, Tensor]:
    half: Any = SimpleNamespace(
        options=Options(**options), task=halves.TASK, participant=halves.learner()
    )
    return FML.losses(half, own, shared, Y)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # CE .12693 and .69315, KL(meme ‖ own) .43378, KL(own ‖ meme) .32781
        ({}, (0.28035, 0.51048)),
        ({"alpha": 1.0, "beta": 0.0}, (0.12693, 0.32781)),
        ({"alpha": 0.0, "beta": 1.0}, (0.43378, 0.69315)),
        ({"alpha": 0.0, "beta": 0.0, "kl": "mean"}, (0.43378 / 2, 0.32781 / 2)),
    ],
)
def test_both_losses_by_hand(options: dict[str, Any], expected: tuple[float, float]) -> None:
    assert [float(loss) for loss in losses(**options)] == pytest.approx(expected, abs=1e-5)


def test_a_teacher_has_a_gradient_only_without_detach() -> None:
    for detach in (True, False):
        own, shared = (z.clone().requires_grad_() for z in (OWN, SHARED))
        first, _ = losses(own, shared, alpha=0.0, detach=detach)
        _, wrong = torch.autograd.grad(first, [own, shared], allow_unused=True)
        assert (wrong is None) == detach


def test_without_mutual_terms_memes_are_fedavgs(played: Run) -> None:
    """FedAvg of the meme: every client trains the global architecture."""
    fml = played(method="fml", fml__alpha=1.0, fml__beta=1.0, **FLEET)
    fedavg = played(method="fedavg", average__weights="uniform", **FLEET)
    assert fml.weights == fedavg.weights
    assert fml.weights != played(method="fml", **FLEET).weights


def test_half_weights_at_twice_the_rate_are_lwns_client(tmp_path: Path) -> None:
    steps = []
    for half, changes in ((FML, {"method": "fml", "train__lr": 0.1}), (FedKEMF, {"method": "lwn"})):
        config = parse(flat(tmp_path, **{"train__lr": 0.05, "fleet": "cnn2@0.25", **changes}))
        p = Participant(config, {"partition-id": 0}, "test")
        nets = [p.model("cnn2@0.25", part=name) for name in ("own", "shared")]
        half(p).learn_mutually(1, *nets)
        steps.append([w for net in nets for w in net.parameters()])
    for ours, theirs in zip(*steps, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_one_step_of_htfllibs_undetached_losses(tmp_path: Path) -> None:
    """Each network clipped at its own norm; KL divided by samples and classes."""
    settings = {"fml__detach": False, "fml__kl": "mean", "train__clip": 0.3, "train__steps": 1}
    given = {"fleet": "cnn2@0.25", "train__lr": 0.5, "train__momentum": 0.0}
    config = parse(flat(tmp_path, method="fml", **settings, **given))
    p = Participant(config, {"partition-id": 0}, "test")
    ours, theirs = ([p.model("cnn2@0.25", part=n) for n in ("own", "shared")] for _ in range(2))
    (x, y), *_ = p.task.batches(*p.train_set, p.k, 1, drop_last=True)
    kl_div = torch.nn.KLDivLoss(reduction="none")
    logs = [F.log_softmax(net(x), 1) for net in theirs]
    for log, other in (logs, logs[::-1]):
        loss = 0.5 * F.nll_loss(log, y) + 0.5 * kl_div(log, other.exp()).mean()
        loss.backward(retain_graph=True)
    for net in theirs:
        assert torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3) > 0.3
        torch.optim.SGD(net.parameters(), 0.5).step()
    FML(p).learn_mutually(1, *ours)
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(
            dict(one.named_parameters()), dict(two.named_parameters()), rtol=0, atol=1e-6
        )


FEDKD: dict[str, Any] = {"method": "fedkd", **FLEET, "rounds": 3}
ALONE = {**FEDKD, "fedkd__weight": 0.0}


def network(features: Tensor, logits: Tensor) -> Any:
    return SimpleNamespace(features=lambda x: features, head=lambda f: logits)


def loss(own: Tensor = OWN, shared: Tensor = SHARED, f_k: Any = None, **options: Any) -> Tensor:
    half: Any = SimpleNamespace(
        options=FedKDOptions(**options), task=halves.TASK, participant=halves.learner()
    )
    f_k = torch.ones(1, 3) if f_k is None else f_k
    nets = network(f_k, own), network(torch.zeros(1, 2), shared)
    projection = nn.Linear(2, 3, bias=False).requires_grad_(False)
    return ClientHalf.loss(half, *nets, projection)(torch.zeros(1), Y)


def test_the_losses_of_fedkd_by_hand_and_which_network_follows_them() -> None:
    q, of_mentor, of_mentee = 0.82007, 0.52895, 0.39974  # both CE; both KL over q
    assert float(loss(weight=0.0)) == pytest.approx(q, abs=1e-5)
    # the mean square of (1, 1, 1) − W 0 is 1, in either loss
    for kl, share in (("batchmean", 1.0), ("mean", 0.5)):
        expected = q + share * (of_mentor + of_mentee) + 2 / q
        assert float(loss(kl=kl)) == pytest.approx(expected, abs=1e-4)
    z = own, shared = tuple(x.clone().requires_grad_() for x in (OWN, SHARED))
    log_k, log = F.log_softmax(own, 1), F.log_softmax(shared, 1)
    ce_k, ce = F.cross_entropy(own, Y), F.cross_entropy(shared, Y)

    def kl(p: Tensor, q: Tensor) -> Tensor:
        return (p.exp() * (p - q)).sum()

    q = (ce_k + ce).detach()
    each = ce_k + kl(log.detach(), log_k) / q + ce + kl(log_k.detach(), log) / q
    # the mean square of the features' distance is 1, in either loss
    both = ce_k + ce + (kl(log, log_k) + kl(log_k, log) + 2 * 1.0) / (ce_k + ce)
    for expected, detach in ((each, True), (both, False)):
        ours = torch.autograd.grad(loss(own, shared, detach=detach), z)
        theirs = torch.autograd.grad(expected, z, retain_graph=True)
        torch.testing.assert_close(ours, theirs)


def test_the_rank_by_hand_for_a_rising_t() -> None:
    energies = [FedKDOptions().energy(t, 4) for t in (1, 2, 3, 4)]
    assert energies == pytest.approx([0.95, 0.96, 0.97, 0.98])
    assert FedKDOptions().energy(1, 1) == 0.95
    squares = torch.tensor([16.0, 9.0, 1.0])  # s = 4, 3, 1: sums 16, 25, 26 of 26
    assert [low_rank.rank(squares, T) for T in (0.5, 0.95, 0.98, 1.0)] == [1, 2, 3, 3]
    assert low_rank.rank(torch.tensor([4.0, 0.0]), 1.0) == 1


def test_without_mutual_terms_mentees_are_fedavgs(played: Run) -> None:
    whole = {"fedkd__energy_start": 1.0, "fedkd__energy_end": 1.0}
    fedkd = played(**ALONE, **whole)
    fedavg = played(method="fedavg", average__weights="uniform", **FLEET, rounds=3)
    for name, value in fedavg.model.items():
        torch.testing.assert_close(fedkd.model[name], value, rtol=1e-5, atol=1e-6)
    assert fedkd.weights != played(**FEDKD, **whole).weights


def test_the_mentee_has_its_own_learning_rate(played: Run) -> None:
    usual, same, other = (
        played(**ALONE, **rate).weights
        for rate in ({}, *({"fedkd__mentee_lr": lr} for lr in (0.05, 0.02)))
    )
    assert same == usual != other


def matrix(s: list[float], m: int, n: int) -> Tensor:
    """Return a matrix [m, n] with the singular values ``s``."""
    draw = torch.Generator().manual_seed(1)
    u, v = (torch.linalg.qr(torch.randn(d, len(s), generator=draw))[0] for d in (m, n))
    return (u * torch.tensor(s)) @ v.T


@pytest.mark.parametrize(("m", "n"), [(9, 20), (20, 9)])
def test_factors_keep_the_largest_singular_values(m: int, n: int) -> None:
    w = matrix([4.0, 3.0, 1.0], m, n)
    (u, s, v) = low_rank.compress({"w": w}, 0.95)["w"]
    assert (u.shape, s.shape, v.shape) == ((m, 2), (2,), (2, n))
    torch.testing.assert_close(s, torch.tensor([4.0, 3.0]))
    moved = low_rank.apply({"w": torch.ones(m, n)}, {"w": [u, s, v]})["w"] - 1
    assert float((moved - w).square().sum()) == pytest.approx(1.0, abs=1e-5)  # s_3²


def test_a_convolution_is_one_matrix() -> None:
    w = matrix([4.0, 3.0, 1.0], 16, 72).view(16, 8, 3, 3)
    update = low_rank.compress({"w": w}, 0.9999)
    assert [tuple(part.shape) for part in update["w"]] == [(16, 3), (3,), (3, 72)]
    torch.testing.assert_close(low_rank.apply({"w": torch.zeros_like(w)}, update)["w"], w)


@pytest.mark.parametrize(
    "w",
    [
        torch.zeros(9, 20),
        torch.randn(20, generator=torch.Generator().manual_seed(1)),
        torch.arange(200).view(10, 20),
        matrix([1.0] * 9, 9, 20),  # rank 7 of 9 at 75 %: 7 · 30 numbers instead of 180
        torch.full((9, 20), math.inf),
        matrix([1.0], 1, 20),
    ],
    ids=["zero", "vector", "counter", "full rank", "not finite", "one row"],
)
def test_what_factors_do_not_shorten_is_sent_whole(w: Tensor) -> None:
    (sent,) = low_rank.compress({"w": w}, 0.75)["w"]
    assert torch.equal(sent, w)


def test_factors_of_a_rank_that_saves_nothing_are_refused() -> None:
    m, n = 9, 20
    for r, accepted in ((5, True), (6, False)):  # 5 · 30 < 9 · 20 = 6 · 30
        update = {"w": [torch.zeros(m, r), torch.zeros(r), torch.zeros(r, n)]}
        with nullcontext() if accepted else pytest.raises(ValueError, match="3 factors of rank 6"):
            low_rank.check(update, {"w": torch.zeros(m, n)}, "client 0")


def test_the_bytes_are_those_of_the_factors(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = record_calls(monkeypatch, Records, "pack", lambda _, payload: payload)
    played = run(**{**FEDKD, "fleet": "mlp"})
    updates = [p.update for p in packed if isinstance(p, Reply) and p.t == 2]
    shortened = [
        (played.model[name].shape, parts)
        for update in updates
        for name, parts in update.items()
        if len(parts) == 3
    ]
    assert len(shortened) >= 4
    for (m, n), parts in shortened:
        numbers = len(parts[1]) * (m + n + 1)
        assert sum(part.numel() for part in parts) == numbers < m * n
    total = sum(part.nbytes for update in updates for parts in update.values() for part in parts)
    # the request has the mean's factors instead of w
    last, first = played.journal[2]["bytes"], played.journal[1]["bytes"]
    assert last["arrays_up"] == total and last["arrays_down"] < first["arrays_down"]


@pytest.mark.parametrize("loses", [False, True])
def test_an_update_continues_from_the_servers_mentee(loses, tmp_path, monkeypatch) -> None:
    """Where each client gets w whole in each round, everything is the same, except for bytes."""
    given = {**FEDKD, "rounds": 4, "min_replies": 0.5, **({} if loses else {"per_round": 3})}
    grid = {"grid": Losing} if loses else {}
    run = play(flat(tmp_path / "a", **given), **grid)
    requested = ServerHalf.request

    def whole(self: ServerHalf, t: int) -> Any:
        self.holders = []
        return requested(self, t)

    monkeypatch.setattr(ServerHalf, "request", whole)
    other = play(flat(tmp_path / "b", **given), **grid)
    assert run.weights == other.weights
    for ours, theirs in zip(run.journal[1:], other.journal[1:], strict=True):
        assert ours["client_metrics"] == theirs["client_metrics"]
    down = [[entry["bytes"]["arrays_down"] for entry in r.journal[1:]] for r in (run, other)]
    assert down[0][0] == down[1][0] and all(a < b for a, b in zip(*down, strict=True) if a != b)
    assert down[0] != down[1]
