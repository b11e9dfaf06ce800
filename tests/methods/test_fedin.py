"""FedIN."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from client_app.methods.fedin import FedIN, INTraining, Local, bounded
from common import models, seeds
from common.exchange import tree
from common.exchange.records import Records
from common.losses.gradients import Divergence
from common.methods.fedin import Options, Reply, Request
from common.models.classifier import Split
from common.models.split import common_shapes, shapes
from deploy.run.loopback import Loopback
from server_app.stopped import Stopped
from tests.support.halves import server, task
from tests.support.recorded_calls import record_calls
from tests.support.tiny import Run, TinyRun, flat, play, under

FLEET = {"fleet": "cnn2@0.5,cnn3@0.5"}
RESNETS = [f"resnet{depth}" for depth in (10, 14, 18, 22, 26)]


def results(run: TinyRun) -> list[Any]:
    """What a run computes, without what it sends for it."""
    keys = ("accuracy", "loss", "accuracies", "client_metrics", "metrics", "scores", "clients")
    return [[entry.get(key) for key in keys] for entry in run.journal]


def test_the_first_round_is_local_training_and_the_second_is_not(run: Run) -> None:
    fedin = run(method="fedin", rounds=2, **FLEET)
    layerwise = {"average__across": "layerwise", "average__weights": "uniform"}
    fedprox = run(method="fedprox", fedprox__mu=0.1, rounds=2, **layerwise, **FLEET)
    (_, first, second), (_, prox_first, prox_second) = results(fedin), results(fedprox)
    assert first[:5] == prox_first[:5] and second != prox_second
    assert "client_in_loss" not in fedin.journal[1]["metrics"]
    assert fedin.journal[2]["metrics"]["client_in_loss"] > 0


def test_scores_are_means_over_architectures_and_clients_score_their_own(run: Run) -> None:
    for across in ("layerwise", "same"):
        last = run(method="fedavg", average__across=across, **FLEET).journal[-1]
        assert list(last["accuracies"]) == ["cnn2@0.5", "cnn3@0.5"]
        assert last["accuracy"] == pytest.approx(sum(last["accuracies"].values()) / 2)
    fedin = run(method="fedin", average__across="same", **FLEET)
    assert [c["model"] for c in fedin.summary["clients"]] == ["cnn2@0.5", "cnn3@0.5"] * 2
    assert all(c["accuracy"] is not None for c in fedin.summary["clients"])
    assert {name.partition("/")[0] for name in fedin.model} == {"cnn2@0.5", "cnn3@0.5"}


def test_a_node_that_brings_another_family_is_refused_by_the_server(tmp_path: Any) -> None:
    settings = flat(tmp_path, method="fedin", **FLEET)
    grid = Loopback(4, settings, workers=0, node_configs={2: {"model": "cnn3"}})
    with pytest.raises(Stopped, match="no common split"):
        play(settings, grid)


def net(spec: str = "cnn3@0.25") -> Split:
    return models.build(spec, (1, 8, 8), 3, seed=1).train()  # type: ignore[return-value]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(6, 1, 8, 8, generator=seeds.stream(1, "x"))
    return x, torch.tensor([0, 1, 2, 0, 1, 2])


class OneStep:
    """Stands for a participant: trains steps of SGD with learning rate 1 on one batch."""

    def __init__(self, **options: Any) -> None:
        given = {"mu": 0.0, "lambda_local": 1.0, "outer_scale": 0.5, "grad_mode": "eq14", **options}
        train = {"optimizer": "sgd", "lr": 1.0, "momentum": 0.0, "weight_decay": 0.0, "clip": 0.0}
        own = {**under("train", **train), **under("fedin", **given)}
        self.task = task(method="fedin", precision="fp32", **own)
        self.config, self.steps = self.task.config, 1

    def train(self, t: int, parameters: Any, loss: Any, after: Any = None) -> dict[str, float]:
        batches = [batch()] * self.steps
        return self.task.fit(t, parameters, batches, loss, after)


def half(network: Split, **options: Any) -> FedIN:
    """FedIN's client half with ``network`` as w_k."""
    fedin = FedIN(OneStep(**options))  # type: ignore[arg-type]
    fedin.local = Local(network, fedin.options.mu)
    return fedin


