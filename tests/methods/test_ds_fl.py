"""DS-FL and FDmeta: what is agreed on, who learns it, and about which images."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from common.methods.ds_fl import Reply
from common.techniques.ensemble import entropy_reduced
from server_app.method import Replies
from server_app.methods.ds_fl import uncertainty
from tests.support import battery, halves
from tests.support.tiny import Run

PUBLIC = {**battery.PUBLIC, "train__epochs": 1, "clients": 2}
P = torch.tensor([[0.5, 0.3, 0.2]])


def entropy(p: torch.Tensor) -> float:
    return float(uncertainty(p, "entropy"))


@pytest.mark.parametrize(
    ("T", "row", "nats"),
    [(0.1, [0.8438, 0.1142, 0.0420], 0.5243), (1.0, [0.3907, 0.3199, 0.2894], 1.0906)],
)
def test_entropy_reduction_by_hand(T: float, row: list[float], nats: float) -> None:
    reduced = entropy_reduced(P, T)
    assert_close(reduced, torch.tensor([row]), atol=5e-5, rtol=0)
    assert entropy(P) == pytest.approx(1.0297, abs=5e-5)
    assert entropy(reduced) == pytest.approx(nats, abs=5e-5)


def test_the_least_sure_samples_are_chosen_by_hand() -> None:
    p = torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.6, 0.4]])
    assert_close(
        uncertainty(p, "entropy"), torch.tensor([0.6931, 0.3251, 0.6730]), atol=5e-5, rtol=0
    )
    for by in ("entropy", "margin"):
        assert uncertainty(p, by).topk(2).indices.sort().values.tolist() == [0, 2]


def server(**more: Any) -> Any:
    return halves.server(method=more.pop("method", "ds-fl"), **{**PUBLIC, **more})


@pytest.mark.parametrize("aggregation", ["era", "mean"])
def test_the_mean_of_the_predictions_is_agreed_on_and_goes_down(aggregation: str) -> None:
    method = server(ds_fl__aggregation=aggregation, public__learn=False)
    assert method.request(1).y is None
    rows = torch.tensor([[[0.8, 0.1, 0.1]], [[0.2, 0.5, 0.3]]]).expand(2, 40, 3)
    replies = [(halves.client(k), Reply(theta=rows[k].contiguous())) for k in range(2)]
    method.step(1, Replies.of(replies))
    mean = torch.tensor([0.5, 0.3, 0.2])
    agreed = mean if aggregation == "mean" else torch.softmax(mean / 0.1, 0)
    request = method.request(2)
    assert_close(request.y, agreed.expand(40, 3))
    assert (request.since, request.rows, request.y_rows) == (1, None, None)
    assert method.numbers(Replies.of(replies)) == 2 * 40 * 3 * 2


def test_what_the_server_chooses_it_tells_for_this_round_and_the_next() -> None:
    method = server(method="fdmeta")
    assert method.request(1).rows is None, "by lot, since nobody has learnt anything"
    reply = Reply(theta=torch.full((40, 3), 1 / 3))
    method.step(1, Replies.of([(halves.client(), reply)]))
    second = method.request(2)
    doubt = uncertainty(method.predicted(method.public), "entropy")
    assert second.rows.dtype == torch.int32 and len(second.rows.unique()) == 40
    assert float(doubt[second.rows].min()) >= float(doubt.sort().values[-40])
    method.step(2, Replies.of([(halves.client(), reply)]))
    assert torch.equal(method.request(3).y_rows, second.rows) and second.y_rows is None


@pytest.mark.parametrize(
    ("theta", "said"),
    [
        (torch.full((40, 3), 0.5), "row 0 sums to 1.5, not to 1"),
        (torch.full((39, 3), 1 / 3), r"theta is float32\[39, 3\], expected float32\[40, 3\]"),
        (torch.tensor([[2.0, -1.0, 0.0]]).repeat(40, 1), "theta reaches from -1 to 2"),
        (torch.full((40, 3), torch.nan), "theta reaches from nan to nan"),
    ],
)
def test_predictions_that_are_none_are_refused(theta: torch.Tensor, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        server().check(halves.client(), Reply(theta=theta))


def test_digestion_changes_the_server_and_is_measured(run: Run) -> None:
    with_it, without = (run(method="ds-fl", public__learn=on, **PUBLIC) for on in (True, False))
    assert with_it.weights != without.weights
    assert with_it.journal[2]["metrics"]["client_digest_loss"] > 0


def test_predictions_travel_in_fewer_bytes(run: Run) -> None:
    short, full = (run(method="ds-fl", wire__dtype=d, **PUBLIC) for d in ("uint8", "float32"))
    for way in ("up", "down"):
        less = full.journal[2]["bytes"][way] - short.journal[2]["bytes"][way]
        assert less == pytest.approx(3 * 2 * 40 * 3, abs=40), "2 clients, 40 samples of 3 classes"
