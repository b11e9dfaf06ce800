"""Pretrained weights: loaded by name where torchvision has them, refused clearly elsewhere."""

from __future__ import annotations

from typing import Any
from urllib.error import URLError

import pytest
import torch

from common.models import MODELS, build, check
from common.vision import torchvision

CONSTRUCTORS = {
    "resnet18": "resnet18",
    "mobilenetv2": "mobilenet_v2",
    "shufflenetv2-x0.5": "shufflenet_v2_x0_5",
    "densenet121": "densenet121",
    "torchvision:resnet18": "resnet18",
}


def published(monkeypatch: pytest.MonkeyPatch, spec: str) -> dict[str, torch.Tensor]:
    """A network of torchvision stands in for the download; its state is what is published."""
    state = getattr(torchvision.models, CONSTRUCTORS[spec])().state_dict()
    options: dict[str, Any] = {}

    def answer(self: Any, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        options.update(kwargs)
        assert kwargs["weights_only"] is True
        return dict(state)

    monkeypatch.setattr(torchvision.models._api.WeightsEnum, "get_state_dict", answer)
    return dict(state)


@pytest.mark.parametrize("spec", [spec for spec in CONSTRUCTORS if ":" not in spec])
def test_all_but_head_are_loaded(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state = published(monkeypatch, spec)
    own = build(spec, (3, 32, 32), 10, seed=0, stem="imagenet", pretrained=True).state_dict()
    prefix = "trunk." if spec in ("mobilenetv2", "densenet121") else ""
    bodies = 0
    for key, value in own.items():
        if not key.startswith("head."):
            theirs = "features." + key.removeprefix(prefix) if prefix else key
            assert torch.equal(value, state[theirs]), key
            bodies += 1
    assert bodies > 50
    assert own["head.weight"].shape[0] == 10


def test_a_network_of_torchvisions_takes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = "torchvision:resnet18"
    state = published(monkeypatch, spec)
    for shape in ((3, 32, 32), (1, 32, 32)):
        net = build(spec, shape, 10, seed=0, pretrained=True)
        body = {k.removeprefix("trunk."): v for k, v in net.trunk.state_dict().items()}
        same = {key for key, value in body.items() if torch.equal(value, state[key])}
        assert body.keys() - same == ({"conv1.weight"} if shape[0] == 1 else set())


def test_a_first_convolution_of_another_shape_stays_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    state = published(monkeypatch, "resnet18")
    grey = build("resnet18", (1, 32, 32), 10, seed=0, pretrained=True)
    scratch = build("resnet18", (1, 32, 32), 10, seed=0)
    assert torch.equal(grey.state_dict()["conv1.weight"], scratch.state_dict()["conv1.weight"])
    assert torch.equal(grey.state_dict()["layer1.0.conv1.weight"], state["layer1.0.conv1.weight"])


def test_old_densenet_names_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    from common.models import weights

    old = "features.denseblock1.denselayer2.norm.1.weight"
    assert weights._OLD_DENSE.sub(r"\1\2", old) == old.replace("norm.1", "norm1")


@pytest.mark.parametrize("name", [name for name, row in MODELS.items() if row.pretrained])
def test_without_a_network_the_refusal_says_what_to_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(self: Any, *args: Any, **kwargs: Any) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr(torchvision.models._api.WeightsEnum, "get_state_dict", unreachable)
    with pytest.raises(ValueError, match=r"no route to host.*pretrained = false or with network"):
        build(name, (3, 32, 32), 10, seed=0, pretrained=True)


@pytest.mark.parametrize("spec", ["resnet8", "resnet10", "resnet18@0.5", "lenet5"])
def test_architectures_without_published_weights_are_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="no pretrained weights; at width 1 there are some for"):
        check(spec, (3, 32, 32), 10, pretrained=True)
