"""Networks for texts: sizes, padding, causality, the tied head, and what they refuse."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import seeds
from common.data import kinds, noise
from common.data.kinds import TOKENS, OfKind
from common.data.tokens import Hashes
from common.exchange.tree import check_nested
from common.models import MODELS, architecture, build, check, count, parameters
from common.models.blocks import last_blocks
from common.models.card import Card
from common.models.classifier import Classifier
from common.models.parts import layers
from common.models.signals import Attention
from common.models.texts import GPT, LanguageModel, RecurrentText, TextBiLSTM
from common.settings.config import FLEETS, entries
from common.training.costs import counting
from deploy.run.trial import Form
from deploy.study.predictor import Predictor
from server_app.clock.prediction import Predictor as Jobs
from tests.support.halves import task
from tests.support.own_modules import importing_from, module

V, T = 50, 20
WHOLE, EVERY = OfKind((T,), TOKENS, V), OfKind((T,), TOKENS, V, every=True)
OF_TEXTS = ["text-fast", "text-lr", "text-cnn", "text-bilstm", "text-lstm2", "text-gru2"]
OF_TEXTS += ["text-transformer-2", "text-transformer-1h8", "char-lstm"]
OF_TOKENS = ["gpt-2", "char-lstm"]
ALL = [*((spec, WHOLE) for spec in OF_TEXTS), *((spec, EVERY) for spec in OF_TOKENS)]
LENGTHS = (7, 20, 1, 12)


def of(spec: str, shape: OfKind, seed: int = 0) -> Classifier:
    return build(spec, shape, V if shape.every else 3, seed=seed)


def texts(*lengths: int, width: int = T) -> Tensor:
    """Return random texts [n, width] of these lengths, padded on the right."""
    x = kinds.random(len(lengths), OfKind((width,), TOKENS, V), seeds.stream(1, "texts"))
    return x * (torch.arange(width) < torch.tensor(lengths)[:, None])


@pytest.mark.parametrize(
    ("spec", "steps", "vocab", "outputs", "expected"),
    [
        ("text-fast", 64, 8192, 2, 528_578),
        ("text-lr", 64, 8192, 2, 524_418),
        ("text-cnn", 64, 8192, 2, 620_782),
        ("text-bilstm", 64, 8192, 2, 599_234),
        ("text-lstm2", 64, 8192, 2, 590_978),
        ("text-gru2", 64, 8192, 2, 574_338),
        ("text-transformer-2", 64, 8192, 8, 629_000),
        ("text-transformer-2h16", 64, 8192, 8, 629_000),
        ("gpt-2", 64, 256, 256, 120_576),
        ("char-lstm", 80, 80, 80, 819_920),
        # of HtFLlib, without the second bias of torch's own layers: 32,000 · 512 and the rest
        ("text-fast@8", 200, 32_000, 4, 32_000 * 512 + 512 * 513 + 4 * 513),
    ],
)
def test_parameters_are_those_of_the_table(spec, steps, vocab, outputs, expected) -> None:
    every = architecture(spec.partition("@")[0]).every
    shape = OfKind((steps,), TOKENS, vocab, every=every[-1])
    assert parameters(spec, shape, outputs) == expected
    assert count(build(spec, shape, outputs, seed=0)) == expected


@pytest.mark.parametrize(("spec", "shape"), ALL)
def test_padding_on_the_right_changes_nothing(spec: str, shape: OfKind) -> None:
    net, x = of(spec, shape).eval(), texts(*LENGTHS)
    with torch.no_grad():
        together = net(x)
        least = MODELS[spec].smallest if spec in MODELS else 1
        for row, length, logits in zip(x, LENGTHS, together, strict=True):
            alone = net(row[None, : max(length, least)])[0]
            if shape.every:
                alone, logits = alone[:length], logits[:length]
            torch.testing.assert_close(alone, logits, rtol=0, atol=1e-6)
        assert net(torch.zeros(2, T, dtype=torch.int32)).isfinite().all()


@pytest.mark.parametrize("spec", [spec for spec in OF_TEXTS if spec != "char-lstm"])
def test_no_network_reads_the_vector_of_padding(spec: str) -> None:
    net, x = of(spec, WHOLE).eval(), texts(7, 20, 5)
    with torch.no_grad():
        before = net(x)
        net.get_parameter("embedding.weight")[0] = 1e3
        torch.testing.assert_close(net(x), before, rtol=0, atol=0)


@pytest.mark.parametrize(("spec", "shape"), [pair for pair in ALL if pair[0] != "gpt-2"])
def test_the_vector_of_padding_stays_zero(spec: str, shape: OfKind) -> None:
    nets, x = [of(spec, shape, seed) for seed in (1, 2)], texts(*LENGTHS)
    for net in nets:
        step = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
        for _ in range(3):
            step.zero_grad()
            net(x).square().sum().backward()
            row = net.get_parameter("embedding.weight").grad
            assert row is not None and row[0].eq(0).all() and row[x[0, 0]].ne(0).any()
            step.step()
    one, two = (net.get_parameter("embedding.weight") for net in nets)
    assert ((one + two) / 2)[0].eq(0).all() and one[1].ne(0).all()


def test_recurrent_states_are_those_of_the_text_alone() -> None:
    x, length = texts(*LENGTHS), LENGTHS[0]
    net = of("text-lstm2", WHOLE).eval()
    assert isinstance(net, RecurrentText)
    (_, (state, _)) = net.rnn(net.embedding(x[:1, :length]))
    torch.testing.assert_close(net.features(x)[0], state[-1, 0], rtol=0, atol=1e-6)
    both = of("text-bilstm", WHOLE).eval()
    assert isinstance(both, TextBiLSTM)
    (_, (states, _)) = both.rnn(both.embedding(x[:1, :length]))
    features = both.fc(torch.cat([states[0], states[1]], 1))[0]
    torch.testing.assert_close(both.features(x)[0], features, rtol=0, atol=1e-6)


@pytest.mark.parametrize("spec", OF_TOKENS)
def test_logits_do_not_depend_on_later_tokens(spec: str) -> None:
    net, x = of(spec, EVERY).eval(), texts(T, T)
    changed, t = x.clone(), 8
    changed[:, t + 1 :] = x[:, t + 1 :] % (V - 1) + 1
    with torch.no_grad():
        before, after = net(x), net(changed)
        assert before.shape == (2, T, V) and net.features(x).shape[:2] == (2, T)
        torch.testing.assert_close(after[:, : t + 1], before[:, : t + 1], rtol=0, atol=1e-6)
        assert not torch.allclose(after[:, t + 1], before[:, t + 1], atol=1e-4)
        changed[:, :2] = x[:, :2] % (V - 1) + 1
        assert not torch.allclose(net(changed)[:, t], before[:, t], atol=1e-7)


def test_a_networks_outputs_follow_from_the_shape_that_it_is_built_for() -> None:
    shapes = [OfKind((T,), TOKENS, V, every) for every in (False, True)]
    whole, every = (build("char-lstm", shape, V, seed=3).eval() for shape in shapes)
    x = texts(*LENGTHS)
    with torch.no_grad():
        last = every(x)[range(4), [length - 1 for length in LENGTHS]]
        torch.testing.assert_close(whole(x), last, rtol=0, atol=1e-6)
    assert shapes[0] != shapes[1] and shapes[0] == OfKind((T,), TOKENS, V)
    assert parameters("char-lstm", shapes[0], V) == parameters("char-lstm", shapes[1], V)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_torchs(causal: bool) -> None:
    ours = Attention(16, heads=2, wide=4, dropout=0.1).eval()
    theirs = nn.TransformerEncoderLayer(
        16, 2, 64, activation="gelu", batch_first=True, norm_first=True
    ).eval()
    names = {"self_attn.in_proj_": "qkv.", "self_attn.out_proj.": "out.", "linear1.": "mlp.0."}
    state = {}
    for name in theirs.state_dict():
        own = name.replace("linear2.", "mlp.2.")
        for old, new in names.items():
            own = own.replace(old, new)
        state[name] = ours.state_dict()[own]
    theirs.load_state_dict(state)
    h, there = torch.randn(3, 6, 16), torch.arange(6) < torch.tensor([6, 4, 1])[:, None]
    before = torch.ones(6, 6, dtype=torch.bool).tril()
    with torch.no_grad():
        mine = ours(h, before if causal else there[:, None, None])
        masks = {"src_mask": ~before} if causal else {"src_key_padding_mask": ~there}
        other = theirs(h, **masks)
        rows = torch.ones_like(there) if causal else there
        torch.testing.assert_close(mine[rows], other[rows], rtol=0, atol=1e-5)


def test_the_head_of_gpt_is_its_embedding_and_starts_as_nanogpts() -> None:
    net = build("gpt-4@2", OfKind((64,), TOKENS, 257, every=True), 257, seed=0)
    state = net.state_dict()
    assert [name for name, w in state.items() if 257 in w.shape] == ["head.weight"]
    assert net.tied and isinstance(net, GPT) and net.head.bias is None
    for name, w in state.items():
        if "norm" in name:
            assert w.eq(float(name.endswith("weight"))).all(), name
        elif name.endswith("bias"):
            assert w.eq(0).all(), name
        else:
            added = name.endswith(("out.weight", "mlp.2.weight"))
            assert w.std().item() == pytest.approx(0.02 / (8**0.5 if added else 1), rel=0.03), name
            assert abs(w.mean().item()) < 0.001, name
    x = torch.tensor([[5, 9]], dtype=torch.int32)
    with torch.no_grad():
        before = net(x)
        net.head.weight[5] *= 2
        assert not torch.allclose(net(x)[..., 9], before[..., 9])  # read as an input
        assert not torch.allclose(net(x)[:, 0, 5], before[:, 0, 5])
    assert not any(of(spec, shape).tied for spec, shape in ALL if spec != "gpt-2")


@pytest.mark.parametrize(("spec", "shape"), ALL)
def test_dropout_is_off_in_evaluation(spec: str, shape: OfKind) -> None:
    net, x = of(spec, shape), texts(*LENGTHS)
    drops = spec.startswith(("text-cnn", "text-lstm2", "text-gru2", "text-transformer"))
    with torch.no_grad():
        assert torch.equal(net(x), net(x)) != drops
        net.eval()
        assert torch.equal(net(x), net(x))


@pytest.mark.parametrize(("spec", "shape"), ALL)
def test_every_network_learns(spec: str, shape: OfKind) -> None:
    net, x = of(spec, shape), texts(*range(6, 18))
    if shape.every:  # the next token is the one after this one, of nine
        x = (x > 0) * ((torch.arange(len(x))[:, None] + torch.arange(T)) % 9 + 1)
    y = x[:, 1:].long() if shape.every else x[:, 0].long() % 3
    step, losses = torch.optim.Adam(net.parameters(), 0.01), []
    with seeds.scope(0, "learns"):
        for _ in range(30):
            step.zero_grad()
            logits = net(x)[:, :-1] if shape.every else net(x)
            ignored = 0 if shape.every else -1
            loss = F.cross_entropy(logits.flatten(0, -2), y.flatten(), ignore_index=ignored)
            loss.backward()
            step.step()
            losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("spec", [*OF_TEXTS, "gpt-2"])
def test_moons_projection_and_a_common_width_are_below_the_head(spec: str) -> None:
    shape = EVERY if spec == "gpt-2" else WHOLE
    for options, width in (({"projection": True}, 256), ({"feature_dim": 24}, 24)):
        if spec == "gpt-2":
            with pytest.raises(ValueError, match="'gpt-2' has a tied head, which"):
                build(spec, shape, V, seed=0, **options)
            continue
        net = build(spec, shape, 3, seed=0, **options).eval()
        assert net.features(texts(5, 9)).shape == (2, width)
        assert net(texts(5, 9)).shape == (2, 3)
    net = build("char-lstm", EVERY, V, feature_dim=24, seed=0)
    assert net.features(texts(5, 9)).shape == (2, T, 24) and net(texts(5, 9)).shape == (2, T, V)


def test_names_tell_layers_and_heads() -> None:
    net = of("text-transformer-3h8@0.1", WHOLE)
    assert [part.heads for part in net.modules() if isinstance(part, Attention)] == [8] * 3
    assert [of(f"gpt-1h{n}@0.01", EVERY).head.in_features for n in (1, 2, 16)] == [4, 4, 16]
    same = [
        build(spec, WHOLE, 3, seed=0) for spec in ("text-transformer-2", "text-transformer-2h4")
    ]
    assert all(map(torch.equal, *(net.state_dict().values() for net in same)))
    assert isinstance(of("gpt-9", EVERY), LanguageModel)


@pytest.mark.parametrize(
    ("spec", "shape", "line"),
    [
        (
            "text-transformer-2h6",
            WHOLE,
            "'text-transformer-2h6': a transformer for texts has at most 32",
        ),
        ("gpt-33", EVERY, "at most 32 layers, and a number of heads that divides its width of 64"),
        ("gpt-0", EVERY, "no architecture 'gpt-0'"),
        ("text-cnn", OfKind((4,), TOKENS, V), "input 4 is too small, it takes 5 or more"),
        ("text-fast", (1, 8, 8), "'text-fast' takes tokens, but the data are images 1×8×8"),
        ("cnn2", WHOLE, "'cnn2' takes images, but the data are texts of 20 tokens; .* text-fast"),
        (
            "text-lstm2",
            EVERY,
            "'text-lstm2' has outputs for each text, but .* next tokens; use gpt",
        ),
        ("text-transformer-2", EVERY, "next tokens; use gpt-1, gpt-2, gpt-4, char-lstm"),
        ("gpt-2", WHOLE, "'gpt-2' has outputs for each token, but the data have classes; use text"),
    ],
)
def test_what_a_network_cannot_learn_is_refused_in_one_line(spec, shape, line) -> None:
    with pytest.raises(ValueError, match=line) as refusal:
        check(spec, shape, V)
    assert "\n" not in str(refusal.value)


def test_narrow_networks_are_blocks_of_wide_ones_only_without_gates_and_heads() -> None:
    nests = {spec for spec, _ in ALL if architecture(spec).nests}
    assert nests == {"text-fast", "text-lr"}


@pytest.mark.parametrize(("spec", "shape"), ALL)
def test_the_layers_of_a_network_begin_at_its_input_and_end_at_its_head(spec, shape) -> None:
    net = of(spec, shape)
    first, *_, last = layers(net)
    assert last == [name for name in net.state_dict() if name.startswith("head.")]
    assert first[0] == ("body.positions" if spec == "gpt-2" else "embedding.weight")


@pytest.mark.parametrize("spec", ["text-transformer-{}", "gpt-{}"])
def test_a_deeper_transformer_has_the_blocks_of_a_shallower_one(spec: str) -> None:
    shape = EVERY if spec.startswith("gpt") else WHOLE
    states = {spec.format(n): of(spec.format(n), shape).state_dict() for n in (1, 2)}
    assert check_nested(states) == spec.format(2)
    assert [last_blocks(state) for state in states.values()] == [{"body.layer1": n} for n in (0, 1)]


@pytest.mark.parametrize("fleet", [name for name in FLEETS if "txt" in name])
def test_htfllibs_groups_take_texts(fleet: str) -> None:
    specs = entries(fleet)
    assert len(specs) == int(fleet.split("-")[2])
    for spec in specs:
        check(spec, WHOLE, 3)
    assert len({parameters(spec, WHOLE, 3) for spec in specs}) == (
        1 if fleet == "htfe-txt-5-2" else len(specs)
    )


def test_noise_is_no_text() -> None:
    with pytest.raises(ValueError, match="draws numbers, but the data are texts of tokens"):
        noise.check("gauss", WHOLE)


PLUG_INS = """
from torch import nn


