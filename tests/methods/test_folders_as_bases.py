"""Runs on networks in Hugging Face folders, and their adapters in peft."""

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from common.data import DATASETS, Source, kinds
from common.data.kinds import TOKENS, OfKind
from common.data.tokens import Folder
from common.models.adapters import adaptations
from common.models.peft_folders import write
from common.parse import parse
from deploy.api import load as load_run
from deploy.run.fit import fitted
from deploy.run.verify import verify
from deploy.study.predictor import Predictor
from tests.support import battery, outputs
from tests.support.folders import DECODERS, EVERY, WHOLE, V, folder, of, texts
from tests.support.texts import bpe
from tests.support.tiny import Run, flat, play

WORDS = ("the", "cat", "sat", "on", "the", "mat", "a", "dog", "is", "on")
CONFIG = "adapter_config.json"
ADAM = {"train__optimizer": "adam", "train__lr": 0.01, "train__epochs": 1}


@pytest.fixture
def decoder(tmp_path: Path) -> dict[str, Any]:
    """Settings of a run on next tokens of the folder of a Llama, with its own tokenizer."""
    place, data = tmp_path / "base", tmp_path / "data"
    place.mkdir()
    folder(place, "LlamaForCausalLM", vocab=Folder(bpe(place)).vocab - 1)
    data.mkdir()
    draw = random.Random(1)
    for part, n in (("train", 40), ("test", 20)):
        rows = [{"text": " ".join(draw.choices(WORDS, k=12))} for _ in range(n)]
        (data / f"{part}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return {
        **{"method": "fedit", "fleet": "base-lora4", "clients": 2, "rounds": 2, **ADAM},
        **{"adapter__base": str(place), "data__name": "jsonl", "data__dir": str(data)},
        **{"data__text_column": "text", "data__objective": "next-token"},
        **{"data__tokenizer": str(place), "data__max_length": 16},
        **{"data__samples": 0, "data__test_samples": 0},
    }


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings of a run on classes of texts with the folder of a BERT without a tokenizer."""
    dataset = outputs.texts()
    monkeypatch.setitem(DATASETS, "made-texts", Source(lambda _: dataset, "made"))
    data = {"data__name": "made-texts", "data__samples": 0, "data__test_samples": 0}
    place = folder(tmp_path / "base", "BertModel", vocab=40)
    more = {"fleet": "base-lora4", "adapter__base": place, "clients": 2, "rounds": 2}
    return {"method": "fedit", **data, **more, **ADAM, "train__lr": 0.03, "train__epochs": 3}


def in_peft(kind: str, base: str, place: Path) -> Any:
    """Return a network of ``transformers`` with an adapter, loaded without a missing entry."""
    import peft
    import transformers

    options = {"num_labels": 3} if "Sequence" in kind else {}
    own = getattr(transformers, kind).from_pretrained(base, attn_implementation="eager", **options)
    net = peft.PeftModel.from_pretrained(own, str(place)).eval()
    known = peft.get_peft_model_state_dict(net)
    saved = load_file(place / "adapter_model.safetensors")
    assert known.keys() == saved.keys()
    assert all(torch.equal(known[name], value) for name, value in saved.items())
    return net


def theirs(net: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        ids = (x.long() - 1).clamp(min=0)
        logits: Tensor = net(input_ids=ids, attention_mask=(x > 0).long()).logits
    return logits


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "shape", "targets"),
    [
        *((name, EVERY, ()) for name in DECODERS),
        *(("GPT2LMHeadModel", WHOLE, ("c_proj",)), ("LlamaForCausalLM", WHOLE, ())),
        *(("BertForMaskedLM", WHOLE, ()), ("DistilBertForMaskedLM", WHOLE, ())),
        ("RobertaForMaskedLM", WHOLE, ()),  # its head has two layers
        ("SqueezeBertForMaskedLM", WHOLE, ()),  # its layers are convolutions
    ],
)
def test_peft_has_the_logits_of_an_adapter(
    name: str, shape: OfKind, targets: tuple[str, ...], tmp_path: Path
) -> None:
    """Also with the head of classes, and with other layers that are new."""
    base = folder(tmp_path / "base", name, initializer_range=0.05)
    net = of(base, "base-lora4", shape, targets=targets, scale=1.5).eval()
    draw = torch.Generator().manual_seed(1)
    for parameter in net.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=draw)
    write(tmp_path, {"base-lora4": net}, "")
    kind = "AutoModelForCausalLM" if shape.every else "AutoModelForSequenceClassification"
    place, x = tmp_path / "adapters" / "global", texts(20, 20)
    own = in_peft(kind, base, place)
    if own.config.pad_token_id is None:
        own.config.pad_token_id = own.base_model.model.config.pad_token_id = 259
    with torch.no_grad():
        logits = net(x)
    found = theirs(own, x)
    if shape.every:
        logits, found = logits[..., 1:], found[..., : V - 1]
    assert_close(logits, found, atol=1e-6, rtol=1e-6)
    assert json.loads((place / CONFIG).read_text())["lora_alpha"] == 6


def test_a_run_on_next_tokens_learns_and_leaves_its_adapter(
    decoder: dict[str, Any], run: Run, tmp_path: Path
) -> None:
    """What travels is 4 r (o + i) bytes of a layer, and peft has the logits of the run's model."""
    base = Path(decoder["adapter__base"])
    played = run(**decoder)
    assert played.summary["failures"] == []
    course = [entry["measures"]["bits_per_byte"] for entry in played.journal]
    assert course == sorted(course, reverse=True) and course[0] > course[-1]
    sizes = 4 * 4 * 2 * ((32 + 32) + (32 + 16))
    assert played.journal[1]["bytes"]["arrays_up"] == 2 * sizes
    assert sum(4 * value.numel() for value in played.model.values()) == sizes
    place = played.folder / "adapters" / "global"
    x = kinds.random(3, OfKind((16,), TOKENS, Folder(base).vocab, every=True))
    with torch.no_grad():
        logits = load_run(played.folder).model()(x)[..., 1:]
    found = theirs(in_peft("AutoModelForCausalLM", str(base), place), x)
    assert_close(found[..., : logits.shape[-1]], logits, atol=1e-5, rtol=1e-6)
    assert not any(str(base) in path.read_text() for path in place.glob("*.json"))


