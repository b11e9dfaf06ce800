"""Predictions for public images: FedMD, DS-FL, FDmeta and KT-pFL."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from flwr.app import Message
from torch import Tensor
from torch.testing import assert_close

import server_app.methods.kt_pfl as half
from client_app.methods.fedmd import FedMD, Kept
from client_app.participant import Participant
from common.exchange.predictions import LARGEST, Predictions, encoded
from common.journal import Entry
from common.methods.ds_fl import Reply as DSFLReply
from common.methods.fedmd import Reply
from common.methods.kt_pfl import Options, step
from common.methods.kt_pfl import Reply as KTReply
from common.objectives import ONE_CLASS
from common.parse import parse
from common.techniques.public_set import subset
from common.training.task import check_fleet
from deploy.report import sections
from deploy.report.read import read
from deploy.report.style import inline
from deploy.run.loopback import Loopback
from server_app.method import Replies
from server_app.methods.ds_fl import uncertainty
from tests.support import battery, halves
from tests.support.battery import Crash
from tests.support.recorded_calls import record_calls
from tests.support.tiny import Run, flat, play
from tests.support.weights import own_models, same

SMALL: dict[str, Any] = {**battery.PUBLIC, "method": "fedmd", "clients": 3, "train__epochs": 1}
SMALL |= {"fedmd__first_epochs": 1}


def server(**more: Any) -> Any:
    return halves.server(**{**SMALL, **more})


def replies(*said: Any, probabilities: bool = False) -> Replies[Reply]:
    """What clients 0, 1, … say, each a list of rows."""
    told = [encoded(torch.tensor(x), "float32", probabilities=probabilities) for x in said]
    return Replies.of([(halves.client(k), Reply(**fields)) for k, fields in enumerate(told)])


@pytest.mark.parametrize(
    ("align", "agreed", "distance"),
    [("l1", [1.0, 1.0], 1.0), ("mse", [1.0, 1.0], 1.0), ("kl", [0.5, 0.5], 0.433781)],
)
def test_two_clients_meet_in_the_middle_by_hand(align, agreed, distance) -> None:
    method = server(fedmd__align=align)
    o, z = method.options, torch.tensor([[[2.0, 0.0]], [[0.0, 2.0]]])
    told = method.second(1, replies(*(o.speak(x).tolist() for x in z), probabilities=align == "kl"))
    assert told[0] is told[1], "packed once"
    answer = told[0].said(probabilities=align == "kl")
    assert torch.allclose(answer, torch.tensor([agreed]))
    assert float(o.distance(z[0], answer)) == pytest.approx(distance, abs=1e-6)


@pytest.mark.parametrize("align", ["l1", "mse", "kl"])
def test_alone_a_client_hears_itself_and_has_nothing_to_learn(align: str) -> None:
    method, z = server(fedmd__align=align), torch.randn(4, 3, requires_grad=True)
    said, probabilities = method.options.speak(z).detach(), align == "kl"
    answer = method.second(1, replies(said.tolist(), probabilities=probabilities))[0]
    target = answer.said(probabilities=probabilities)
    assert torch.allclose(target, said, atol=0 if align != "kl" else 1e-7)
    (gradient,) = torch.autograd.grad(method.options.distance(z, target), z)
    assert float(gradient.abs().max()) < 1e-7 and (align == "kl" or not gradient.any())


def test_what_digests_is_what_spoke(run: Run) -> None:
    """Alone, in one batch and without BatchNorm: the distance to ẑ before the only step."""
    alone = {"clients": 1, "fleet": "lenet5@0.5", "public__epochs": 1, "public__batch_size": 40}
    done = run(**{**SMALL, **alone, "fedmd__align": "mse"})
    found = [entry["metrics"]["client_align_loss"] for entry in done.journal[1:]]
    assert "client_first_loss" in done.journal[1]["metrics"]
    assert "client_first_loss" not in done.journal[2]["metrics"], "before the first round alone"
    assert len(found) == 2 and max(found) < 1e-12


def test_who_did_not_hear_the_answer_goes_on_from_its_model(tmp_path, monkeypatch) -> None:
    second = FedMD.second

    def place(reply: Reply, half: FedMD, request: Any) -> tuple[tuple[int, int], Tensor]:
        return (half.participant.k, request.t), reply.theta

    def deaf(self: FedMD, request: Any) -> Any:
        if (self.participant.k, request.t) == (1, 1):
            raise OSError("cut off")
        return second(self, request)

    replies = record_calls(monkeypatch, FedMD, "train", place)
    monkeypatch.setattr(FedMD, "second", deaf)
    done = play(flat(tmp_path, **{**SMALL, "min_replies": 0.5, "public__subset": 999}))
    assert done.journal[1]["replied"] == [0, 2] and done.journal[2]["replied"] == [0, 1, 2]
    (failure,) = done.journal[1]["failures"]
    assert failure == {"k": 1, "round": 1, "reason": "OSError: cut off", "kind": "client error"}
    said = dict(replies)
    assert torch.equal(said[1, 1], said[1, 2]), "all public images, the same weights"
    assert not torch.equal(said[0, 1], said[0, 2])


class LosesRound2(Loopback):  # type: ignore[misc]
    """Dies when the clients have digested and trained in round 2, before they score."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        about = {(m.metadata.message_type, m.metadata.group_id) for m in sent}
        if ("evaluate", "2") in about:
            raise Crash
        return super().push_messages(sent)


