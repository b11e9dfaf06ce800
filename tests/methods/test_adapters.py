"""Methods for low-rank adapters: hand numbers, what travels, mixed ranks and refusals."""

import json
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from client_app.bases.global_copy import GlobalCopy
from client_app.bases.partly_shared import ClientState
from common import models
from common.exchange.model_file import write
from common.exchange.tree import snapshot
from common.methods.hetlora import Options, squared_norms, tail, truncated
from common.models import Architecture, weights
from common.models.adapters import (
    Adapted,
    AdaptedConvolution,
    AdaptedLinear,
    Adapter,
    Dense,
    pairs,
)
from common.models.classifier import Classifier
from common.techniques.low_rank import combined
from deploy.study.finished import finished
from deploy.study.predictor import Predictor
from server_app.methods.hetlora import HetLoRA, padded
from server_app.stopped import Stopped
from tests.support import battery
from tests.support.tiny import Run, TinyRun, flat, play, under
from tests.support.weights import own_models

# By hand: z = b·a, losses ½ (z − y)² for y = 2 and 0, a = 1 and b = 0 at first, η = 0.1.


class Scalar(Classifier):
    """Network with the frozen weight 0, whose adapter has rank 1."""

    def __init__(self, shape: Any, classes: int, factor: float) -> None:
        super().__init__()
        self.fc = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.fc.weight)
        self.head = nn.Linear(1, classes)
        nn.init.zeros_(self.head.weight)

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.fc(torch.ones(len(x), 1))
        return features


