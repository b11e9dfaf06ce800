"""The network ``base``: the one in the Hugging Face folder ``adapter.base``, below adapters.

The folder has config.json and safetensors files, which transformers reads (the extra ``text``):
without a download, pickled weights or code in the folder, in float32, and without dropout. For next
tokens the folder is of a decoder (``AutoModelForCausalLM``), whose head is a part of the base. For
classes it is of a decoder or an encoder (``AutoModelForSequenceClassification``), and the head is
new, unless the folder has one for as many classes.

Tokens are those of a tokenizer plus 1, because 0 is padding here; ``Base`` subtracts it again.
"""

import importlib
import os
import shutil
from abc import ABC
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional as F

from common.data.kinds import every_of, vocab_of
from common.data.tokens import FILE, fingerprint_of
from common.errors import first_line
from common.extras import imported
from common.models.classifier import Classifier
from common.models.layers import Shape
from common.models.texts import lengths
from common.settings.plugins import OF_FOLDER

CONFIG, WEIGHTS = "config.json", "*.safetensors"  #: files of a folder
TARGETS = {
    "llama": ("q_proj", "v_proj"),
    "mistral": ("q_proj", "v_proj"),
    "qwen2": ("q_proj", "v_proj"),
    "gpt2": ("c_attn",),
    "bert": ("query", "value"),
}
"""Layers with adapters by the type of a model, as in peft; all linear layers of other types."""
PREFIX = "net."  #: of transformers' names of layers in ours
CLOSE = 1e-3  #: largest difference by rounding of states and logits


class Base(Classifier, ABC):
    """Network of a Hugging Face folder; ``net`` is transformers' own, without its last layer."""

    last: str  #: name in ``net`` of the layer that is ``head`` here
    new: tuple[str, ...] = ()  #: layers of ``net`` that the folder may lack

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.fan_in_fan_out = _transpose(net)  #: whether the folder has weights [i, o]
        self.net, self.targets = net, TARGETS.get(net.config.model_type, ())

    def outputs(self, net: Any, x: Tensor) -> Any:
        """Return transformers' outputs of ``net`` for our tokens x [n, T]."""
        ids = torch.where(x > 0, x - 1, net.config.pad_token_id or 0).long()
        return net(input_ids=ids, attention_mask=(x > 0).long())

    def states(self, x: Tensor) -> Tensor:
        """Return the last layer's states [n, T, d] for tokens x [n, T]."""
        states: Tensor = self.outputs(self.net.base_model, x).last_hidden_state
        return states


@final
class NextTokens(Base):
    """Decoder with the states [n, T, d] as features, and logits [n, T, V] of the next tokens."""

    tied = True  # in effect, because its head is the base's

    def __init__(self, net: Any, outputs: int) -> None:
        super().__init__(net)
        own = net.get_output_embeddings()
        self.head, self.last = TokenHead(own, outputs), _remove(net, own)

    def features(self, x: Tensor) -> Tensor:
        return self.states(x)


@final
class TokenHead(nn.Linear):
    """Logits [n, T, V] of our V tokens, from an output layer whose row i is of token i + 1.

    The logit of padding is so low that it never wins. Rows above those of the tokens are left out.
    """

    def __init__(self, own: nn.Linear, outputs: int) -> None:
        nn.Module.__init__(self)
        self.weight, self.bias = own.weight, own.bias
        self.in_features, self.out_features = own.in_features, outputs

    def forward(self, h: Tensor) -> Tensor:
        rows = slice(self.out_features - 1)
        logits = F.linear(h, self.weight[rows], None if self.bias is None else self.bias[rows])
        # the lowest number itself would become infinite in a sum
        return F.pad(logits, (1, 0), value=torch.finfo(logits.dtype).min / 1024)


@final
class WholeText(Base):
    """Network with outputs for a whole text: of a decoder's state at the last token, or of an
    encoder with its own pooling.

    ``names``: entries of the folder. A layer before the head that they lack is new and trained
    whole too (``fresh``).
    """

    def __init__(self, net: Any, classes: int, names: frozenset[str]) -> None:
        super().__init__(net)
        below = f"{net.base_model_prefix}."
        *_, self.head = (
            layer
            for name, layer in net.named_modules()
            if isinstance(layer, nn.Linear) and not name.startswith(below)
        )
        assert self.head.out_features == classes
        self.last, self.decoder = _remove(net, self.head), _decodes(net.config)
        lacking = [n for n in net.state_dict() if not {n, n.removeprefix(below)} & names]
        new = [n for n in lacking if not n.startswith(below) or ".pooler." in n]
        layers = dict.fromkeys(name.rpartition(".")[0] for name in new)
        self.fresh, self.new = tuple(f"{PREFIX}{n}" for n in layers), (*layers, self.last)

    def features(self, x: Tensor) -> Tensor:
        if self.decoder:
            return self.states(x)[torch.arange(len(x), device=x.device), lengths(x) - 1]
        pooled: Tensor = self.outputs(self.net, x).logits
        return pooled