def test_a_round_repeated_after_its_second_exchange_gives_the_same_bits(tmp_path: Path) -> None:
    """Also for a client whose first round it is."""
    settings = {**SMALL, "per_round": 2, "seed": 3, "score__clients_every": 1}
    whole = play(flat(tmp_path / "whole", **settings))
    cut = flat(tmp_path / "cut", **settings)
    with pytest.raises(Crash):
        play(cut, LosesRound2)
    again = play(flat(tmp_path / "cut", **settings, resume=True))
    assert again.timeless == whole.timeless and same(own_models(again, 2), own_models(whole, 2))
    first, second = (set(entry["selected"]) for entry in whole.journal[1:])
    assert first & second and second - first, "somebody goes on, somebody begins"


LIVING: dict[str, Any] = {
    **{**SMALL, "clients": 2, "fleet": "lenet5@0.25", "rounds": 2, "fedmd__first_epochs": 2},
    **{"train__optimizer": "adam", "train__lr": 0.01, "public__lr": 0.02},
}
KEPT = {**LIVING, "fedmd__optimizers": "kept"}


def released(folder: Path) -> list[dict[str, Tensor]]:
    """Return the weights after two rounds in which no client renews its two Adams."""
    config = parse(flat(folder, **LIVING))
    parties = [Participant(config, {"partition-id": k}, "x") for k in (0, 1)]
    nets = [p.model(p.spec) for p in parties]
    classifier = [torch.optim.Adam(net.parameters(), lr=0.01, fused=True) for net in nets]
    logits = [torch.optim.Adam(net.parameters(), lr=0.02, fused=True) for net in nets]

    def descend(adam: torch.optim.Adam, batches: Any, times: int, loss: Any) -> None:
        for _ in range(times):
            for x, y in batches:
                adam.zero_grad()
                loss(x, y).backward()
                adam.step()

    for t in (0, 1, 2):  # 0: the training before round 1
        task, public = parties[0].task, parties[0].public
        shown = public[subset(task, t, len(public))]
        consensus = torch.stack([task.logits(net, shown) for net in nets]).mean(0)
        for k, (p, net) in enumerate(zip(parties, nets, strict=True)):
            net.train()
            if t:
                said = task.batches(shown, consensus, "digest", k, t, size=16, augment="none")
                descend(logits[k], said, 2, lambda x, z, net=net: (net(x) - z).abs().mean())
            name = (k, t) if t else ("first", k, 1)
            own = p.task.batches(*p.train_set, *name)
            loss = lambda x, y, net=net: F.cross_entropy(net(x), y)  # noqa: E731
            descend(classifier[k], own, 1 if t else 2, loss)
    return [{n: w.detach().clone() for n, w in net.state_dict().items()} for net in nets]