def test_a_run_on_classes_learns_and_leaves_its_adapter_and_head(
    encoder: dict[str, Any], run: Run
) -> None:
    played = run(**encoder)
    assert played.summary["failures"] == []
    assert played.summary["primary"]["best"] > 0.5, played.summary["primary"]
    place = played.folder / "adapters" / "global"
    x = outputs.texts().x_test
    with torch.no_grad():
        logits = load_run(played.folder).model()(x)
    own = in_peft("AutoModelForSequenceClassification", encoder["adapter__base"], place)
    assert_close(theirs(own, x), logits, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "places"),
    [
        ("fedsa-lora", set()),
        ("flora", set()),
        ("flexlora", {"base-lora4", "base-lora2"}),
        ("hetlora", {"global", "base-lora2"}),
        ("local", set()),
    ],
)
def test_adapters_of_the_server_alone_are_written(
    method: str, places: set[str], encoder: dict[str, Any], run: Run
) -> None:
    mixed = {"fleet": "base-lora4,base-lora2"} if method in battery.OF_RANKS else {}
    folder = run(**{**encoder, **mixed, "method": method, "rounds": 1}).folder / "adapters"
    assert {path.name for path in folder.glob("*")} == places
    ranks = {
        path.parent.name: json.loads(path.read_text())["r"] for path in folder.glob("*/*.json")
    }
    whole = {"global": 4, "base-lora4": 4, "base-lora2": 2}
    assert ranks == {name: whole[name] for name in places}
    proven = {one.path.parent.name for one in verify(folder.parent) if one.proven}
    assert places <= proven
    for path in folder.glob("*/adapter_model.safetensors"):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        assert str(path) in [
            str(one.path) for one in verify(folder.parent) if one.state == "damaged"
        ]


