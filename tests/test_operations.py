"""Recurrent networks, attention and grouped convolutions are counted as their products are."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import register_flop_formula

from common import models
from common.data import kinds
from common.models import MODELS
from common.training.costs import counting
from common.training.operations import check_uncounted, formula
from deploy.run.preflight import preflight
from tests.support.own_modules import importing_from, module
from tests.support.tiny import flat

Step = Callable[..., Any]
aten = torch.ops.aten


def forward(net: Step, *x: Any, mode: Any = torch.no_grad) -> int:
    with mode(), counting(True) as spent:
        net(*x)
    return spent.total


def training(net: Step, *x: Any) -> int:
    with counting(True) as spent:
        out = net(*x)
        out = out[0] if isinstance(out, tuple) else out
        (out if isinstance(out, Tensor) else out.data).sum().backward()
    return spent.total


def plain(count: Callable[..., int], *args: Any) -> int:
    """Count without oneDNN, where torch divides recurrent layers into matrix products."""
    with torch.backends.mkldnn.flags(enabled=False):
        return count(*args)


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "once", "trained"),
    [
        ("lenet5", (1, 28, 28), 10, 833_040, 2_263_920),
        ("lstm", (6, 128), 6, 4_588_288, 13_338_880),
        ("gru", (6, 128), 6, 3_441_408, 10_004_736),
    ],
)
def test_a_networks_operations_are_those_counted_by_hand(
    spec: str, shape: tuple[int, ...], classes: int, once: int, trained: int
) -> None:
    net, x = models.build(spec, shape, classes, seed=0), torch.randn(1, *shape)
    assert forward(net, x) == forward(net, x, mode=torch.inference_mode) == once
    assert training(net, x) == trained


def test_the_boards_lstm_takes_as_much_as_its_layers() -> None:
    net = models.build("lstm", (6, 100), 7, feature_dim=16, seed=0)
    assert training(net, torch.randn(1, 6, 100)) == 10_416_800


def listed(names: list[str]) -> None:
    """Check that training costs three forward passes, without the gradient of the samples."""
    for name in names:
        net = models.build(name, MODELS[name].input, MODELS[name].outputs, seed=0).train()
        x = kinds.random(2, MODELS[name].input)
        once = forward(net, x)
        assert 2.6 <= training(net, x) / once <= 3, name
        every = training(net, x.requires_grad_() if x.is_floating_point() else x)
        # the first step of a recurrent layer has no gradient of its state
        recurrent = "gru" in name or "lstm" in name
        assert every == 3 * once or (recurrent and every > 2.99 * once), name


def test_small_networks_train_with_three_times_their_forward_pass() -> None:
    listed(["mobilenetv2", "shufflenetv2-x0.5", "resnet8", "lstm2", "gru", "transformer1d-2"])
    listed(["text-fast", "text-cnn", "text-bilstm", "text-transformer-1", "gpt-1", "char-lstm"])


@pytest.mark.full
def test_every_listed_network_trains_with_three_times_its_forward_pass() -> None:
    listed([*MODELS])


@pytest.mark.parametrize(
    ("layer", "shape", "once"),
    [
        (nn.Conv2d(32, 32, 3, padding=1, groups=32), (1, 32, 8, 8), 73_728 // 2),
        (nn.Conv2d(8, 4, 3, groups=2), (2, 8, 5, 5), 2 * (2 * 4 * 9) * (4 * 9)),
        (nn.Conv1d(4, 4, 5, stride=2, groups=4), (3, 4, 11), 2 * (3 * 4 * 4) * 5),
        (nn.ConvTranspose2d(8, 4, 3, groups=2), (2, 8, 5, 5), 2 * (2 * 8 * 25) * (2 * 9)),
    ],
)
def test_each_gradient_of_a_convolution_costs_its_forward_pass(
    layer: nn.Module, shape: tuple[int, ...], once: int
) -> None:
    x = torch.randn(shape)
    assert forward(layer, x) == once
    assert training(layer, x) == 2 * once
    assert training(layer, x.requires_grad_()) == 3 * once


LSTMS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2},
    {"bidirectional": True},
    {"num_layers": 2, "bidirectional": True},
    {"bias": False},
    {"proj_size": 3},
]


@pytest.mark.parametrize("settings", LSTMS, ids=str)
@pytest.mark.parametrize("gradient", [False, True])
def test_a_fused_lstm_takes_as_much_as_its_matrix_products(
    settings: dict[str, Any], gradient: bool
) -> None:
    net, x = nn.LSTM(6, 8, **settings), torch.randn(9, 3, 6, requires_grad=gradient)
    assert forward(net, x) == forward(net, x, mode=torch.inference_mode)
    assert forward(net, x) == plain(forward, net, x) > 0
    assert training(net, x) == plain(training, net, x) > 2 * forward(net, x)
    first = torch.zeros(net.num_layers * (1 + net.bidirectional), 3, net.proj_size or 8)
    state = first.requires_grad_(), torch.zeros(*first.shape[:2], 8)
    assert training(net, x, state) == plain(training, net, x, state) > training(net, x)


def test_a_frozen_lstm_has_no_gradients_of_its_weights() -> None:
    net, x = nn.LSTM(6, 8).requires_grad_(False), torch.randn(9, 3, 6, requires_grad=True)
    assert training(net, x) == plain(training, net, x) == 2 * forward(net, x) - 2 * 3 * 4 * 8 * 8


def test_a_packed_sequence_takes_its_own_steps() -> None:
    net, x = nn.LSTM(6, 64, batch_first=True), torch.randn(2, 5, 6)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]), batch_first=True)
    once = 2 * (5 + 3) * 4 * 64 * (6 + 64)
    assert forward(net, packed) == forward(net, packed, mode=torch.inference_mode) == once
    state, samples = 2 * 2 * 4 * 64 * 64, 2 * 8 * 4 * 64 * 6
    assert training(net, packed) == plain(training, net, packed) == 3 * once - state - samples


def arguments(operator: Any, **named: Any) -> list[Any]:
    """Return the operator's arguments in the order of its schema; None for those not named."""
    return [named.pop(one.name, None) for one in operator.default._schema.arguments]