def test_kept_optimisers_are_those_of_the_released_code(run: Run, tmp_path: Path) -> None:
    ours, expected = own_models(run(**KEPT), 2, Kept), released(tmp_path)
    fresh = own_models(run(**LIVING), 2)
    assert len(ours) == len(fresh) == 2
    for k in (0, 1):
        for name, value in expected[k].items():
            torch.testing.assert_close(ours[k][name], value, rtol=0, atol=1e-4)
        apart = max(float((fresh[k][n] - w).abs().max()) for n, w in expected[k].items())
        assert apart > 0.01, "a new Adam for every training takes other steps"


@pytest.mark.full
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_kept_optimisers_survive_a_resumed_run(optimizer: str, run: Run, tmp_path: Path) -> None:
    settings = {**KEPT, "train__optimizer": optimizer}
    whole = run(**settings)
    play(flat(tmp_path, **{**settings, "rounds": 1}))
    again = play(flat(tmp_path, **settings, resume=True))
    assert same(own_models(again, 2, Kept), own_models(whole, 2, Kept))
    if optimizer == "adam":  # 40 images make 3 batches in each of 2 epochs, in 2 rounds
        digest, train = (own_models(again, 2, Kept, name) for name in ("digest", "train"))
        assert [int(state[0]["step"]) for state in digest] == [3 * 2 * 2] * 2
        assert all(int(state[0]["step"]) % (2 + 2) == 0 for state in train), "first epochs, rounds"


@pytest.mark.parametrize("dtype", ["float16", "uint8"])
def test_logits_travel_in_every_dtype_of_the_wire(dtype: str) -> None:
    z = torch.tensor([[-3.0, 0.5, 7.0], [1e6, 0.0, 1.0]])
    fields = encoded(z[:1], dtype, probabilities=False)
    back = Predictions(**fields).said(probabilities=False)
    assert (fields["low"], fields["high"]) == (-3.0, 7.0)
    assert float((back - z[:1]).abs().max()) <= 10 / 255 / 2 + 1e-6
    wide = Predictions(**encoded(z, dtype, probabilities=False))
    wide.check_predictions((2, 3), dtype, probabilities=False)
    assert float(wide.said(probabilities=False).max()) == LARGEST


def test_n_times_c_numbers_travel_each_way_for_each_client(run: Run) -> None:
    done = run(**{**SMALL, "rounds": 1, "wire__dtype": "float16", "share_counts": False})
    entry, numbers = done.journal[1], 2 * 40 * 3 * 3
    assert entry["cost"]["numbers"] == numbers
    assert entry["bytes"]["arrays_up"] == entry["bytes"]["arrays_down"] == 2 * numbers // 2


def test_labelled_public_training_needs_the_tasks_classes(run: Run) -> None:
    other = {**SMALL, "data__public": 0.0, "data__public_name": "digits"}
    with pytest.raises(ValueError, match=r"fedmd\.public-epochs = 2 needs a public set with the"):
        check_fleet(halves.task(**other, fedmd__public_epochs=2))
    check_fleet(halves.task(**other))
    done = run(**{**SMALL, "rounds": 1, "fedmd__public_epochs": 2})
    assert done.journal[1]["metrics"]["client_public_loss"] > 0


PUBLIC = {**battery.PUBLIC, "train__epochs": 1, "clients": 2}
P = torch.tensor([[0.5, 0.3, 0.2]])


def entropy(p: torch.Tensor) -> float:
    return float(uncertainty(p, "entropy"))


@pytest.mark.parametrize(
    ("T", "row", "nats"),
    [(0.1, [0.8438, 0.1142, 0.0420], 0.5243), (1.0, [0.3907, 0.3199, 0.2894], 1.0906)],
)
def test_entropy_reduction_by_hand(T: float, row: list[float], nats: float) -> None:
    reduced = ONE_CLASS.sharpened(P, T)
    assert_close(reduced, torch.tensor([row]), atol=5e-5, rtol=0)
    assert entropy(P) == pytest.approx(1.0297, abs=5e-5)
    assert entropy(reduced) == pytest.approx(nats, abs=5e-5)


def test_the_least_sure_samples_are_chosen_by_hand() -> None:
    p = torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.6, 0.4]])
    expected = torch.tensor([0.6931, 0.3251, 0.6730])
    assert_close(uncertainty(p, "entropy"), expected, atol=5e-5, rtol=0)
    for by in ("entropy", "margin"):
        assert uncertainty(p, by).topk(2).indices.sort().values.tolist() == [0, 2]


