"""Adapters above a Hugging Face folder, in the format of peft: of a run in its folder ``adapters``,
of a client beside its state.

Each folder loads with ``PeftModel.from_pretrained(network, folder)``, where the network is
that of ``adapter.base``. Adapters of our own networks stay in model.safetensors alone, because peft
cannot build these networks. So do dense updates, which are no adapters.
"""

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from torch import Tensor, nn

from common.exchange import model_file
from common.files import write_atomically
from common.models.adapters import AdaptedConvolution, adaptations
from common.models.classifier import Classifier
from common.models.hugging_face import PREFIX, Base, NextTokens

FOLDER, GLOBAL = "adapters", "global"
ROOT = "base_model.model."  #: what peft writes before the names of layers


def write(folder: Path, networks: Mapping[str, Classifier], main: str) -> None:
    """Write an adapter for each of a method's ``networks`` that has one, below ``folder``.

    The folder has the name of the network, or ``global`` for the only one and for ``main``.
    """
    for name, net in networks.items():
        if isinstance(net, Base) and any(adaptations(net)):
            place = GLOBAL if name == main or len(networks) == 1 else name
            write_one(folder / FOLDER / place, net)


def write_one(place: Path, net: nn.Module) -> None:
    """Write the adapter of a network to the folder ``place``.

    Raises ``ValueError``, one line, for a network without adapters above a Hugging Face folder.
    """
    layers = dict(adaptations(net))
    if not isinstance(net, Base) or not layers:
        raise ValueError(
            f"{getattr(net, 'spec', 'the model')} has no adapter that peft can load; networks such "
            "as base-lora4 have"
        )
    whole = {} if isinstance(net, NextTokens) else _whole(net)
    tensors = {f"{name}.{entry}": value for name in whole for entry, value in whole[name].items()}
    for name, layer in layers.items():
        a, b = layer.lora_A.detach(), layer.lora_B.detach()
        if isinstance(layer, AdaptedConvolution):
            axes = layer.layer.weight.shape[1:]
            a, b = a.view(-1, *axes), b.view(*b.shape, *[1] * (len(axes) - 1))
        own = name.removeprefix(PREFIX)
        tensors |= {f"{own}.lora_A.weight": a, f"{own}.lora_B.weight": b}
    first = next(iter(layers.values()))
    rank = len(first.lora_A)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if isinstance(net, NextTokens) else "SEQ_CLS",
        "base_model_name_or_path": "",
        "r": rank,
        "lora_alpha": first.scale * rank,
        "lora_dropout": first.dropout.p,
        "target_modules": [name.removeprefix(PREFIX) for name in layers],
        "modules_to_save": list(whole) or None,
        "fan_in_fan_out": net.fan_in_fan_out,
    }
    place.mkdir(parents=True, exist_ok=True)
    detached = {f"{ROOT}{name}": value.detach().cpu() for name, value in tensors.items()}
    model_file.write(place / "adapter_model.safetensors", detached)
    write_atomically(place / "adapter_config.json", (json.dumps(config, indent=1) + "\n").encode())


def _whole(net: Base) -> dict[str, dict[str, Tensor]]:
    """Return the entries of the layers behind the base, and of others that are trained whole.

    peft saves a head of several layers whole, also those of them that are frozen here.
    """
    top = net.last.partition(".")[0]
    fresh = [name.removeprefix(PREFIX) for name in net.fresh]
    names = [top, *(name for name in fresh if name.partition(".")[0] != top)]
    whole = {}
    for name in names:
        layer = net.net.get_submodule(name)
        whole[name] = dict(chain(layer.named_parameters(), layer.named_buffers()))
    inner = net.last.removeprefix(top).removeprefix(".")
    for entry, value in net.head.named_parameters(inner):
        whole[top][entry] = value
    return whole