@pytest.mark.parametrize("settings", LSTMS, ids=str)
@pytest.mark.parametrize("gradient", [False, True])
def test_cudnn_takes_as_much_as_the_same_network_here(
    settings: dict[str, Any], gradient: bool
) -> None:
    net, x = nn.LSTM(6, 8, **settings), torch.randn(9, 3, 6, requires_grad=gradient)
    weights = list(net.parameters())
    named = {
        "input": x,
        "weight": weights,
        "weight_stride0": len(net.all_weights[0]),
        "hx": torch.zeros(len(net.all_weights), 3, net.proj_size or 8),
        "bidirectional": net.bidirectional,
        "output_mask": [gradient, False, False, True],
    }
    once, back = aten._cudnn_rnn, aten._cudnn_rnn_backward
    numbers = [formula(one)(*arguments(one, **named), out_val=None) for one in (once, back)]  # type: ignore[misc]
    assert numbers == [forward(net, x), training(net, x) - forward(net, x)]


MASKS: list[dict[str, Any]] = [{}, {"attn_mask": torch.zeros(8, 12)}]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_attention_takes_two_products_and_four_backward(
    mask: dict[str, Any], backend: SDPBackend
) -> None:
    q, k, v = (torch.randn(2, 4, n, 16, requires_grad=True) for n in (8, 12, 12))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, **mask)

    with sdpa_kernel(backend):
        once = forward(attend, q, k, v)
        assert once == forward(attend, q, k, v, mode=torch.inference_mode)
        assert once == 2 * (2 * (2 * 4 * 8 * 12 * 16))
        assert training(attend, q, k, v) == 3 * once


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_a_causal_mask_does_not_reduce_the_operations(backend: SDPBackend) -> None:
    q = torch.randn(2, 4, 8, 16, requires_grad=True)
    with sdpa_kernel(backend):
        masked = training(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), q)
        assert masked == 3 * 2 * (2 * (2 * 4 * 8 * 8 * 16))