def ds_fl(**more: Any) -> Any:
    return halves.server(method=more.pop("method", "ds-fl"), **{**PUBLIC, **more})


@pytest.mark.parametrize("aggregation", ["era", "mean"])
def test_the_mean_of_the_predictions_is_agreed_on_and_goes_down(aggregation: str) -> None:
    method = ds_fl(ds_fl__aggregation=aggregation, public__learn=False)
    assert method.request(1).y is None
    rows = torch.tensor([[[0.8, 0.1, 0.1]], [[0.2, 0.5, 0.3]]]).expand(2, 40, 3)
    replies = [(halves.client(k), DSFLReply(theta=rows[k].contiguous())) for k in range(2)]
    method.step(1, Replies.of(replies))
    mean = torch.tensor([0.5, 0.3, 0.2])
    agreed = mean if aggregation == "mean" else torch.softmax(mean / 0.1, 0)
    request = method.request(2)
    assert_close(request.y, agreed.expand(40, 3))
    assert (request.since, request.rows, request.y_rows) == (1, None, None)
    assert method.numbers(Replies.of(replies)) == 2 * 40 * 3 * 2


def test_what_the_server_chooses_it_tells_for_this_round_and_the_next() -> None:
    method = ds_fl(method="fdmeta")
    assert method.request(1).rows is None, "by lot, since nobody has learnt anything"
    reply = DSFLReply(theta=torch.full((40, 3), 1 / 3))
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
        ds_fl().check(halves.client(), DSFLReply(theta=theta))


def test_digestion_changes_the_server_and_predictions_travel_in_fewer_bytes(run: Run) -> None:
    given = {"method": "ds-fl", **PUBLIC}
    full, without = run(**given), run(**given, public__learn=False)
    assert full.weights != without.weights
    assert full.journal[2]["metrics"]["client_digest_loss"] > 0
    short = run(**given, wire__dtype="uint8")
    for way in ("up", "down"):
        less = full.journal[2]["bytes"][way] - short.journal[2]["bytes"][way]
        assert less == pytest.approx(3 * 2 * 40 * 3, abs=40), "2 clients, 40 samples of 3 classes"


KT_PFL: dict[str, Any] = {**battery.PUBLIC, "method": "kt-pfl", "clients": 3, "train__epochs": 1}
HAND = torch.tensor([[0.8, 0.2], [0.4, 0.6]])


def kt_pfl(clients: int = 2, **more: Any) -> Any:
    method = halves.server(**{**KT_PFL, **more})
    method.clients = [halves.client(k) for k in range(clients)]
    method.c = torch.full((clients, clients), 1 / clients)
    return method


def distributions(said: dict[int, Tensor]) -> Replies[KTReply]:
    pairs = ((k, KTReply(**encoded(p, "float32", probabilities=True))) for k, p in said.items())
    return Replies.of([(halves.client(k), reply) for k, reply in pairs])


def said(n: int, seed: int = 0) -> Tensor:
    """What n clients say about five samples of three classes."""
    z = torch.randn(n, 5, 3, generator=torch.Generator().manual_seed(seed))
    return torch.softmax(2 * z, dim=2)


def test_one_step_of_kt_pfl_by_hand() -> None:
    steps = {0.08: 0.2, 0.01: 1.0, 0.004: 5.0, 1e-6: 5.0**5, 1e6: 5.0**-5}
    assert {m: step(m) for m in steps} == pytest.approx(steps)
    method, sent = kt_pfl(), {k: row[None] for k, row in enumerate(HAND)}
    method.step(1, distributions(sent))
    assert method.c[0].tolist() == pytest.approx([0.5399, 0.4601], abs=5e-5)
    told = method.second(1, distributions(sent))[0].said(probabilities=True)
    assert told[0].tolist() == pytest.approx((method.c[0] @ HAND).tolist(), abs=1e-6)


