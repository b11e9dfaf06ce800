"""Robust means of the clients' models, predictions and features.

Coordinate-wise (``centre``), with equal weights: the median (Algorithm 1, option I) and the trimmed
mean (option II) of Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning:
Towards Optimal Statistical Rates", ICML 2018.

Over whole models (``whole``). A model is the vector w_k of all floating-point entries that are
averaged; ‖·‖ is the Euclidean norm. n clients reply, f of them may send false models:

- Krum and Multi-Krum: Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries:
  Byzantine Tolerant Gradient Descent", NeurIPS 2017, section 4.
- Geometric median: Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning", IEEE
  Transactions on Signal Processing, 2022 (RFA): the smoothed Weiszfeld algorithm.
- FLTrust: Cao, Fang, Liu, Gong, "FLTrust: Byzantine-robust Federated Learning via Trust
  Bootstrapping", NDSS 2021, section IV.

Features (``bounded_rows``) have no coordinates in common, so only their norms are bounded.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from statistics import median_low

import numpy as np
import torch
from flwr.serverapp.strategy.fedtrimmedavg import trim_mean
from torch import Tensor

from common.exchange import tree
from common.exchange.records import StateDict
from common.settings.options import Average
from server_app.stopped import Stopped

SMOOTHING = 1e-6
"""ν, the smallest distance in Weiszfeld's weights (RFA's experiments)."""
TOLERANCE, ITERATIONS = 1e-6, 100
"""Weiszfeld's algorithm ends when v moves by a smaller share of its median distance from the
models, or after so many iterations. RFA's paper has 3 iterations, after which 40 % of false models
still move v by 4 % of their distance. The sum of distances is no criterion, because it hardly
decreases once far models dominate it."""


def centre(values: Sequence[Tensor], robust: str, trim: float) -> Tensor:
    """Return the coordinate-wise median (``robust = "median"``) or trimmed mean of ``values``.

    Tensors of one shape and dtype with equal weights. Integer counters become their maximum.
    """
    if not values[0].is_floating_point():
        return torch.stack(list(values)).amax(0)
    stacked = torch.stack([value.to(torch.float64) for value in values]).numpy()
    if robust == "median":
        result = np.median(stacked, axis=0)
    else:  # + 0.5, because Flower computes int(fraction · m), which rounding could reduce by one
        m = len(values)
        result = trim_mean(stacked, (trimmed(m, trim) + 0.5) / m)
    return torch.as_tensor(result).to(values[0].dtype)


def byzantine(n: int, share: float) -> int:
    """Return f = ⌈share · n⌉, the number of n clients that may send false models.

    1e-9 is subtracted, so that rounding cannot turn 0.07 · 100 into 8.
    """
    return int(np.ceil(share * n - 1e-9))


def trimmed(m: int, share: float) -> int:
    """Return how many of m values to drop at each end: ⌈share · m⌉, but at least one stays."""
    return min(byzantine(m, share), (m - 1) // 2)


def probabilities(p: Tensor) -> Tensor:
    """Return rows [n, C] of non-negative numbers, divided by their sums; uniform for a sum of 0.

    A coordinate-wise median of distributions need not sum to 1, and may be 0 in all classes.
    """
    sums = p.sum(1, keepdim=True)
    return torch.where(sums > 0, p / sums, 1 / p.shape[1])


def whole(
    states: Sequence[StateDict],
    weights: Sequence[float],
    previous: Mapping[str, Tensor],
    options: Average,
    names: Set[str],
    trusted: Mapping[str, Tensor] | None = None,
) -> StateDict:
    """Return the robust mean of whole models by ``average.robust``.

    ``names``: the averaged entries. ``weights`` count for the geometric median only, as in RFA;
    Krum and FLTrust give every client the same weight. ``trusted``: for FLTrust, the parameters of
    the server's own model. Integer counters become their maximum.
    """
    if not states:
        raise ValueError("cannot combine 0 states")
    if options.robust == "fltrust":
        assert trusted is not None, "the server has trained on its labelled public set"
        return fltrust(states, previous, trusted, names)
    averaged = [n for n in states[0] if n in names and states[0][n].is_floating_point()]
    if options.robust == "geometric-median":
        return geometric_median(states, weights, averaged)
    # Krum and Multi-Krum differ in how many of the best models they average.
    scores = krum_scores(states, byzantine(len(states), options.trim), averaged)
    keep = 1 if options.robust == "krum" else len(states) - byzantine(len(states), options.trim)
    best = sorted(np.argsort(scores, kind="stable")[:keep])  # ties: the first client
    return tree.mean([states[i] for i in best], [1] * keep)


def distances(
    states: Sequence[StateDict], point: Mapping[str, Tensor], names: Iterable[str]
) -> list[float]:
    """Return ‖w_k − point‖ over the entries ``names`` for each of ``states``.

    The sum runs over small pieces of a tensor, because a copy in float64 takes twice its memory.
    """
    squares = [0.0] * len(states)
    for name in names:
        for k, state in enumerate(states):
            pairs = zip(tree.pieces(state[name]), tree.pieces(point[name]), strict=True)
            squares[k] += sum(float((a.double() - b.double()).square().sum()) for a, b in pairs)
    return [square**0.5 for square in squares]


def krum_scores(states: Sequence[StateDict], f: int, names: Sequence[str]) -> list[float]:
    """Return s(k) = Σ ‖w_k − w_j‖² over the n − f − 2 models w_j closest to w_k, j ≠ k.

    Raises ``Stopped`` unless n ≥ 2 f + 3, the condition of proposition 4.2. Krum takes the model
    with the smallest score; Multi-Krum takes the mean of the n − f smallest (m = n − f).
    """
    n = len(states)
    check_count(n, f)
    squares = np.square([distances(states, state, names) for state in states])
    np.fill_diagonal(squares, np.inf)
    return [float(score) for score in np.sort(squares, axis=1)[:, : n - f - 2].sum(1)]


def check_count(n: int, f: int, where: str = "") -> None:
    """Raise ``Stopped``, one line, if n replies are too few for Krum with f false ones."""
    if n < 2 * f + 3:
        raise Stopped(
            f"average.robust: Krum needs 2 f + 3 = {2 * f + 3} models with f = {f} (average.trim), "
            f"there are {n}{where}"
        )


def geometric_median(
    states: Sequence[StateDict], weights: Sequence[float], names: Sequence[str]
) -> StateDict:
    """Return v, which minimises Σ_k α_k ‖w_k − v‖ over the entries ``names``; α ∝ ``weights``.

    Smoothed Weiszfeld (RFA, Algorithm 2): v starts as the mean and becomes Σ_k β_k w_k / Σ_k β_k
    with β_k = α_k / max(ν, ‖v − w_k‖), see ``SMOOTHING`` and ``ITERATIONS``. Other entries become
    the mean with the last β; integer counters become their maximum.
    """
    v = tree.mean(states, weights)
    for _ in range(ITERATIONS):
        apart, before = distances(states, v, names), v
        v = tree.mean(states, [w / max(SMOOTHING, d) for w, d in zip(weights, apart, strict=True)])
        if distances([v], before, names)[0] <= TOLERANCE * median_low(apart):
            break
    return v


def fltrust(
    states: Sequence[StateDict],
    previous: Mapping[str, Tensor],
    trusted: Mapping[str, Tensor],
    names: Set[str],
) -> StateDict:
    """Return w + g, with g of FLTrust (section IV, Algorithm 2; global learning rate α = 1).

    g_k = w_k − w are the updates of the clients and g_0 that of the server's own model, which it
    trained from w (``previous``) on a clean labelled set, over the parameters in ``trusted``:

        TS_k = max(0, cos(g_k, g_0)),   g = Σ_k TS_k ‖g_0‖/‖g_k‖ g_k / Σ_k TS_k

    If no client has a positive TS_k, w does not change. Other averaged entries, BatchNorm's
    statistics, are no directions; they become the coordinate-wise median.
    """
    # g_0 is the server's update, ``own_norm`` is ‖g_0‖, ``norms`` are ‖g_k‖, ``scores`` TS_k.
    zeros = {name: torch.zeros_like(value) for name, value in trusted.items()}

    def update(state: Mapping[str, Tensor], name: str) -> Tensor:
        return state[name].double() - previous[name].double()

    g_0 = {name: update(trusted, name) for name in trusted}
    own_norm = distances([g_0], zeros, g_0)[0]
    norms = distances(states, previous, g_0)
    scores = []
    for state, norm in zip(states, norms, strict=True):
        product = sum(float((update(state, n) * g).sum()) for n, g in g_0.items())
        scores.append(max(0.0, product / (norm * own_norm)) if norm * own_norm > 0 else 0.0)
    # Entries without a direction: the median.
    result = {
        name: centre([state[name] for state in states], "median", 0.0)
        for name in states[0]
        if name not in g_0
    }
    # Parameters: w + g, entry by entry.
    for name in g_0:
        moved = previous[name].double()
        for state, score, norm in zip(states, scores, norms, strict=True):
            if score > 0:
                moved = moved + score / sum(scores) * own_norm / norm * update(state, name)
        result[name] = moved.to(states[0][name].dtype)
    return {name: result[name] for name in states[0]}


def bounded_rows(rows: Sequence[Tensor], factor: float) -> list[Tensor]:
    """Return each client's rows [n_k, ...], none longer than ``factor`` times the usual norm.

    The usual norm is the (lower) median over the clients of their rows' median norm; half of
    the clients cannot raise it above an honest client's value. It is one norm for all classes: with
    skewed labels most clients that have a class may be false ones. Longer rows are scaled to the
    bound; others stay unchanged, bit for bit.
    """
    norms = [x.flatten(1).double().norm(dim=1) for x in rows]
    medians = [float(norm.median()) for norm in norms if len(norm)]
    limit = factor * median_low(medians) if medians else 0.0
    result = []
    for x, norm in zip(rows, norms, strict=True):
        shape = (-1, *[1] * (x.dim() - 1))
        scaled = x.double() * (limit / norm.clamp_min(torch.finfo(norm.dtype).tiny)).view(shape)
        result.append(torch.where((norm > limit).view(shape), scaled.to(x.dtype), x))
    return result