def stepped(**options: Any) -> tuple[dict[str, torch.Tensor], ...]:
    """The step of both losses together, and by autograd G_local and G_IN, by parameter."""
    c, h, w = shapes("cnn3@0.25", (1, 8, 8), 3).s_in
    s_in = torch.randn(4, c, h, w, generator=seeds.stream(1, "s"))
    s_out = torch.zeros_like(net().intermediate(s_in)).detach()
    network, fresh, (x, y) = net(), net(), batch()
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    half(network, **options)._together(1, INTraining(network, s_in, s_out))
    step = {name: before[name] - p.detach() for name, p in network.named_parameters()}
    own = dict(fresh.named_parameters())
    inner = {name: p for name, p in own.items() if fresh.part(name) == "intermediate"}
    losses = F.cross_entropy(fresh(x), y), fresh.intermediate(s_in).square().mean()
    gradients = (
        dict(zip(named, torch.autograd.grad(loss, [*named.values()]), strict=True))
        for loss, named in zip(losses, (own, inner), strict=True)
    )
    return step, *gradients


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_equation_14_is_g_in_plus_half_g_local(scale: float) -> None:
    step, g_local, g_in = stepped(outer_scale=scale)
    for name, z in step.items():
        expected = g_in[name] + 0.5 * g_local[name] if name in g_in else scale * g_local[name]
        assert torch.allclose(z, expected, atol=1e-6), name


def test_equation_13_drops_or_projects_the_local_gradient() -> None:
    step, g_local, g_in = stepped(grad_mode="eq13")
    a = sum(float(g_local[name].square().sum()) for name in g_in)
    b = sum(float((g_local[name] * g).sum()) for name, g in g_in.items())
    factor = -b / a if b < 0 else 0.0
    for name, z in step.items():
        expected = g_in[name] + factor * g_local[name] if name in g_in else 0.5 * g_local[name]
        assert torch.allclose(z, expected, atol=1e-6), name


@pytest.mark.parametrize(("how", "steps"), [("sequential", 1), ("phases", 3)])
def test_steps_on_the_features_follow_each_local_step_or_all_of_them(how: str, steps: int) -> None:
    s_in = torch.randn(4, 8, 4, 4, generator=seeds.stream(1, "s"))
    network, by_hand, (x, y) = net(), net(), batch()
    in_training = INTraining(network, s_in, torch.zeros(4, 16, 2, 2))
    fedin = half(network, grad_mode=how)
    fedin.participant.steps = steps  # type: ignore[attr-defined]
    fedin._apart(1, in_training)
    assert in_training.count == steps

    inner = [p for name, p in by_hand.named_parameters() if by_hand.part(name) == "intermediate"]
    local, second = (torch.optim.SGD(of, lr=1.0) for of in (by_hand.parameters(), inner))
    for optimizer in [local] * steps + [second] * steps:
        optimizer.zero_grad()
        outputs = by_hand.intermediate(s_in)
        loss = F.cross_entropy(by_hand(x), y) if optimizer is local else outputs.square().mean()
        loss.backward()
        optimizer.step()
    for name, p in network.named_parameters():
        assert torch.allclose(p, by_hand.get_parameter(name), atol=1e-5), name


def test_the_journal_tells_how_the_gradients_lie_to_each_other(run: Run) -> None:
    for mode in ("eq14", "eq13"):
        settings = {"method": "fedin", "fedin__grad_mode": mode, **FLEET}
        told, silent = run(**settings, fedin__compare=1), run(**settings, fedin__compare=0)
        metrics = told.journal[-1]["metrics"]
        assert 0 <= metrics["client_conflict"] <= 1 and -1 <= metrics["client_cosine"] <= 1
        assert metrics["client_norm_ratio"] > 0
        assert "client_conflict" not in silent.journal[-1]["metrics"]
        assert told.weights == silent.weights, "looking changes nothing"


def test_two_gradients_compared_by_hand() -> None:
    w = torch.nn.Parameter(torch.zeros(2))
    divergence = Divergence(every=2)
    # gradients (3, 4) and (0, 1): cosine 0.8, ratio 0.2; the next step is not compared;
    # (1, 0) and (-2, 0): they oppose each other, ratio 2
    for g, h in (((3.0, 4.0), (0.0, 1.0)), ((1.0, 0.0), (9.0, 9.0)), ((1.0, 0.0), (-2.0, 0.0))):
        divergence.compare((torch.tensor(g) * w).sum(), (torch.tensor(h) * w).sum(), [w])
    expected = {"conflict": 0.5, "cosine": (0.8 - 1) / 2, "norm_ratio": 1.1}
    assert divergence.metrics == pytest.approx(expected)
    assert Divergence(0).metrics == {}


