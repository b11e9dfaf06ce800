"""Networks in Hugging Face folders: tokens, padding, adapters, and folders that are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from common import models
from common.data.kinds import OfKind
from common.models.adapters import Adapted, Adapter, adaptations, without_adapters
from common.models.hugging_face import write_folder
from tests.support.folders import DECODERS, EVERY, WHOLE, T, V, folder, of, texts

Made = Callable[..., str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return the folder of a tiny network by the name of its class, made once."""
    places: dict[str, str] = {}

    def place(name: str) -> str:
        if name not in places:
            places[name] = folder(tmp_path_factory.mktemp("base"), name)
        return places[name]

    return place


def theirs(place: str, kind: str = "AutoModelForCausalLM", **options: Any) -> Any:
    import transformers

    return getattr(transformers, kind).from_pretrained(place, **options).eval()


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_has_the_logits_of_transformers(name: str, made: Made) -> None:
    """Of our tokens, one column later; padding never wins and makes no loss infinite."""
    net, x = of(made(name)).eval(), texts(T, 7)
    with torch.no_grad():
        logits = net(x)
        for row, length in zip(range(2), (T, 7), strict=True):
            own = theirs(made(name))(input_ids=x[row : row + 1, :length].long() - 1).logits
            assert_close(logits[row, :length, 1:], own[0, :, : V - 1], atol=2e-5, rtol=1e-5)
    assert logits.shape == (2, T, V) and (logits.argmax(-1) > 0).all()
    assert logits.isfinite().all() and logits.sum().isfinite()
    assert_close(logits.log_softmax(-1)[..., 1:], logits[..., 1:].log_softmax(-1))


@pytest.mark.parametrize(
    "name", [*DECODERS, "BertModel", "DistilBertForMaskedLM", "RobertaForMaskedLM"]
)
def test_a_whole_text_has_the_outputs_of_its_tokens(name: str, made: Made) -> None:
    """Padding changes nothing, and training has the outputs of evaluation: there is no dropout."""
    net, x = of(made(name), shape=WHOLE), texts(7, T, 1)
    with torch.no_grad():
        alone, together = net(x[:1, :7]), net.train()(x)
        assert together.shape == (3, 3)
        assert_close(together[:1], alone, atol=1e-5, rtol=1e-5)
        assert torch.equal(together, net.eval()(x))
        assert not torch.equal(together[1:2], net(x[1:2].clamp(max=9)))


def test_classes_keep_the_head_of_a_folder_for_as_many_classes(made: Made) -> None:
    place = folder(Path(made("BertModel")) / "classes", "BertForSequenceClassification")
    own = theirs(place, "AutoModelForSequenceClassification").classifier.weight
    net = models.build("base", WHOLE, 2, adapter=Adapter(base=place), seed=1)
    assert torch.equal(net.head.weight, own)
    assert not net.fresh and of(place, shape=WHOLE).head.weight.shape == (3, 32)


@pytest.mark.parametrize("shape", [EVERY, WHOLE])
@pytest.mark.parametrize("name", DECODERS)
def test_adapters_share_the_base_and_change_no_bit_at_first(
    name: str, shape: OfKind, made: Made
) -> None:
    base = of(made(name), shape=shape)
    adapter, outputs = Adapter(base=made(name)), V if shape.every else 3
    net = models.build("base-lora4", shape, outputs, adapter=adapter, seed=1, base=base)
    assert torch.equal(net(texts(T, 5)), base(texts(T, 5)))
    before = {tensor.data_ptr() for tensor in base.parameters()}
    own = {tensor.data_ptr() for tensor in net.state_dict().values()}
    assert not own & before and before - {t.data_ptr() for t in net.buffers()} <= {
        base.head.weight.data_ptr()
    }
    last = {"q_proj", "v_proj"} if "Llama" in name else {"c_attn"}
    assert {layer.rpartition(".")[2] for layer, _ in adaptations(net)} == last
    with torch.device("meta"):
        empty = models.build("base-lora4", shape, outputs, adapter=adapter, seed=1)
    sizes = {name: value.shape for name, value in net.state_dict().items()}
    assert sizes == {name: value.shape for name, value in empty.state_dict().items()}