@pytest.mark.parametrize(
    "kernel",
    ["flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu"],
)
def test_every_kernel_of_attention_takes_the_same(kernel: str) -> None:
    shapes = {"query": (2, 4, 8, 16), "key": (2, 4, 12, 16), "value": (2, 4, 12, 6)}
    named = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    named |= {"grad_out": torch.empty(2, 4, 8, 6), "grad_out_": torch.empty(2, 4, 8, 6)}
    once, back = (getattr(aten, f"_scaled_dot_product_{kernel}{s}") for s in ("", "_backward"))
    numbers = [formula(one)(*arguments(one, **named), out_val=None) for one in (once, back)]  # type: ignore[misc]
    assert numbers == [2 * 2 * 4 * 8 * 12 * (16 + 6), 2 * 2 * 2 * 4 * 8 * 12 * (16 + 6)]


def test_an_encoder_layer_takes_as_much_in_training_and_in_one_fused_operator() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    x, products, attention = torch.randn(2, 64, 64), 12_582_912, 2_097_152
    assert forward(layer, x) == products + attention == 14_680_064
    assert training(layer, x.clone().requires_grad_()) == 3 * 14_680_064
    layer.eval()
    assert forward(layer, x) == forward(layer, x, mode=torch.inference_mode) == 14_680_064
    alone = 2 * (2 * 64 * 64) * (4 * 64) + attention
    assert forward(layer.self_attn, x, x, x) == alone


def test_products_in_place_and_with_a_vector_are_counted() -> None:
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    with counting(True) as spent:
        torch.zeros(3, 5).addmm_(a, b)
        torch.zeros(2, 3, 5).baddbmm_(a.expand(2, 3, 4), b.expand(2, 4, 5))
        a @ torch.ones(4)
        torch.zeros(3).addmv_(a, torch.ones(4))
    assert spent.total == 3 * 2 * 3 * 4 * 5 + 2 * 2 * 3 * 4


SUSPECT = re.compile("rnn|lstm|gru_|attention|mm$|mm_|conv|linear|matmul|gemm")
HARMLESS = re.compile(
    r"_thnn_\w+|\w+_weight|_?upsample_\w+|_?convert_\w+|_nested_\w+|cummaxmin_backward|\w*gamma\w*"
)
"""Operators with such a part of a name that only interpolate, apply gates, copy or convert."""


def test_no_operator_with_a_products_name_is_passed_over() -> None:
    packets = dict[str, list[bool]]()
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::"):
            divided = torch._C._dispatch_has_kernel_for_dispatch_key(
                name, "CompositeImplicitAutograd"
            )
            packets.setdefault(name[6:].partition(".")[0], []).append(divided)
    passed, refused = list[str](), list[str]()
    for name in (name for name, divided in packets.items() if not all(divided)):
        if formula(getattr(aten, name, None)) is None:
            try:
                check_uncounted(f"aten::{name}")
                passed.append(name)
            except ValueError:
                refused.append(name)
    missed = [n for n in passed if SUSPECT.search(n) and not HARMLESS.fullmatch(n)]
    assert missed == []
    assert {"miopen_rnn", "_trilinear", "_grouped_mm", "mkldnn_linear"} <= {*refused}
    fine = {
        "relu",
        "upsample_bilinear2d",
        "_thnn_fused_lstm_cell",
        "_convert_indices_from_coo_to_csr",
    }
    assert fine <= {*passed}


OPERATOR = """
import torch
from torch import nn


@torch.library.custom_op("{name}::attend", mutates_args=())
def attend(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT


attend.register_autograd(lambda context, gradient: gradient)
attend.register_fake(lambda x: x.new_empty(*x.shape[:-1], x.shape[-2]))


class Net(nn.Module):
    def __init__(self, channels, num_classes):
        super().__init__()
        self.out = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.out(attend(x).flatten(1))
"""


def test_a_network_with_an_operator_of_unknown_cost_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importing_from(tmp_path, monkeypatch)
    name = module(tmp_path, "")
    (tmp_path / f"{name}.py").write_text(OPERATOR.format(name=name))
    settings = {"method": "local", "fleet": f"{name}:Net"}
    preflight(flat(tmp_path / "plain", **settings))
    counted = flat(tmp_path / "counted", **settings, flops=True)
    with pytest.raises(ValueError, match=f"^flops = true cannot count the operator {name}::attend"):
        preflight(counted)
    register_flop_formula(getattr(torch.ops, name).attend)(lambda *_, **__: 1)
    preflight(counted)
