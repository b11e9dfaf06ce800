"""FedMD: what is agreed on, from which weights a client goes on, and what is refused."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from flwr.app import Message
from torch import Tensor

from client_app.methods.fedmd import FedMD, Kept
from client_app.participant import Participant
from common.exchange.predictions import LARGEST, Predictions, spoken
from common.methods.fedmd import Reply
from common.settings.parse import parse
from common.techniques.public_set import subset
from common.training.task import check_fleet
from deploy.run.loopback import Loopback
from server_app.method import Replies
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
    told = [spoken(torch.tensor(x), "float32", probabilities=probabilities) for x in said]
    return Replies.of([(halves.client(k), Reply(**fields)) for k, fields in enumerate(told)])


@pytest.mark.parametrize(
    ("align", "agreed", "distance"),
    [("l1", [1.0, 1.0], 1.0), ("mse", [1.0, 1.0], 1.0), ("kl", [0.5, 0.5], 0.433781)],
)
def test_two_clients_meet_in_the_middle_by_hand(
    align: str, agreed: list[float], distance: float
) -> None:
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


def test_who_did_not_hear_the_answer_goes_on_from_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert done.journal[1]["failures"] == [{"k": 1, "round": 1, "reason": "OSError: cut off"}]
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


# Optimisers that live across rounds.

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
            descend(
                classifier[k], own, 1 if t else 2, lambda x, y, net=net: F.cross_entropy(net(x), y)
            )
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
    fields = spoken(z[:1], dtype, probabilities=False)
    back = Predictions(**fields).said(probabilities=False)
    assert (fields["low"], fields["high"]) == (-3.0, 7.0)
    assert float((back - z[:1]).abs().max()) <= 10 / 255 / 2 + 1e-6
    wide = Predictions(**spoken(z, dtype, probabilities=False))
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