def test_layers_of_gpt2_have_the_sides_of_linear_ones(made: Made) -> None:
    """GPT-2 stores weights as [i, o]; A is [r, i] and B [o, r] all the same."""
    net = of(made("GPT2LMHeadModel"), "base-lora4").eval()
    (_, layer), *_ = adaptations(net)
    assert layer.lora_A.shape == (4, 32) and layer.lora_B.shape == (96, 4)
    layer.lora_B.data.normal_(generator=torch.Generator().manual_seed(1))
    own = theirs(made("GPT2LMHeadModel"))
    with torch.no_grad():
        own.transformer.h[0].attn.c_attn.weight += 2 * (layer.lora_B @ layer.lora_A).T
        assert_close(
            net(texts(T))[..., 1:],
            own(input_ids=texts(T).long() - 1).logits[..., : V - 1],
            atol=2e-5,
            rtol=1e-5,
        )


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *((name, EVERY) for name in DECODERS),
        *((name, WHOLE) for name in ("GPT2LMHeadModel", "BertForMaskedLM", "RobertaForMaskedLM")),
    ],
)
def test_a_folder_with_what_was_learnt_has_the_logits(
    name: str, shape: OfKind, made: Made, tmp_path: Path
) -> None:
    """Also of weights [i, o] and of a head that is tied or of several layers."""
    net = of(made(name), "base-lora4", shape).eval()
    for layer in (layer for _, layer in adaptations(net)):
        layer.lora_B.data.normal_(generator=torch.Generator().manual_seed(1))
    write_folder(tmp_path, net, without_adapters(net))
    kind = "AutoModelForCausalLM" if shape.every else "AutoModelForSequenceClassification"
    own, x = theirs(str(tmp_path), kind), texts(T, T)
    own.config.pad_token_id = 259
    with torch.no_grad():
        logits, found = net(x), own(input_ids=x.long() - 1).logits
    if shape.every:
        logits, found = logits[..., 1:], found[..., : V - 1]
    assert_close(logits, found, atol=2e-5, rtol=1e-5)


def test_layers_that_a_folder_lacks_are_trained_whole(made: Made) -> None:
    """BERT's pooling is new where the folder is of masked words, as is a layer of DistilBERT."""
    for name, layer in (
        ("BertForMaskedLM", "net.bert.pooler.dense"),
        ("DistilBertForMaskedLM", "net.pre_classifier"),
        ("RobertaForMaskedLM", "net.classifier.dense"),
    ):
        place = made(name)
        net, other = (of(place, "base-lora2", WHOLE) for _ in "ab")
        whole = {n for n, _ in net.named_parameters() if ".lora_" not in n}
        assert whole == {"head.weight", "head.bias", f"{layer}.weight", f"{layer}.bias"}
        assert all(map(torch.equal, net.state_dict().values(), other.state_dict().values()))
        assert not isinstance(net.get_submodule(layer), Adapted)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda f: (f / "config.json").unlink(), "there is no config.json in it"),
        (
            lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
            "no weights as \\*.safetensors; pickled weights are not read",
        ),
        (lambda f: (f / "model.safetensors").write_bytes(b"{}" * 99), "safetensors is damaged"),
        (lambda f: cut(f / "model.safetensors", 4000), "model.safetensors is damaged"),
        (lambda f: (f / "config.json").write_text("{"), "cannot be used: .*config.json"),
        (lambda f: (f / "config.json").write_text("{}"), "cannot be used: .*model_type"),
        (lambda f: configure(f, hidden_size=64), "weights have another shape of 'model"),
        (lambda f: configure(f, num_hidden_layers=3), "weights lack 'model.layers.2"),
        (lambda f: configure(f, max_position_embeddings=9), "9 tokens at most, but texts have 20"),
        (lambda f: configure(f, vocab_size=256), "256 tokens, but the tokenizer .* has 257"),
        (lambda f: configure(f, quantization_config={"bits": 4}), "quantised ones"),
        (lambda f: (f / "adapter_config.json").write_text("{}"), "an adapter, not a network"),
    ],
)
def test_what_cannot_be_used_is_one_line(change: Any, line: str, tmp_path: Path) -> None:
    place = folder(tmp_path, "LlamaForCausalLM")
    change(tmp_path)
    with pytest.raises(ValueError, match=line) as refused:
        of(place)
    assert "\n" not in str(refused.value) and place in str(refused.value)


def test_a_network_that_sees_later_tokens_or_changes_its_logits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XLNet is among transformers' decoders, but sees all tokens; other networks cap logits."""
    with pytest.raises(ValueError, match="xlnet, does not suit: the states depend on later"):
        of(folder(tmp_path / "xlnet", "XLNetLMHeadModel"))
    from transformers import LlamaForCausalLM

    def capped(self: Any, *args: Any, **options: Any) -> Any:
        found = forward(self, *args, **options)
        found.logits = 3 * (found.logits / 3).tanh()
        return found

    forward = LlamaForCausalLM.forward
    monkeypatch.setattr(LlamaForCausalLM, "forward", capped)
    with pytest.raises(ValueError, match="llama, does not suit: the logits are no linear"):
        of(folder(tmp_path / "llama", "LlamaForCausalLM"))


def test_places_of_roberta_begin_behind_that_of_padding(tmp_path: Path) -> None:
    place = folder(tmp_path, "RobertaForMaskedLM", max_position_embeddings=T + 1)
    with pytest.raises(ValueError, match="19 tokens at most, but texts have 20"):
        of(place, shape=WHOLE)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def configure(place: Path, **values: Any) -> None:
    content = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(content | values))
