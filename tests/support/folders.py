"""Tiny networks in Hugging Face folders, made by their configurations."""

from pathlib import Path
from typing import Any

import torch

from common import models, seeds, vision
from common.data import kinds
from common.data.kinds import TOKENS, OfKind
from common.models.adapters import Adapter
from common.models.hugging_face import Base

V, T = 258, 20
EVERY, WHOLE = OfKind((T,), TOKENS, V, every=True), OfKind((T,), TOKENS, V)
DECODERS = ("LlamaForCausalLM", "GPT2LMHeadModel")

SIZES: dict[str, dict[str, Any]] = {
    "Llama": {
        **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
        **{"tie_word_embeddings": True, "pad_token_id": 0},
    },
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "Bert": {
        **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "max_position_embeddings": 64},
    },
    "DistilBert": {
        **{"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4},
        "max_position_embeddings": 64,
    },
    "XLNet": {"d_model": 32, "n_layer": 1, "n_head": 4, "d_inner": 64},
    "Roberta": {
        **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1},
        **{"num_attention_heads": 4, "max_position_embeddings": T + 2, "pad_token_id": 1},
    },
    "SqueezeBert": {
        **{"hidden_size": 32, "embedding_size": 32, "intermediate_size": 64},
        **{"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64},
        **{"q_groups": 1, "v_groups": 1, "intermediate_groups": 1, "output_groups": 1},
    },
}
"""Sizes of a network by the first word of its classes."""


def folder(place: Path, name: str, *, vocab: int = 260, **options: Any) -> str:
    """Write a network, such as ``LlamaForCausalLM``, to ``place`` and return the path.

    Its weights are about ten times as large as those of a new network, so that tokens matter.
    """
    assert vision.torchvision, "transformers imports torchvision"
    import transformers

    family = name.partition("For")[0].removesuffix("LMHeadModel").removesuffix("Model")
    config = getattr(transformers, f"{family}Config")
    sizes = {**SIZES[family], "vocab_size": vocab, "initializer_range": 0.2, **options}
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = getattr(transformers, name)(config(**sizes))
    net.save_pretrained(place)
    return str(place)


def of(place: str, spec: str = "base", shape: OfKind = EVERY, **options: Any) -> Base:
    """Return the network of a folder for texts of ``shape``; ``options``: of ``Adapter``."""
    adapter = Adapter(base=place, **options)
    net = models.build(spec, shape, V if shape.every else 3, adapter=adapter, seed=1)
    assert isinstance(net, Base)
    return net


def texts(*lengths: int) -> torch.Tensor:
    """Return random texts [n, T] of these lengths, padded on the right."""
    x = kinds.random(len(lengths), EVERY, seeds.stream(1, "texts"))
    return x * (torch.arange(T) < torch.tensor(lengths)[:, None])
