"""Weights that a network begins with: from files, and pretrained ones."""

import pickle
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from common.data.kinds import TOKENS, OfKind
from common.models import MODELS, build, check
from common.models.classifier import Classifier
from common.models.weights import _OLD_DENSE, fitted, path_of
from deploy.run.preflight import preflight
from deploy.user_modules import look_in
from tests.support.battery import PLUGIN
from tests.support.halves import server, task
from tests.support.tiny import flat, play

SHAPE = (1, 8, 8)


def state(spec: str = "cnn2@0.5", classes: int = 3, seed: int = 7) -> dict[str, Tensor]:
    return dict(build(spec, SHAPE, classes, seed=seed).state_dict())


def put(path: Path, tensors: dict[str, Tensor]) -> str:
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    return str(path)


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "w.pth"])
def test_the_servers_first_model_is_the_files(name: str, tmp_path: Path) -> None:
    file = put(tmp_path / name, state())
    if name == "w.pth":  # as training scripts save it
        torch.save({"state_dict": state(), "epoch": 3}, file)
    made = server(method="fedavg", fleet="cnn2@0.5", weights=file)
    assert all(torch.equal(value, state()[key]) for key, value in made.w.items())
    drawn = server(method="fedavg", fleet="cnn2@0.5").w
    assert not torch.equal(drawn["head.weight"], made.w["head.weight"])


def test_clients_own_models_start_from_the_file_of_their_architecture(tmp_path: Path) -> None:
    for spec in ("mlp@0.25", "cnn2@0.5"):
        put(tmp_path / f"{spec}.safetensors", state(spec))
    changes = {"method": "fedorion", "rounds": 1, "weights": str(tmp_path / "{model}.safetensors")}
    with_file = play(flat(tmp_path / "with", **changes))
    without = play(flat(tmp_path / "without", **{**changes, "weights": ""}))
    assert with_file.journal[0]["loss"] != without.journal[0]["loss"]
    losses = [r.journal[1]["client_metrics"]["1"] for r in (with_file, without)]
    assert losses[0] != losses[1]
    assert path_of("a/{model}.pt", "lab.nets:Shallow") == Path("a/lab.nets-Shallow.pt")


def test_a_head_of_other_classes_stays_as_it_was_drawn(tmp_path: Path) -> None:
    saved = state(classes=10)
    file = put(tmp_path / "w.pt", saved)
    ours = task(fleet="cnn2@0.5", weights=file)
    net, drawn = (ours.build("cnn2@0.5", name=("x",), first=first) for first in (True, False))
    assert torch.equal(net.head.weight, drawn.head.weight)
    body = [key for key in saved if not key.startswith("head.")]
    assert all(torch.equal(net.state_dict()[key], saved[key]) for key in body)


def test_a_head_without_bias_that_is_the_embedding_is_the_files() -> None:
    def gpt(vocab: int, seed: int) -> Classifier:
        return build("gpt-1", OfKind((8,), TOKENS, vocab, every=True), vocab, seed=seed)

    net, other = gpt(30, seed=1), gpt(30, seed=2)
    found = fitted(net, other.state_dict(), Path("w"))
    assert found.keys() == net.state_dict().keys()
    assert torch.equal(found["head.weight"], other.head.weight)
    for lacking in ("head.weight", "body.norm.bias"):
        less = {key: value for key, value in other.state_dict().items() if key != lacking}
        with pytest.raises(ValueError, match=f"it lacks '{lacking}'"):
            fitted(net, less, Path("w"))
    with pytest.raises(ValueError, match=r"'head.weight' is \(40, 64\), the model's \(30, 64\)"):
        fitted(net, gpt(40, seed=2).state_dict(), Path("w"))


def test_a_state_dict_of_the_network_itself_fits_its_wrapped_form(tmp_path: Path) -> None:
    look_in(PLUGIN, {"fleet": "lab.nets:Shallow"})
    net = build("lab.nets:Shallow", SHAPE, 3, seed=0)
    for old_head in (3, 1000):
        own = {k.removeprefix("trunk."): v for k, v in net.state_dict().items()}
        own |= {"3.weight": torch.ones(old_head, 16), "3.bias": torch.ones(old_head)}
        own = {k: v for k, v in own.items() if not k.startswith("head.")}
        found = fitted(net, own, Path("w"))
        assert {"trunk.1.weight", "trunk.1.bias"} <= found.keys()
        assert ("head.weight" in found) == (old_head == 3)


class Anything:
    def __reduce__(self) -> object:
        return print, ("run by a file",)