def by_hand(run: Run, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> TinyRun:
    def loss(self: GlobalCopy[Any, Any], request: Any, net: Classifier) -> Any:
        y = (2.0, 0.0)[self.participant.k]
        return lambda x, _: 0.5 * (net.features(x)[0, 0] - y).square()

    def draw(self: Adapted) -> None:
        nn.init.ones_(self.lora_A)
        nn.init.zeros_(self.lora_B)

    monkeypatch.setitem(models.MODELS, "one", Architecture(Scalar, 3, "a test", (1, 8, 8)))
    monkeypatch.setattr(GlobalCopy, "loss", loss)
    monkeypatch.setattr(Adapted, "draw", draw)
    one_step = under("train", batch_size=1000, epochs=1, momentum=0.0, lr=0.1)
    more = {
        "fleet": "one-lora1",
        "clients": 2,
        "average__weights": "uniform",
        "adapter__scale": 1.0,
    }
    return run(**{**one_step, **more, **settings})


@pytest.mark.parametrize(
    ("method", "course"),
    [
        ("fedit", [(1, 0.1), (1.009, 0.19), (1.024358, 0.271556), (1.043959, 0.345498)]),
        ("ffa-lora", [(1, 0.1), (1, 0.19), (1, 0.271)]),
        ("rolora", [(1, 0.1), (1.009, 0.1), (1.009, 0.190719), (1.024402, 0.190719)]),
    ],
)
def test_factors_by_hand(method: str, course: Any, run: Run, monkeypatch: Any) -> None:
    for rounds, (a, b) in enumerate(course, 1):
        w = by_hand(run, monkeypatch, method=method, rounds=rounds).model
        assert float(w["fc.lora_A"]) == pytest.approx(a, abs=2e-6)
        assert float(w["fc.lora_B"]) == pytest.approx(b, abs=2e-6)


def test_fedsa_averages_a_and_keeps_b_by_hand(run: Run, monkeypatch: Any) -> None:
    for rounds, a, kept in ((1, 1, (0.2, 0)), (2, 1.018, (0.38, 0)), (3, 1.04865, (0.54422, 0))):
        played = by_hand(run, monkeypatch, method="fedsa-lora", rounds=rounds)
        assert played.model.keys() == {"fc.lora_A"}
        assert float(played.model["fc.lora_A"]) == pytest.approx(a, abs=1e-5)
        states = own_models(played, rounds, ClientState, "w")
        assert [float(w["fc.lora_B"]) for w in states] == pytest.approx(kept, abs=1e-5)


# E1: o = i = 2, ranks 1, s = 2, p = (1/4, 3/4). E2: o = 3, i = 2, ranks 1 and 2.

E1 = (
    (torch.tensor([[1.0, 0]]), torch.tensor([[2.0], [0]])),
    (torch.tensor([[1.0, 2]]), torch.tensor([[0], [2.0]])),
)
E2 = (
    (torch.tensor([[1.0, 0]]), torch.tensor([[3.0], [4], [0]])),
    (torch.tensor([[0.0, 2], [1, 1]]), torch.tensor([[1.0, 0], [0, 1], [0, 2]])),
)


def state(a: Tensor, b: Tensor) -> dict[str, Tensor]:
    return {"x.lora_A": a, "x.lora_B": b}


def test_the_mean_update_and_its_best_approximation_by_hand() -> None:
    a, b = combined([(a, 2 * b) for a, b in E1], (0.25, 0.75))
    assert_close(b @ a, torch.tensor([[1.0, 0], [3, 6]]))
    assert_close(b.norm(dim=0), torch.tensor([6.723363, 0.892411]))
    assert_close(a[:1], torch.tensor([[0.455252, 0.890362]]), atol=1e-6, rtol=0)
    assert_close(b[:, :1] / 2, torch.tensor([[0.227626], [3.353966]]), atol=1e-6, rtol=0)
    assert_close(
        b[:, :1] @ a[:1],
        torch.tensor([[0.207255, 0.40534], [3.053802, 5.972491]]),
        atol=2e-6,
        rtol=0,
    )
    assert_close(a @ a.T, torch.eye(2))


def test_the_mean_update_has_the_rank_of_the_sum() -> None:
    a, b = combined([E1[0], E1[0]], (0.5, 0.5))
    assert a.shape == (1, 2) and b.shape == (2, 1)
    assert_close(b @ a, E1[0][1] @ E1[0][0])
    wide = [(torch.randn(5, 3), torch.randn(4, 5)), (torch.randn(2, 3), torch.randn(4, 2))]
    a, b = combined(wide, (0.3, 0.7))
    assert a.shape == (3, 3), "at most the smaller side"
    assert_close(b @ a, 0.3 * wide[0][1] @ wide[0][0] + 0.7 * wide[1][1] @ wide[1][0])


def test_weights_padding_and_tails_of_hetlora_by_hand() -> None:
    w = [state(*factors) for factors in E2]
    norms = [squared_norms(one)["x"] ** 0.5 for one in w]
    assert norms == pytest.approx([5, 3.741657], abs=1e-6)
    p = [norm / sum(norms) for norm in norms]
    whole = state(torch.zeros(2, 2), torch.zeros(3, 2))
    a, b = (
        sum(q * padded(one, whole)[name] for q, one in zip(p, w, strict=True)) for name in whole
    )
    assert_close(a, torch.tensor([[0.571974, 0.856052], [0.428026, 0.428026]]), atol=2e-6, rtol=0)
    assert_close(
        b, torch.tensor([[2.143948, 0], [2.287896, 0.428026], [0, 0.856052]]), atol=2e-6, rtol=0
    )
    assert float(tail(w[1], 1)) == pytest.approx(3.162278, abs=1e-6)
    assert float(tail(w[1], 2)) == 0
    cut = truncated({**w[1], "head.weight": whole["x.lora_B"]}, 1)
    assert [tuple(value.shape) for value in cut.values()] == [(1, 2), (3, 1), (3, 2)]


@pytest.mark.parametrize(
    ("settings", "rank", "kept"),
    [
        *(({}, 8, 7), ({"gamma": 0.5}, 8, 4), ({"gamma": 1.0}, 8, 8), ({}, 1, 1)),
        *(({"gamma": 0.5, "rank_min": 6}, 8, 6), ({"rank_min": 4}, 2, 2)),
    ],
)
def test_a_client_prunes_to_the_share_of_its_rank(settings: Any, rank: int, kept: int) -> None:
    assert Options(**settings).kept(rank) == kept


def test_zeros_shrink_the_last_rows_even_without_training(run: Run) -> None:
    """Rows above the rank of a small client halve in every round; a mean over rows is stable."""
    settings = {**battery.RANKS, "method": "hetlora", "clients": 2, "hetlora__weigh": "samples"}
    settings |= {"hetlora__gamma": 1.0, "train__lr": 1e-30, "average__weights": "uniform"}
    first = models.build("mlp-lora4@0.25", (1, 8, 8), 3, seed=1).state_dict()
    for mixed, factor in (("zeros", 0.25), ("rows", 1.0)):
        w = run(**settings, hetlora__mixed=mixed, rounds=2).model
        for layer, a, _ in pairs(w):
            start = first[f"{layer}.lora_A"]
            assert_close(a[:2], start[:2])
            assert_close(a[2:], factor * start[2:])


def test_a_mean_by_rows_is_that_of_fedavg_across_widths(run: Run) -> None:
    settings = {**battery.RANKS, "train__epochs": 1}
    own = {"method": "hetlora", "hetlora__gamma": 1.0, "hetlora__weigh": "samples"}
    theirs = run(**{**settings, "method": "fedavg", "average__across": "width"})
    assert run(**settings, **own, hetlora__mixed="rows").weights == theirs.weights
    assert run(**settings, **own).weights != theirs.weights


def test_flora_and_flexlora_have_one_model_after_the_first_round(run: Run) -> None:
    settings = {**battery.RANKS, "train__epochs": 1, "rounds": 1}
    flora, flexlora = (run(**settings, method=name).model for name in ("flora", "flexlora"))
    for name, value in flora.items():
        assert_close(value, flexlora[name], atol=1e-6, rtol=1e-4)


def test_a_pruned_client_is_sent_its_smaller_rank(run: Run, monkeypatch: Any) -> None:
    """Ranks 4 and 2 with γ = 1/2 become 2 and 1, then 1 and 1."""
    growing = count()
    monkeypatch.setattr("client_app.methods.hetlora.tail", lambda w, c: float(next(growing)))
    settings = {**battery.RANKS, "method": "hetlora", "hetlora__gamma": 0.5, "train__epochs": 1}
    played = run(**{**settings, "rounds": 3, "hetlora__prune_weight": 0.0})
    ranks = [(4, 2, 4, 2), (2, 1, 2, 1), (1, 1, 1, 1), (1, 1, 1, 1)]
    sent = [sum(size(rank) for rank in round_) for round_ in ranks]
    found = [entry["bytes"] for entry in played.journal[1:]]
    assert [each["arrays_down"] for each in found[:2]] == sent[:2]
    assert [each["arrays_up"] for each in found] == sent[1:]


def test_a_client_that_returns_with_a_smaller_rank_is_sent_that_rank() -> None:
    half: Any = SimpleNamespace(ranks={1: 3})
    for own, sent in ((4, 3), (3, 3), (2, 2)):
        client: Any = SimpleNamespace(k=1, architecture=f"mlp-lora{own}@0.25")
        assert HetLoRA.trains(half, client) == f"mlp-lora{sent}@0.25"


# What travels.


def size(rank: int, ends: tuple[str, ...] = ("",)) -> int:
    """Return the bytes of the entries with these ends of a network with adapters."""
    w = models.build(f"mlp-lora{rank}@0.25", (1, 8, 8), 3, seed=0).state_dict()
    return 4 * sum(value.numel() for name, value in w.items() if name.endswith(ends))


HEAD, A, B = ("weight", "bias"), ("lora_A",), ("lora_B",)
WHOLE, FIRST, SECOND = 4 * size(4), 4 * size(4, HEAD + B), 4 * size(4, HEAD + A)
MIXED = 2 * size(4) + 2 * size(2)
DENSE = 4 * (4 * (64 * 32 + 32 * 32) + size(4, HEAD))


@pytest.mark.parametrize(
    ("method", "first", "second"),
    [
        ("fedit", (WHOLE, WHOLE), (WHOLE, WHOLE)),
        ("ffa-lora", (FIRST, FIRST), (FIRST, FIRST)),
        ("rolora", (WHOLE, FIRST), (FIRST, SECOND)),
        ("hetlora", (MIXED, MIXED), (MIXED, MIXED)),
        ("flora", (DENSE, MIXED), (DENSE, MIXED)),
        ("flexlora", (MIXED, MIXED), (MIXED, MIXED)),
    ],
)
def test_bytes_are_those_of_what_travels(method: str, first: Any, second: Any, run: Run) -> None:
    settings = {**battery.OVERRIDES[method], "method": method, "rounds": 3, "train__epochs": 1}
    own = {"hetlora": {"hetlora__gamma": 1.0}, "flora": {"flora__send": "dense"}}
    played = run(**settings | own.get(method, {}))
    found = [(e["bytes"]["arrays_down"], e["bytes"]["arrays_up"]) for e in played.journal[1:3]]
    assert found == [first, second]


def test_a_stack_gives_the_bits_of_the_dense_update_and_has_the_bytes_of_all_factors(
    run: Run,
) -> None:
    settings = {**battery.RANKS, "method": "flora", "train__epochs": 1, "score__every": 4}
    some = {**settings, "rounds": 4, "clients": 4, "per_round": 3}
    dense, stack = run(**some), run(**some, flora__send="stack")
    assert stack.weights == dense.weights
    for before, entry in pairwise(stack.journal[1:-1]):
        known = {*before["replied"]} & {*entry["selected"]}
        factors = sum(size(2 if k % 2 else 4, A + B) for k in before["replied"])
        expected = len(known) * (factors + size(4, HEAD)) + (3 - len(known)) * DENSE // 4
        assert entry["bytes"]["arrays_down"] == expected


def test_a_client_without_a_reply_in_the_last_round_is_sent_both_halves(run: Run) -> None:
    settings = {**battery.RANK, "method": "rolora", "train__epochs": 1, "per_round": 2}
    played = run(**{**settings, "rounds": 6, "score__every": 6})
    for before, entry in pairwise(played.journal[1:-1]):
        known = {*before["replied"]} & {*entry["selected"]}
        half = (FIRST if entry["round"] % 2 == 0 else SECOND) // 4
        assert entry["bytes"]["arrays_down"] == half * len(known) + size(4) * (2 - len(known))


# The frozen base, and what is refused.

ACROSS = {"method": "fedavg", "average__across": "width"}


def test_new_layers_before_the_head_are_trained_whole() -> None:
    """MOON's projection is random in a new network, whatever its base has learnt."""
    form = ((1, 8, 8), 3, "auto", True)
    net = models.build("cnn2-lora2@0.5", *form, seed=1)
    trained = {name for name, _ in net.named_parameters()}
    assert {"projection.0.weight", "projection.2.bias", "head.weight"} <= trained
    assert all("projection" in n or "head" in n or n.endswith((*A, *B)) for n in trained)


def test_a_base_neither_travels_nor_changes_and_is_in_memory_once(run: Run) -> None:
    base = models.build("cnn2@0.5", (1, 8, 8), 3, seed=1)
    first, second = (models.build("cnn2-lora2@0.5", (1, 8, 8), 3, seed=1, base=base) for _ in "ab")
    own, other = dict(first.named_buffers()), dict(second.named_buffers())
    assert own and all(own[name].data_ptr() == other[name].data_ptr() for name in own)
    assert {name.rpartition(".")[2] for name in first.state_dict()} == {*HEAD, *A, *B}
    assert first.head.weight.data_ptr() != second.head.weight.data_ptr(), "it is trained"
    x = torch.rand(5, 1, 8, 8)
    before = {name: value.clone() for name, value in own.items()}
    assert torch.equal(first.eval()(x), base.eval()(x)), "a new adapter changes no bit"
    optimizer = torch.optim.SGD(first.train().parameters(), 0.1)
    first(x).square().sum().backward()
    assert all(not p.grad.any() for n, p in first.named_parameters() if n.endswith("lora_A"))
    assert all(p.grad.any() for n, p in first.named_parameters() if n.endswith("lora_B"))
    optimizer.step()
    for name, value in first.named_buffers():
        assert torch.equal(value, before[name]), f"{name} is frozen, statistics too"


def test_an_update_of_a_layer_is_the_product_of_its_factors() -> None:
    """Of linear layers and of convolutions of all strides and paddings."""
    draw = torch.Generator().manual_seed(3)
    for layer, shape in (
        (nn.Linear(5, 7), (4, 5)),
        (nn.Conv2d(3, 6, 3, stride=2, padding=1), (2, 3, 9, 9)),
        (nn.Conv2d(3, 6, (1, 4), dilation=(1, 2)), (2, 3, 9, 9)),
        (nn.Conv1d(3, 6, 5, padding=2), (2, 3, 11)),
    ):
        kind = AdaptedLinear if isinstance(layer, nn.Linear) else AdaptedConvolution
        adapted = kind(layer, 3, Adapter(scale=0.5))
        adapted.lora_B.data = torch.randn(adapted.lora_B.shape, generator=draw)
        x = torch.randn(shape, generator=draw)
        found = adapted(x)
        layer.weight.data += 0.5 * (adapted.lora_B @ adapted.lora_A).view(layer.weight.shape)
        assert_close(found, layer(x), atol=1e-5, rtol=1e-5)


class Attentive(Classifier):
    """Network with an encoder layer of torch, which reads weights of linear layers."""

    def __init__(self, shape: Any, classes: int, factor: float) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, classes)

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.encoder(x.flatten(1, 2)).mean(1)
        return features