class Bag(nn.Module):
    def __init__(self, vocab, classes):
        super().__init__()
        self.embedding, self.out = nn.Embedding(vocab, 8), nn.Linear(8, classes)

    def forward(self, x):
        return self.out(self.embedding(x).mean(1))


class Each(Bag):
    def forward(self, x):
        return self.out(self.embedding(x))
"""


def test_a_network_of_the_user_gets_the_vocabulary(tmp_path: Path, monkeypatch: Any) -> None:
    importing_from(tmp_path, monkeypatch)
    name = module(tmp_path, PLUG_INS)
    assert parameters(f"{name}:Bag", WHOLE, 3) == V * 8 + 27
    assert build(f"{name}:Bag", WHOLE, 3, seed=0)(texts(3, 4)).shape == (2, 3)
    assert build(f"{name}:Each", EVERY, V, seed=0)(texts(3, 4)).shape == (2, T, V)
    with pytest.raises(ValueError, match=r"give \(2, 20, 3\); it should be \(2, logits\)"):
        check(f"{name}:Each", WHOLE, 3)
    with pytest.raises(ValueError, match=r"give \(2, 50\); it should be \(2, 20, logits\)"):
        check(f"{name}:Bag", EVERY, V)


def test_a_trained_network_takes_tokens_and_can_be_exported(tmp_path: Path) -> None:
    card = Card("fedavg", "gpt-1", "tokens", EVERY, False, tuple(map(str, range(V))), (), ())
    ours = Predictor(of("gpt-1", EVERY).eval(), replace(card, vocab=V, tokenizer="hash:50"))
    x = texts(*LENGTHS)
    logits = ours.logits(x.numpy()[:, :18])
    assert torch.equal(logits, ours.logits(x[:, :18].tolist())) and logits.shape == (4, T, V)
    for wrong in (x.float(), x[0], x - 1, x + V, torch.zeros(2, T + 1).int(), x[:0]):
        with pytest.raises(
            ValueError,
            match=r"x should be a list of texts, or \(n, 20\) integers from 0 .* to 49: tok",
        ):
            ours.logits(wrong)
    with pytest.raises(ValueError, match="the run's settings have no tokenizer hash:50"):
        ours.logits(["a text"])
    for ids in ([[1, 0, 2]], [[1, 2, 3], [0, 0, 0]]):
        with pytest.raises(ValueError, match=f"^x of sample {len(ids) - 1} is .* only behind it$"):
            ours.logits(ids)
    (file, _) = ours.export(tmp_path / "net", "torch-export")
    there = torch.export.load(file).module()(x)
    torch.testing.assert_close(there, ours.logits(x), rtol=0, atol=1e-6)
    recurrent = replace(ours, net=of("text-lstm2", WHOLE).eval())
    with pytest.raises(ValueError, match="gpt-1 cannot be exported: ") as refusal:
        recurrent.export(tmp_path / "net", "torch-export")
    assert "\n" not in str(refusal.value)


def test_texts_may_come_in_any_list_array_or_column() -> None:
    pandas = pytest.importorskip("pandas")
    card = Card("fedavg", "text-fast", "tokens", WHOLE, False, tuple("ab"), (), ())
    card = replace(card, vocab=V, tokenizer="hash:50", columns=("body",))
    ours = Predictor(of("text-fast", WHOLE).eval(), card, Hashes(V))
    words = ["one text", "and two"]
    frame = pandas.DataFrame({"id": [7, 8], "body": words}, index=[5, 3])
    logits = ours.logits(words)
    forms = tuple(words), np.array(words), np.array(words, object), frame["body"], frame
    for x in (*forms, dict.fromkeys(words).keys()):
        assert torch.equal(ours.logits(x), logits)
    frame.loc[3, "body"] = None
    for x in (frame["body"], ["one text", None]):
        with pytest.raises(ValueError, match="^text 1 has .*no text$"):
            ours.logits(x)
    for x in ("one text", np.array(0), iter([])):
        with pytest.raises(ValueError, match="should be a list of texts"):
            ours.logits(x)


@pytest.mark.parametrize(("spec", "shape"), [("text-fast", WHOLE), ("gpt-1", EVERY)])
def test_the_clock_and_a_trial_know_texts(spec: str, shape: OfKind) -> None:
    outputs = tuple(map(str, range(V if shape.every else 3)))
    own = replace(task(fleet=spec, train__batch_size=4), shape=shape, classes=outputs)
    net, x = of(spec, shape), kinds.random(4, shape)
    with counting(True) as counted:
        net(x).sum().backward()
    job = Jobs(own).job(0, spec, 8)
    assert job.operations == job.steps // 2 * 8 * (counted.total // 4) > 0
    drawn = Form(shape, outputs, of_bytes=False).random(2, 6, 0.25)
    assert drawn.shape == shape or shape.every  # whose objective the form does not have here
    assert drawn.y.shape == (drawn.x.shape if shape.every else (len(drawn.x),))
    assert drawn.x.dtype == torch.int32 and drawn.mean == () and drawn.vocab == V


def test_packed_texts_cost_their_own_tokens() -> None:
    net = of("text-lstm2", WHOLE).eval()
    spent = []
    for lengths in ((T, T), (T, 5)):
        with counting(True) as counted, torch.no_grad():
            net(texts(*lengths))
        spent.append(counted.total)
    each = 2 * 4 * 4 * 64 * 64  # two layers, whose four gates read 64 inputs and 64 states
    assert spent == [each * tokens + 2 * 2 * 64 * 3 for tokens in (2 * T, T + 5)]