def spoiled(folder: Path) -> dict[str, str]:
    """Files that cannot be used, with what is said of each."""
    whole = put(folder / "whole.safetensors", state())
    (folder / "cut.safetensors").write_bytes(Path(whole).read_bytes()[:-100])
    (folder / "pickle.pt").write_bytes(pickle.dumps(Anything()))
    torch.save({"w": Anything()}, folder / "hostile.pt")
    torch.save([1, 2], folder / "list.pt")
    put(folder / "wide.safetensors", state("cnn2"))
    put(folder / "deep.safetensors", state("cnn3@0.5"))
    missing = {key: value for key, value in state().items() if key != next(iter(state()))}
    put(folder / "less.pt", missing)
    first = next(iter(state()))
    return {
        "nowhere.pt": "there is no such file",
        "cut.safetensors": "cannot be read: ",
        "pickle.pt": "",
        "hostile.pt": "",
        "list.pt": "holds something else than tensors by name",
        "wide.safetensors": f"does not fit model 'cnn2@0.5': its '{first}' is (",
        "deep.safetensors": "does not fit model 'cnn2@0.5': it has '",
        "less.pt": f"does not fit model 'cnn2@0.5': it lacks '{first}'",
    }


def test_a_file_that_does_not_fit_is_one_line_before_anything_starts(tmp_path, capsys) -> None:
    for name, line in spoiled(tmp_path).items():
        file = tmp_path / name
        settings = flat(tmp_path / "out", method="fedavg", fleet="cnn2@0.5", weights=str(file))
        with pytest.raises(ValueError) as refused:
            preflight(settings)
        said = str(refused.value)
        assert said.startswith(f"weights = '{file}'") and line in said and "\n" not in said
    assert "run by a file" not in capsys.readouterr().out


CONSTRUCTORS = {
    "resnet18": "resnet18",
    "mobilenetv2": "mobilenet_v2",
    "shufflenetv2-x0.5": "shufflenet_v2_x0_5",
    "densenet121": "densenet121",
    "torchvision:resnet18": "resnet18",
}


def published(monkeypatch: pytest.MonkeyPatch, spec: str) -> dict[str, torch.Tensor]:
    """A network of torchvision stands in for the download; its state is what is published."""
    from common.vision import torchvision

    state = getattr(torchvision.models, CONSTRUCTORS[spec])().state_dict()

    def answer(self: Any, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        assert kwargs["weights_only"] is True
        return dict(state)

    monkeypatch.setattr(torchvision.models._api.WeightsEnum, "get_state_dict", answer)
    return dict(state)


@pytest.mark.parametrize("spec", [spec for spec in CONSTRUCTORS if ":" not in spec])
def test_all_but_head_are_loaded(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state = published(monkeypatch, spec)
    own = build(spec, (3, 32, 32), 10, seed=0, stem="imagenet", pretrained=True).state_dict()
    prefix = "trunk." if spec in ("mobilenetv2", "densenet121") else ""
    body = {key: value for key, value in own.items() if not key.startswith("head.")}
    for key, value in body.items():
        theirs = "features." + key.removeprefix(prefix) if prefix else key
        assert torch.equal(value, state[theirs]), key
    assert len(body) > 50 and own["head.weight"].shape[0] == 10


def test_a_network_of_torchvisions_takes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = "torchvision:resnet18"
    state = published(monkeypatch, spec)
    for shape in ((3, 32, 32), (1, 32, 32)):
        net = build(spec, shape, 10, seed=0, pretrained=True)
        body = {k.removeprefix("trunk."): v for k, v in net.trunk.state_dict().items()}
        same = {key for key, value in body.items() if torch.equal(value, state[key])}
        assert body.keys() - same == ({"conv1.weight"} if shape[0] == 1 else set())


def test_a_first_convolution_of_another_shape_stays_fresh_and_names_may_be_old(monkeypatch) -> None:
    state = published(monkeypatch, "resnet18")
    grey, scratch = (
        build("resnet18", (1, 32, 32), 10, seed=0, pretrained=pretrained).state_dict()
        for pretrained in (True, False)
    )
    assert torch.equal(grey["conv1.weight"], scratch["conv1.weight"])
    assert torch.equal(grey["layer1.0.conv1.weight"], state["layer1.0.conv1.weight"])
    old = "features.denseblock1.denselayer2.norm.1.weight"
    assert _OLD_DENSE.sub(r"\1\2", old) == old.replace("norm.1", "norm1")


@pytest.mark.parametrize("name", [name for name, row in MODELS.items() if row.pretrained])
def test_without_a_network_the_refusal_says_what_to_do(name, monkeypatch) -> None:
    def unreachable(self: Any, *args: Any, **kwargs: Any) -> None:
        raise URLError("no route to host")

    from common.vision import torchvision

    monkeypatch.setattr(torchvision.models._api.WeightsEnum, "get_state_dict", unreachable)
    with pytest.raises(ValueError, match=r"no route to host.*pretrained = false or with network"):
        build(name, (3, 32, 32), 10, seed=0, pretrained=True)


@pytest.mark.parametrize("spec", ["resnet10", "resnet18@0.5"])
def test_architectures_without_published_weights_are_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="no pretrained weights; at width 1 there are some for"):
        check(spec, (3, 32, 32), 10, pretrained=True)
