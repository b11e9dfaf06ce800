"""Robust means of predictions for public images, and bounds for features."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from common.exchange.predictions import spoken
from common.losses.distillation import opinion
from common.methods import dl_sh, ds_fl, fedgkt, fedin, fedmd
from common.settings.parse import parse
from server_app.aggregation.robust import bounded_rows, probabilities
from server_app.method import Replies
from tests.support import battery, halves
from tests.support.tiny import flat

ROWS = [[0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.0, 0.0, 1.0]]
MEDIAN = torch.tensor([0.6, 0.1, 0.1]) / 0.8
ROBUST = {"public__robust": "median"}


def replies(kind: Any, rows: list[list[float]], n: int, **more: Any) -> Replies[Any]:
    """Replies of clients with the same prediction for n images."""
    sent = []
    for k, row in enumerate(rows):
        theta = torch.tensor([row]).expand(n, -1).contiguous()
        fields: dict[str, Any] = {"theta": theta, "w": None}
        if kind is not ds_fl.Reply:
            fields |= spoken(theta, "float32", **more)
        known = {name: value for name, value in fields.items() if name in kind.model_fields}
        sent.append((halves.client(k), kind(**known)))
    return Replies.of(sent)


@pytest.mark.parametrize("method", ["ds-fl", "fdmeta"])
def test_the_clients_learn_the_median_of_their_probabilities(method: str) -> None:
    table = method.replace("-", "_")
    settings = {**battery.PUBLIC, "public__learn": False, f"{table}__aggregation": "mean"}
    half = halves.server(method=method, **settings, **ROBUST)
    half.request(1)
    half.step(1, replies(ds_fl.Reply, ROWS, 40))
    assert_close(half.request(2).y, MEDIAN.expand(40, 3))
    assert_close(probabilities(torch.zeros(1, 3)), torch.full((1, 3), 1 / 3))


@pytest.mark.parametrize(("align", "target"), [("l1", [0.6, 0.1, 0.1]), ("kl", MEDIAN.tolist())])
def test_the_consensus_is_the_median_of_logits_or_probabilities(align, target) -> None:
    half = halves.server(method="fedmd", fedmd__align=align, **battery.PUBLIC, **ROBUST)
    p = align == "kl"
    told = half.second(1, replies(fedmd.Reply, ROWS, 4, probabilities=p))
    assert told[0] is told[2]
    assert_close(told[0].said(probabilities=p), torch.tensor(target).expand(4, 3))


def test_a_trimmed_mean_of_predictions_leaves_out_both_ends() -> None:
    trimmed = {"public__robust": "trimmed", "public__trim": 0.2}
    half = halves.server(method="fedmd", **battery.PUBLIC, **trimmed)
    rows = [[0.0], [1.0], [2.0], [6.0], [9e4]]
    told = half.second(1, replies(fedmd.Reply, rows, 2, probabilities=False))
    assert_close(told[0].said(probabilities=False), torch.full((2, 1), 3.0))


@pytest.mark.parametrize("method", ["feddf", "fedkemf"])
def test_the_ensemble_of_networks_is_a_median(method: str) -> None:
    half = halves.server(method=method, **battery.PUBLIC, **ROBUST)
    z = [torch.tensor([[2.0, 0.0, 1.0]]), torch.tensor([[3.0, 1.0, 0.0]]), torch.full((1, 3), 9e4)]
    z[2][0, 2] = -9e4
    middle = torch.tensor([[3.0, 1.0, 0.0]])
    assert_close(half.opinion(iter(z), "logits", 2.0), torch.softmax(middle / 2, 1))
    p = torch.stack([torch.softmax(one / 2, 1) for one in z]).median(0).values
    assert_close(half.opinion(iter(z), "mean", 2.0), p / p.sum())
    plain = halves.server(method=method, **battery.PUBLIC)
    assert torch.equal(plain.opinion(iter(z), "mean", 2.0), opinion(z, "mean", 2.0))


@pytest.mark.parametrize("exchange", ["probs", "logits"])
def test_dl_sh_takes_the_median_without_confidences(exchange: str) -> None:
    settings = {**battery.SHOT, "confidence__kind": "uniform", "dl_sh__exchange": exchange}
    half = halves.server(method="dl-sh", ensemble__aggregation="median", **settings)
    sent = replies(dl_sh.Reply, ROWS, half.samples, probabilities=exchange == "probs")
    middle = torch.tensor([0.6, 0.1, 0.1])
    expected = MEDIAN if exchange == "probs" else torch.softmax(middle, 0)
    assert_close(half._targets(sent), expected.expand(half.samples, 3))


@pytest.mark.parametrize(
    ("method", "changes", "key"),
    [
        ("fedavg", ROBUST, "public.robust"),
        ("kt-pfl", ROBUST, "public.robust"),
        ("dl-sh", {**battery.SHOT, **ROBUST}, "public.robust"),
        ("fedkemf", {**ROBUST, "fedkemf__ensemble": "vote"}, "public.robust"),
        ("dl-mh", {**battery.SHOT, "ensemble__aggregation": "median"}, "ensemble.aggregation"),
        ("fedmd", {"public__robust": "krum"}, "public.robust"),
        ("fedmd", {"public__trim": 0.5}, "public.trim"),
        ("fedgkt", {"fedgkt__bound": -1.0}, "fedgkt.bound"),
    ],
)
def test_what_has_no_robust_mean_is_refused_in_one_line(method, changes, key) -> None:
    with pytest.raises(ValueError, match=key.replace(".", r"\.")) as refused:
        parse(flat(Path("out"), method=method, **{**battery.PUBLIC, **changes}))
    assert "\n" not in str(refused.value)


def test_rows_are_as_long_as_the_median_clients_at_most() -> None:
    a = torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 30.0]])  # norms 5, 1, 30: median 5
    b = torch.tensor([[6.0, 8.0]])
    c = torch.tensor([[3e38, 0.0], [0.0, 0.0]])  # the lower median of its rows is 0
    d = torch.tensor([[0.0, -4e5]])
    bounded = bounded_rows([a, b, c, d], 2.0)  # medians 5, 10, 0 and 4e5: at most 10
    assert bounded[0].tolist() == [[3.0, 4.0], [0.0, 1.0], [0.0, 10.0]]
    assert torch.equal(bounded[1], b) and bounded[2].tolist() == [[10.0, 0.0], [0.0, 0.0]]
    assert bounded[3].tolist() == [[0.0, -10.0]]


def images(n: int, scale: float) -> Tensor:
    return scale * torch.ones(n, 16, 4, 4)


def test_the_server_of_fedgkt_learns_from_bounded_features() -> None:
    seen: list[Tensor] = []
    half = halves.server(method="fedgkt", **battery.OVERRIDES["fedgkt"], fedgkt__bound=2.0)
    half._logits = lambda h: seen.append(h) or torch.zeros(len(h), 3)
    sent = [
        fedgkt.Reply(h=images(4, s), z=torch.ones(4, 3), y=torch.arange(4) % 3)
        for s in (1.0, 1.0, 500.0)
    ]
    half.step(1, Replies.of([(halves.client(k, n=4), reply) for k, reply in enumerate(sent)]))
    assert [float(h.amax()) for h in seen] == [1.0, 1.0, 2.0]


def test_the_pool_of_fedin_has_bounded_features() -> None:
    half = halves.server(method="fedin", **battery.DEPTHS, fedin__bound=3.0)
    sent = [fedin.Reply(w={}, s_in=images(2, s), s_out=images(2, 1.0)) for s in (1.0, 2.0, 900.0)]
    half.after(1, Replies.of([(halves.client(k), reply) for k, reply in enumerate(sent)]))
    assert [float(s.amax()) for s in half.s_in.values()] == [1.0, 2.0, 6.0]
    assert all(math.isclose(float(s.amax()), 1.0) for s in half.s_out.values())