@pytest.mark.parametrize("rho", [0.0, 0.7])
def test_what_is_descended_is_the_papers_objective(rho: float) -> None:
    o, p = Options(rho=rho), said(4).flatten(1)
    c = torch.softmax(torch.randn(4, generator=torch.Generator().manual_seed(1)), 0)
    free = c.clone().requires_grad_()
    mse = torch.nn.functional.mse_loss
    loss = mse(free @ p, p[2]) + rho * mse(free, torch.full((4,), 0.25))
    (g,) = torch.autograd.grad(loss, free)
    r = step(float(g.abs().mean()))
    assert torch.allclose(o.learnt(c, p, 2), torch.softmax(5 * (c - r * g), 0), atol=1e-6)


def test_only_who_takes_part_moves_and_rows_always_sum_to_one() -> None:
    method, p = kt_pfl(clients=4), said(4)
    method.step(1, distributions(dict(enumerate(p))))
    before = method.c.clone()
    assert not torch.allclose(before, torch.full((4, 4), 0.25))
    method.step(2, distributions({0: p[1], 2: p[3]}))
    now = method.c
    assert torch.allclose(now.sum(1), torch.ones(4))
    present = torch.zeros(4, 4, dtype=torch.bool)
    present[[0, 0, 2, 2], [0, 2, 0, 2]] = True
    assert torch.equal(now[~present], before[~present])
    assert not torch.allclose(now[present], before[present])
    told = method.second(2, distributions({0: p[1], 2: p[3]}))
    share = now[2, [0, 2]] / now[2, [0, 2]].sum()
    target = share[0] * p[1] + share[1] * p[3]
    assert sorted(told) == [0, 2]
    assert torch.allclose(told[2].said(probabilities=True), target, atol=1e-6)


def test_everybody_speaks_at_the_temperature() -> None:
    o, z = Options(temperature=10.0), torch.tensor([[20.0, 0.0]])
    assert o.speak(z)[0].tolist() == pytest.approx([0.880797, 0.119203], abs=1e-6)
    whole = float(Options(kl="batchmean").distance(z, torch.tensor([[0.5, 0.5]])))
    assert whole == pytest.approx(0.433781, abs=1e-6), "no factor T²"
    assert float(o.distance(z, torch.tensor([[0.5, 0.5]]))) == pytest.approx(whole / 2)


def test_uniform_coefficients_at_temperature_one_are_fedmd_bit_for_bit(run: Run) -> None:
    common = {**KT_PFL, "clients": 2, "public__optimizer": "adam", "public__lr": 0.01}
    frozen = {"c_scale": 0.0, "temperature": 1.0, "kl": "batchmean", "grow": False}
    ours = run(**common, **{f"kt-pfl.{name.replace('_', '-')}": v for name, v in frozen.items()})
    theirs = run(**{**common, "method": "fedmd", "fedmd.align": "kl", "fedmd.first-epochs": 1})
    for our, their in zip(ours.journal[1:], theirs.journal[1:], strict=True):
        assert our["metrics"] == their["metrics"] and our["metrics"]["client_align_loss"] > 0
    assert same(own_models(ours, 2), own_models(theirs, 2))
    assert ours.summary["coefficients"] == [[0.5, 0.5], [0.5, 0.5]]
    assert theirs.summary["coefficients"] is None


def test_private_epochs_grow_by_one_a_round(run: Run) -> None:
    grown = run(**{**KT_PFL, "clients": 2, "rounds": 3, "train__epochs": 2})
    steps = [entry["metrics"]["client_steps"] for entry in grown.journal[1:]]
    assert steps[1] == steps[2] == 2 * steps[0]


def test_the_page_shows_the_coefficients_unless_clients_are_many(run, monkeypatch) -> None:
    done = run(**{**KT_PFL, "rounds": 1})
    c = done.summary["coefficients"]
    assert all(sum(row) == pytest.approx(1, abs=2e-4) for row in c)
    section = sections.coefficients(read(done.folder))
    assert section is not None and section.cards[0].figure is not None
    drawn = inline(section.cards[0].figure, "c", section.cards[0].alt)
    assert drawn.count("<title>") == 9
    assert f"<title>client 0 from client 2: {c[0][2]:.3f}</title>" in drawn
    monkeypatch.setattr(sections, "MOST_CLIENTS", 2)
    assert sections.coefficients(read(done.folder)) is None
    monkeypatch.setattr(half, "MAX_LOGGED", 1)
    entry = Entry(round=1)
    kt_pfl().aggregate_second([], entry)
    assert entry.coefficients == []