def test_features_are_of_the_last_full_batch_clipped_by_sample_and_with_noise() -> None:
    network, (x, y) = net(), batch()
    local = Local(network, 0.0)
    for part in (slice(0, 2), slice(2, 4), slice(4, 5)):
        local(x[part], y[part])
    again = net()
    s_in, s_out = local.kept
    assert torch.equal(s_in, again.extractor(x[2:4])) and not s_in.requires_grad
    assert torch.equal(s_out, again.intermediate(s_in))
    s = torch.tensor([6.0, 8.0, 3.0, 0.0]).view(2, 2, 1, 1)  # norms 10 and 3
    clipped = bounded(s, Options(clip=5.0, noise=0.0), seeds.stream(1))
    assert clipped.flatten().tolist() == pytest.approx([3, 4, 3, 0])
    noisy, zeros = Options(clip=0.0, noise=0.5), torch.zeros(4, 8, 10, 10)
    first, second = (bounded(zeros, noisy, seeds.stream(1, "n")) for _ in range(2))
    assert torch.equal(first, second) and float(first.std()) == pytest.approx(0.5, rel=0.05)


def pool_of(limit: int, *entries: tuple[int, int, list[float]], **options: Any) -> Any:
    """Return a pool of features with entries (round, client, numbers): s_in x, s_out 10 x."""
    options = {f"fedin__{name}": value for name, value in options.items()}
    pool = server(method="fedin", fleet="cnn2@0.5", fedin__pool=limit, **options)
    for t, k, values in entries:
        rows = torch.tensor(values).view(-1, 1, 1, 1)
        pool.put(t, k, rows, 10 * rows)
    return pool


def test_the_pool_keeps_the_latest_of_each_client_and_draws_pairs_once() -> None:
    pool = pool_of(2, (1, 0, [1.0]), (1, 1, [1.0]), (2, 0, [2.0]), (3, 2, [3.0]))
    assert pool.rounds == {0: 2, 2: 3} and pool.s_in[0].item() == 2
    two = (1, 0, [0.0, 1, 2]), (1, 1, [3.0, 4, 5])
    s_in, s_out = pool_of(9, *two, samples=4, others_only=False).sample(2, 0)
    assert torch.equal(10 * s_in, s_out) and len(set(s_in.flatten().tolist())) == 4
    whole = pool_of(9, *two, samples=99, others_only=False).sample(2, 0)
    assert sorted(whole[0].flatten().tolist()) == [0, 1, 2, 3, 4, 5]
    assert pool_of(9, (1, 0, [0.0, 1, 2])).sample(2, 0) is None
    pool = pool_of(9, (1, 0, [0.0, 1, 2]), (1, 1, [7.0]))
    assert pool.sample(2, 0)[0].flatten().tolist() == [7]


def sent(run: Run, monkeypatch: pytest.MonkeyPatch, kind: type, **changes: Any) -> list[Any]:
    with monkeypatch.context() as patch:
        packed = record_calls(patch, Records, "pack", lambda _, payload: payload)
        run(method="fedin", **FLEET, **changes)
    return [payload for payload in packed if isinstance(payload, kind)]


def test_features_of_others_travel_if_there_is_in_training(run, monkeypatch) -> None:
    for others_only in (True, False):
        changes = {"rounds": 2, "fedin__others_only": others_only, "fedin__samples": 64}
        downs = [d for d in sent(run, monkeypatch, Request, **changes) if d.t == 2]
        assert len(downs) == 4
        # 4 clients uploaded 16 pairs each: 48 are others'
        assert [len(d.s_in) for d in downs] == [48 if others_only else 64] * 4
    replies = sent(run, monkeypatch, Reply, fedin__in_training=False)
    assert replies and all(reply.s_in is None and reply.s_out is None for reply in replies)


@pytest.mark.full
def test_sixteen_samples_cost_73728_numbers_and_the_mean_model_is_12_28_million() -> None:
    s_in, s_out = common_shapes(RESNETS, (1, 32, 32), 10)
    assert (s_in, s_out) == ((64, 8, 8), (512, 1, 1))
    extra = 16 * (64 * 8 * 8 + 512)  # 16 · (4,096 + 512)
    assert extra == 73_728
    mean = sum(models.parameters(spec, (1, 32, 32), 10) for spec in RESNETS) / 5
    # Table VI: 12.28 M for FedAvg, 12.35 M for FedIN
    assert round(mean / 1e6, 2) == 12.28 and round((mean + extra) / 1e6, 2) in (12.35, 12.36)


def test_the_sub_model_that_travels_is_the_servers(run: Run, monkeypatch: Any) -> None:
    downs = [d for d in sent(run, monkeypatch, Request, rounds=1) if d.t == 1]
    small, large = sorted(downs, key=lambda d: len(d.w))[:1][0], max(downs, key=lambda d: len(d.w))
    assert len(small.w) < len(large.w)
    tree.check_like(small.w, {name: large.w[name] for name in small.w}, "w")
    assert all(torch.equal(small.w[name], large.w[name]) for name in small.w)