def build(shape: Shape, classes: int, factor: float, *, folder: str) -> Base:
    """Return the network in ``folder``; on the device ``meta`` without reading its weights.

    Raises ``ValueError``, one line, if the folder has no such network for samples of ``shape``.
    """
    path, every = _checked(folder), every_of(shape)
    importlib.import_module("common.vision")  # before transformers imports torchvision
    os.environ["HF_HUB_OFFLINE"] = "1"
    auto = imported("transformers")
    auto.utils.logging.set_verbosity_error()
    auto.utils.logging.disable_progress_bar()
    kind = auto.AutoModelForCausalLM if every else auto.AutoModelForSequenceClassification
    safe = {"trust_remote_code": False}
    local = {"local_files_only": True, "use_safetensors": True, **safe}
    how = {"dtype": torch.float32, "attn_implementation": "eager"}
    try:
        names = _names(path)
        config = auto.AutoConfig.from_pretrained(path, **local)
        _check(config, shape)
        _settle(config, 0 if every else classes)
        if torch.get_default_device().type == "meta":
            return _of(kind.from_config(config, **how, **safe), classes, names, shape)
        about = {"ignore_mismatched_sizes": True, "output_loading_info": True}
        read, loaded = kind.from_pretrained(path, config=config, **how, **local, **about)
        if every:
            _check_states(read)
        net = _of(read, classes, names, shape)
        _check_read(net, loaded)
    except Exception as error:  # transformers and safetensors have no common class of errors
        raise _unfit(folder, first_line(error)) from error
    return net


def write_folder(place: Path, net: Base, entries: Mapping[str, Tensor]) -> None:
    """Write the folder of the network ``net`` with other weights, which transformers can load.

    ``entries``: the weights by the names of a network without adapters. The configuration is that
    of the network's own folder, with the number of classes, and the tokenizer's files are copied.
    """
    auto, source = imported("transformers"), Path(net.net.name_or_path)
    config = auto.AutoConfig.from_pretrained(source, local_files_only=True)
    kind = auto.AutoModelForCausalLM
    if isinstance(net, WholeText):
        kind, config.num_labels = auto.AutoModelForSequenceClassification, net.head.out_features
    with torch.device("meta"):
        own = kind.from_config(config, dtype=torch.float32)
    turned = {name for name, layer in own.named_modules() if type(layer).__name__ == "Conv1D"}
    state = {}
    for name, value in entries.items():
        layer, _, last = name.removeprefix(PREFIX).rpartition(".")
        layer = net.last if layer == "head" else layer
        wanted = value.t().contiguous() if layer in turned and last == "weight" else value
        state[f"{layer}.{last}" if layer else last] = wanted
    own.save_pretrained(place, state_dict=state)
    for file in source.glob("*token*.json"):
        shutil.copy(file, place)


def check_tokenizer(folder: str, tokenizer: str) -> None:
    """Raise ``ValueError``, one line, if ``folder`` has another tokenizer than the data's.

    ``tokenizer``: empty for data that do not say it.
    """
    path = Path(folder).expanduser() / FILE
    own = fingerprint_of(path.read_bytes()) if path.is_file() else ""
    if own and tokenizer and own != tokenizer:
        why = f"its tokenizer is {own}, that of the data {tokenizer}; see data.tokenizer"
        raise _unfit(folder, why)


def stamp(folder: str) -> int:
    """Return when (ns) a file of a folder's network last changed; 0 without one."""
    path = Path(folder).expanduser()
    files = [path / CONFIG, *path.glob(WEIGHTS)] if folder else []
    return max((file.stat().st_mtime_ns for file in files if file.is_file()), default=0)


def _of(net: Any, classes: int, names: frozenset[str], shape: Shape) -> Base:
    every = every_of(shape)
    for layer in net.modules():  # places of RoBERTa begin behind that of padding
        table = getattr(layer, "position_embeddings", None)
        if isinstance(table, nn.Embedding) and table.padding_idx is not None:
            _check_length(table.num_embeddings - table.padding_idx - 1, shape)
    return NextTokens(net, classes) if every else WholeText(net, classes, names)


def _unfit(folder: str, why: str) -> ValueError:
    return ValueError(f"adapter.base = {folder!r} cannot be used: {why}")


