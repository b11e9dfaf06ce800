"""Formulas of the floating-point operations of torch's operators, and the operators without one.

torch's registry (``torch.utils.flop_counter``) lacks some operators and is wrong for others. The
formulas here replace its own, so that a network costs the same on every device and kernel:

- A gradient of a convolution costs what the forward pass costs, whatever the groups. torch's
  formula ignores them for the weight's gradient.
- A fused recurrent network costs its products with the weights, in each step and direction.
- Attention costs its two products, and four backward. A causal or other mask does not reduce them,
  since most kernels compute the masked products too. Scores that a kernel computes again in the
  backward pass are not counted.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import conv_flop_count, flop_registry

Formula = Callable[..., int]
aten = torch.ops.aten


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *args: Any, **_: Any) -> int:
    transposed, output_mask = args[4], args[7]
    forward: int = conv_flop_count([*x.shape], [*weight.shape], [*grad.shape], transposed)
    return forward * (int(output_mask[0]) + int(output_mask[1]))


def _matrix_vector(matrix: Tensor, *_: Any, **__: Any) -> int:
    return 2 * matrix.numel()


def _added_matrix_vector(_: Tensor, matrix: Tensor, *__: Any, **___: Any) -> int:
    return 2 * matrix.numel()


def _steps(x: Tensor) -> int:
    """Return the number of steps of all sequences, also of packed ones."""
    return x.numel() // x.shape[-1]


def _recurrent(x: Tensor, weights: Sequence[Tensor], *_: Any, **__: Any) -> int:
    return 2 * _steps(x) * sum(w.numel() for w in weights if w.ndim == 2)


def _recurrent_backward(
    x: Tensor, weights: Sequence[Tensor], stride: int, hx: Tensor, cells: int, mask: Sequence[bool]
) -> int:
    """Return the operations of the gradients that ``mask`` wants: of input, first state, weights.

    ``weights``: ``stride`` tensors for each layer and direction, those of the input and of the
    state first. ``cells``: directions of the first layer.
    """
    forward = _recurrent(x, weights)
    first_input = 2 * _steps(x) * sum(w.numel() for w in weights[::stride][:cells])
    first_state = 2 * hx.shape[-2] * sum(w.numel() for w in weights[1::stride])
    through = forward - (not mask[0]) * first_input - (not mask[1]) * first_state
    return through + mask[2] * forward


def _mkldnn_rnn(x: Tensor, *args: Any, **_: Any) -> int:
    return _recurrent(x, args[:2])


def _mkldnn_rnn_backward(x: Tensor, *args: Any, **_: Any) -> int:
    weights, hx = args[:2], args[4]
    mask = [one.requires_grad for one in (x, hx, weights[0])]  # the operator is given none
    return _recurrent_backward(x, weights, 2, hx, 1, mask)


def _cudnn_rnn_backward(
    x: Tensor, weights: Sequence[Tensor], stride: int, _: Tensor, hx: Tensor, *args: Any, **__: Any
) -> int:
    bidirectional, mask = args[12], args[16]
    wanted = [mask[0], mask[1], mask[3]]
    return _recurrent_backward(x, weights, stride, hx, 1 + bidirectional, wanted)


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    return 2 * query[..., 0].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def _attention_backward(_: Tensor, *args: Any, **__: Any) -> int:
    return 2 * _attention(*args)


def _multi_head_attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    width = query.shape[-1]
    projections = 2 * width * (2 * query.numel() + key.numel() + value.numel())
    return projections + _attention(query, key, value)


def _encoder_layer(src: Tensor, *args: Any, **_: Any) -> int:
    inner: Tensor = args[13]  # weight of the perceptron's first layer
    return _multi_head_attention(src, src, src) + 4 * src.numel() * inner.shape[0]


FORMULAS: dict[Any, Formula | None] = {
    aten.convolution_backward: _convolution_backward,
    aten.mv: _matrix_vector,
    aten.addmv: _added_matrix_vector,
    aten.mkldnn_rnn_layer: _mkldnn_rnn,
    aten.mkldnn_rnn_layer_backward: _mkldnn_rnn_backward,
    aten._cudnn_rnn: _recurrent,
    aten._cudnn_rnn_backward: _cudnn_rnn_backward,
    aten._native_multi_head_attention: _multi_head_attention,
    aten._transformer_encoder_layer_fwd: _encoder_layer,
}
"""Formula of an operator's arguments, before torch's own."""


def formula(operator: Any) -> Formula | None:
    """Return the formula of an operator packet; None without one.

    It takes the operator's arguments and its result as ``out_val``.
    """
    return FORMULAS.get(operator) or flop_registry.get(operator)


for _kernel in (
    *("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention"),
    "fused_attention_overrideable",
):
    FORMULAS[getattr(aten, f"_scaled_dot_product_{_kernel}")] = _attention
    FORMULAS[getattr(aten, f"_scaled_dot_product_{_kernel}_backward")] = _attention_backward

for _product in ("addmm", "baddbmm", "addmv"):  # in place
    FORMULAS[getattr(aten, f"{_product}_")] = formula(getattr(aten, _product))

TRACED = {"prim", "prims", "profiler", "rngprims"}
"""Namespaces of torch whose operators compute no matrix products."""

_PRODUCT = re.compile(
    r"[a-z]*mm|(add)?mv|matmul|conv([123]d|olution)?|(bi|tri)?linear|rnn|lstm|gru"
    r"|attention|transformer"
)
"""Words in names of operators that compute matrix products or convolutions."""
_OTHER = re.compile(r"_thnn_\w+|\w+_weight")
"""Names with such a word whose operators apply gates to finished products, or copy weights."""


def check_uncounted(name: str) -> None:
    """Raise ``ValueError``, one line, unless an undivided operator computes no matrix products.

    ``name``: of an operator that has neither a formula nor a decomposition, such as
    ``aten::relu``. Names of torch's operators say what they compute. An operator of another
    library can compute anything.
    """
    namespace, _, operator = name.partition("::")
    operator = operator.partition(".")[0]
    if namespace == "aten":
        words = operator.removesuffix("_").split("_")
        if _OTHER.fullmatch(operator) or not any(map(_PRODUCT.fullmatch, words)):
            return
    if namespace not in TRACED:
        raise ValueError(
            f"flops = true cannot count the operator {namespace}::{operator}: it has no formula; "
            "register one with torch.utils.flop_counter.register_flop_formula, or set flops = false"
        )