def test_a_client_exports_its_own_adapter_on_its_machine(
    encoder: dict[str, Any], run: Run, tmp_path: Path
) -> None:
    played = run(**{**encoder, "method": "fedsa-lora"})
    own = Predictor.of_run(played.folder, 1)
    place, _ = own.export(tmp_path / "mine", "peft")
    (left,) = tmp_path.rglob("1/adapter")  # after the last round's scores, beside the state
    for name in (CONFIG, "adapter_model.safetensors"):
        assert (left / name).read_bytes() == (place / name).read_bytes()
    x = outputs.texts().x_test
    net = in_peft("AutoModelForSequenceClassification", encoder["adapter__base"], place)
    with torch.no_grad():
        assert_close(theirs(net, x), own.net(x), atol=1e-5, rtol=1e-6)


def test_what_was_learnt_is_a_further_base(
    decoder: dict[str, Any], run: Run, tmp_path: Path
) -> None:
    """Also for the tokenizer, whose file is copied."""
    one = Predictor.of_run(run(**decoder).folder, None)
    place, _ = one.export(tmp_path / "merged", "merged")
    again = Predictor.of_run(run(**{**decoder, "adapter__base": str(place)}).folder, None)
    x = kinds.random(3, OfKind((16,), TOKENS, one.card.vocab, every=True))
    for layer in (layer for _, layer in adaptations(again.net)):
        layer.lora_B.data.zero_()
    with torch.no_grad():
        assert_close(one.net(x), again.net(x), atol=2e-5, rtol=1e-5)


def test_dense_updates_and_whole_networks_of_a_folder_are_trained(
    encoder: dict[str, Any], run: Run
) -> None:
    for fleet in ("base-dense", "base"):
        played = run(**{**encoder, "method": "fedavg", "fleet": fleet, "train__lr": 0.003})
        assert played.summary["failures"] == []
        assert played.summary["primary"]["best"] > 0.5, played.summary["primary"]


@pytest.mark.full
def test_a_device_gets_the_largest_rank_that_fits(decoder: dict[str, Any], tmp_path: Path) -> None:
    """The memory of the base counts; it is measured on made texts, which have no tokenizer."""
    clock = {"profiles": "pi4,small", "profile.small.base": "pi4", "profile.small.memory": 3.94e6}
    clock |= {"clock__fit": "choose", "clock__choices": "base-lora2,base-lora16"}
    settings = flat(tmp_path, **{**decoder, "method": "hetlora", **clock})
    chosen = fitted(settings, parse(settings), lambda _: None, here=True)
    ranks = [chosen[f"node.{k}.model"] for k in range(2)]
    assert ranks == ["base-lora16", "base-lora2"]


def refused(settings: dict[str, Any], tmp_path: Path, line: str) -> None:
    with pytest.raises(ValueError, match=line) as raised:
        play(flat(tmp_path / "refused", **settings))
    assert "\n" not in str(raised.value)


def test_another_tokenizer_than_the_folder_has_is_refused(
    decoder: dict[str, Any], tmp_path: Path
) -> None:
    (other := tmp_path / "other").mkdir()
    for name in ("byte", str(bpe(other, 265))):
        line = "its tokenizer is folder:.*, that of the data (byte|folder:)"
        refused({**decoder, "data__tokenizer": name}, tmp_path, line)
    small = folder(tmp_path / "small", "LlamaForCausalLM", vocab=200)
    line = "it has 200 tokens, but the tokenizer of the data has 256"
    refused({**decoder, "adapter__base": small, "data__tokenizer": "byte"}, tmp_path, line)


def test_a_network_without_folder_package_or_order_is_refused(
    decoder: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(
        {**decoder, "adapter__base": ""}, tmp_path, "needs adapter.base, a folder with config.json"
    )
    refused({**decoder, "adapter__base": "/nowhere"}, tmp_path, "there is no such folder")
    place = folder(tmp_path / "bert", "BertForMaskedLM", vocab=300)
    line = "its network, bert, is no decoder for next tokens"
    refused({**decoder, "adapter__base": place}, tmp_path, line)
    refused({**decoder, "adapter__targets": "qkv"}, tmp_path, "'qkv' matches no layer of base")
    refused({**decoder, "fleet": "base-lora33"}, tmp_path, "rank 33 is not allowed")
    monkeypatch.setitem(sys.modules, "transformers", None)
    line = r"transformers is not installed here, .* 'fedmosaic\[text\]'"
    refused({**decoder, "adapter__scale": 3.0}, tmp_path, line)