def _checked(folder: str) -> Path:
    """Return the path of a folder with the files of a network, as far as their names say."""
    if not folder:
        raise ValueError(
            f"model {OF_FOLDER!r} needs adapter.base, a folder with {CONFIG} and {WEIGHTS}"
        )
    path = Path(folder).expanduser()
    if not (path / CONFIG).is_file():
        raise _unfit(folder, f"there is no {f'{CONFIG} in it' if path.is_dir() else 'such folder'}")
    if (path / "adapter_config.json").exists():
        raise _unfit(folder, "it holds an adapter, not a network")
    if not any(path.glob(WEIGHTS)):
        pickled = "; pickled weights are not read" if any(path.glob("*.bin")) else ""
        raise _unfit(folder, f"it has no weights as {WEIGHTS}{pickled}")
    return path


def _names(path: Path) -> frozenset[str]:
    """Return the names of all entries in a folder's safetensors files."""
    names: set[str] = set()
    for file in sorted(path.glob(WEIGHTS)):
        try:
            with safe_open(file, framework="pt") as content:
                names.update(content.keys())
        except SafetensorError as error:
            raise ValueError(f"{file.name} is damaged ({first_line(error)})") from None
    return frozenset(names)


def _decodes(config: Any) -> bool:
    """Return whether a network is a decoder, whose states depend on earlier tokens alone."""
    known = imported("transformers.models.auto.modeling_auto")
    if config.model_type not in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return False
    both = config.model_type in known.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return not both or bool(getattr(config, "is_decoder", False))


def _check(config: Any, shape: Shape) -> None:
    """Raise ``ValueError``, one line, if a network does not suit texts of ``shape``."""
    if every_of(shape) and not _decodes(config):
        raise ValueError(f"its network, {config.model_type}, is no decoder for next tokens")
    if getattr(config, "is_encoder_decoder", False) or hasattr(config, "quantization_config"):
        raise ValueError("networks of encoder and decoder, and quantised ones, are not supported")
    if (tokens := vocab_of(shape) - 1) > (most := config.vocab_size):
        raise ValueError(f"it has {most} tokens, but the tokenizer of the data has {tokens}")
    if (most := getattr(config, "max_position_embeddings", None) or 0) > 0:  # XLNet has -1
        _check_length(most, shape)


def _check_length(most: int, shape: Shape) -> None:
    if shape[0] > most:
        raise ValueError(f"it takes {most} tokens at most, but texts have {shape[0]}")


def _settle(config: Any, classes: int) -> None:
    """Set the number of classes, and dropout to 0, because frozen layers should not vary."""
    for name, value in config.to_dict().items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    config.use_cache = False
    if classes:
        config.num_labels = classes


def _check_read(net: Base, about: Mapping[str, Iterable[Any]]) -> None:
    """Raise ``ValueError``, one line, if the files lack a layer, apart from those that are new."""
    for kind, word in (("missing_keys", "lack"), ("mismatched_keys", "have another shape of")):
        for entry in about[kind]:
            name = entry if isinstance(entry, str) else entry[0]
            if name.rpartition(".")[0] not in net.new:
                raise ValueError(f"its weights {word} {name!r}")


def _check_states(net: Any) -> None:
    """Raise ``ValueError``, one line, unless states depend on earlier tokens alone, and logits are
    a linear function of them."""
    ids, head = torch.tensor([[0, 1], [0, 2]]), net.get_output_embeddings()
    with torch.no_grad():
        logits, states = net(input_ids=ids).logits, net.base_model(input_ids=ids)[0]
        linear = F.linear(states, head.weight, head.bias)
    for one, other, what in (
        (states[0, 0], states[1, 0], "the states depend on later tokens"),
        (logits, linear, "the logits are no linear function of the last states"),
    ):
        if not torch.allclose(one, other, atol=CLOSE, rtol=CLOSE):
            raise ValueError(f"its network, {net.config.model_type}, does not suit: {what}")


def _transpose(net: nn.Module) -> bool:
    """Replace layers with weights [i, o], as GPT-2 has them, by linear ones; return if any."""
    layers = [(n, m) for n, m in net.named_modules() if type(m).__name__ == "Conv1D"]
    for name, layer in layers:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        with torch.device("meta"):
            linear = nn.Linear(*weight.shape)
        linear.weight, linear.bias = nn.Parameter(weight.detach().t().contiguous()), layer.bias
        net.set_submodule(name, linear)
    return bool(layers)


def _remove(net: nn.Module, layer: nn.Module) -> str:
    """Replace a layer by the identity and return its name."""
    name: str = next(name for name, module in net.named_modules() if module is layer)
    net.set_submodule(name, nn.Identity())
    return name