@pytest.mark.parametrize("kind", ["lora2", "dense"])
def test_attention_of_torch_computes_with_the_updated_weights(kind: str, monkeypatch: Any) -> None:
    monkeypatch.setitem(models.MODELS, "torchs", Architecture(Attentive, 3, "a test", (1, 8, 8)))
    net, x = models.build(f"torchs-{kind}", (1, 8, 8), 3, seed=1), torch.rand(5, 1, 8, 8)
    plain = models.build("torchs", (1, 8, 8), 3, seed=1)
    assert_close(net(x), plain(x))
    net(x).square().sum().backward()
    assert all(p.grad.any() for n, p in net.named_parameters() if n.endswith(("lora_B", "lora_W")))
    for parameter in net.parameters():
        parameter.data = torch.randn(parameter.shape)
    for name, module in net.named_modules():
        if isinstance(module, Adapted | Dense):
            plain.get_submodule(name).weight.data = module.weight.detach()
    plain.head = net.head
    assert_close(net(x), plain(x), atol=1e-4, rtol=1e-4)
    with torch.no_grad():  # torch's fast path
        assert_close(net.eval()(x), plain(x), atol=1e-4, rtol=1e-4)


def test_alpha_gives_each_rank_its_own_factor() -> None:
    assert Adapter(alpha=16.0).scale_of(4) == 4.0 and Adapter().scale_of(4) == 2.0


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"fleet": "mlp@0.25"}, "mlp@0.25 has none: .* as in mlp-lora4@0.25"),
        ({"fleet": "mlp-lora2@0.25,mlp-lora4@0.25"}, "methods of several ranks: hetlora, flora"),
        (
            {"fleet": "mlp-lora2@0.25,cnn2-lora2"},
            "mlp-lora2@0.25 and cnn2-lora2|cnn2-lora2 and mlp",
        ),
        (
            {"fleet": "mlp-lora33@0.25"},
            "rank 33 is not allowed for layers.0 of mlp@0.25, .* rank 32",
        ),
        (
            {"fleet": "mlp-lora0@0.25"},
            "the rank behind -lora should be 1 to 99999, as in mlp-lora4",
        ),
        ({"fleet": "mlp-lora"}, "the rank behind -lora should be 1 to 99999, as in mlp-lora4"),
        (
            {"adapter__base": "net"},
            'adapter.base = "net" needs its network in the fleet: base-lora4',
        ),
        ({"method": "fedavg", "fleet": "mlp", "adapter__scale": 3.0}, "adapter.scale = 3.0 needs"),
        ({"fleet": "mlp-lora2-lora4@0.25"}, "mlp-lora2 has adapters already"),
        ({"adapter__targets": "qkv"}, "'qkv' matches no layer of mlp@0.25; it has layers.0"),
        ({"adapter__targets": "layers.0,layers.9"}, "has 'layers.9', which matches no layer"),
        ({"global_model": "mlp@0.25"}, "mlp@0.25 has none"),
        ({"method": "flora", "global_model": "mlp-lora4@0.25"}, 'allowed: "smallest"'),
        ({"method": "hetlora", "adapter__alpha": 8.0}, "s = alpha / r would differ"),
        ({"method": "hetlora", "oca__aggregate": "on"}, "which averages shrinking ranks"),
        (
            {**battery.RANKS, **ACROSS, "adapter__alpha": 8.0},
            "adapter.alpha = 8.0 is not allowed with networks of several ranks",
        ),
        (
            {**ACROSS, "average__across": "layerwise", "fleet": "cnn2-lora2@0.5,cnn3-lora2@0.5"},
            r"adapters of several networks \(cnn2@0.5, cnn3@0.5\), whose frozen layers differ",
        ),
        ({"fleet": "mlp-dense@0.25"}, "as in mlp-lora4@0.25"),
        (
            {**ACROSS, "fleet": "mlp-lora4@0.25,mlp-lora4@0.5"},
            "mlp-lora4@0.25 is no rank of mlp@0.5, as in mlp-lora4@0.5",
        ),
        (
            {"method": "rolora", "average__server_optimizer": "adam"},
            "rounds train different entries",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(settings: Any, line: str, tmp_path: Any) -> None:
    with pytest.raises(ValueError, match=line) as refused:
        play(flat(tmp_path, **{"method": "fedit", **battery.RANK, **settings}))
    assert "\n" not in str(refused.value)


def read_net(file: Path) -> Classifier:
    net = models.build("mlp@0.25", (1, 8, 8), 3, seed=0)
    net.load_state_dict(weights.read(file))
    return net


def test_a_client_with_another_base_is_refused_with_both_digests(tmp_path: Path) -> None:
    files = [tmp_path / f"{seed}.safetensors" for seed in (1, 2)]
    for seed, file in enumerate(files):
        write(file, snapshot(models.build("mlp@0.25", (1, 8, 8), 3, seed=seed)))
    ours, theirs = (weights.digest(read_net(file)) for file in files)
    settings = {**battery.RANK, "method": "fedit", "weights": str(files[0])}
    with pytest.raises(Stopped, match=rf"client 1 has task .*{theirs}.*, the server .*{ours}"):
        play(flat(tmp_path / "out", **settings, **{"node.1.weights": str(files[1])}))


def test_a_base_that_the_server_does_not_have_is_compared_too(tmp_path: Path) -> None:
    for seed, folder in enumerate((tmp_path, tmp_path / "other")):
        folder.mkdir(exist_ok=True)
        for name in ("mlp@0.25", "cnn2@0.5"):
            net = models.build(name, (1, 8, 8), 3, seed=seed if name == "cnn2@0.5" else 0)
            write(folder / f"{name}.safetensors", snapshot(net))
    fleet = "mlp-lora2@0.25,cnn2-lora2@0.5"
    settings = {"method": "local", "fleet": fleet, "weights": str(tmp_path / "{model}.safetensors")}
    play(flat(tmp_path / "same", **settings))
    other = {"node.1.weights": str(tmp_path / "other" / "{model}.safetensors")}
    with pytest.raises(Stopped, match="client 1 has task .*base cnn2@0.5 .*, the server .*cnn2"):
        play(flat(tmp_path / "out", **settings, **other))


def test_a_copy_of_the_base_elsewhere_is_the_same_base(tmp_path: Path, run: Run) -> None:
    file, copy = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    write(file, snapshot(models.build("mlp@0.25", (1, 8, 8), 3, seed=5)))
    write(copy, snapshot(models.build("mlp@0.25", (1, 8, 8), 3, seed=5)))
    settings = {**battery.RANK, "method": "fedit", "weights": str(file), "train__epochs": 1}
    assert run(**settings).weights == run(**settings, **{"node.1.weights": str(copy)}).weights


@pytest.mark.parametrize("method", ["hetlora", "flora"])
def test_a_result_is_loaded_above_its_own_base_only(method: str, tmp_path: Path) -> None:
    file = tmp_path / "base.safetensors"
    write(file, snapshot(models.build("mlp@0.25", (1, 8, 8), 3, seed=5)))
    settings = {**battery.RANKS, "method": method, "weights": str(file), "train__epochs": 1}
    played = play(flat(tmp_path / "run", **settings))
    one = finished(played.folder)
    net = one.server_model(one.task(one.dataset()))
    assert net.spec == {"hetlora": "mlp-lora4@0.25", "flora": "mlp-dense@0.25"}[method]
    assert_close(dict(net.state_dict()), played.model)
    write(file, snapshot(models.build("mlp@0.25", (1, 8, 8), 3, seed=6)))
    for client in (None, 1):
        with pytest.raises(ValueError, match=r"is a run of the task .*, which is now"):
            Predictor.of_run(played.folder, client)


@pytest.mark.parametrize("method", ["fedit", "flora"])
def test_a_merged_export_is_the_base_with_what_was_learnt(
    method: str, run: Run, tmp_path: Path
) -> None:
    fleet = {"fleet": "cnn2-lora2@0.5"} if method == "fedit" else {}
    played = run(**{**battery.OVERRIDES[method], "method": method, **fleet, "train__lr": 0.02})
    model = Predictor.of_run(played.folder, None)
    file, card = model.export(tmp_path / "merged", "merged")
    base = models.frozen(model.card.architecture)
    assert json.loads(card.read_text())["architecture"] == base
    net, x = models.build(base, (1, 8, 8), 3, seed=5), torch.rand(6, 1, 8, 8)
    net.load_state_dict(weights.fitted(net, weights.read(file), file), strict=False)
    assert_close(net.eval()(x), model.net.eval()(x), atol=1e-5, rtol=1e-5)
    plain = run(method="fedavg", fleet="mlp@0.25")
    with pytest.raises(ValueError, match="no adapters to merge"):
        Predictor.of_run(plain.folder, None).export(tmp_path / "plain", "merged")
    with pytest.raises(ValueError, match="has no adapter that peft can load"):
        model.export(tmp_path / "peft", "peft")
