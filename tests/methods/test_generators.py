"""Methods with a generator at the server: FedFTG, DAFL and FedGen."""

import pytest
import torch

from client_app.methods import half
from common.methods import fedavg, fedftg
from common.methods.fedgen import Reply
from common.models.generator import FeatureGenerator, Generator
from common.parse import to_toml
from deploy.study.pictures import average_images
from server_app.method import Replies
from server_app.methods.fedftg import apportioned, label_weights
from server_app.stopped import Stopped
from server_app.storage.checkpoint import Checkpoint
from tests.support.halves import client, server
from tests.support.recorded_calls import record_calls
from tests.support.tiny import Run, TinyRun, flat, under

GENERATOR = under("generator", latent=8, width=8)
TINY = {"method": "fedftg", **under("fedftg", iterations=2, generated=8), **GENERATOR}
TINY |= {"fleet": "cnn2@0.5"}


def test_labels_and_teachers_follow_the_class_counts() -> None:
    # clients hold (3, 0, 0) and (1, 4, 0): classes 4/8, 4/8, 0; of class 0 client 0 has 3 in 4
    p, alpha = label_weights(torch.tensor([[3.0, 0, 0], [1.0, 4, 0]], dtype=torch.float64))
    assert p.tolist() == [0.5, 0.5, 0.0]
    assert alpha.tolist() == [[0.75, 0.0, 0.0], [0.25, 1.0, 0.0]]
    # cumulative shares .3, .35, .35, 1 of ten labels end at 3, 3 (3.5 rounded down), 3 and 10
    p = torch.tensor([0.3, 0.05, 0.0, 0.65])
    labels = apportioned(p, 10, torch.Generator().manual_seed(0))
    assert labels.bincount(minlength=4).tolist() == [3, 0, 0, 7]
    again = apportioned(p, 10, torch.Generator().manual_seed(1))
    assert sorted(again.tolist()) == sorted(labels.tolist()) and not torch.equal(again, labels)


def test_z_and_y_are_drawn_once_in_an_iteration(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four clients' steps and five of the student on one draw, or on one each."""
    seen = record_calls(monkeypatch, Generator, "forward", lambda images, generator, z: z.clone())
    for draw, different in (("iteration", 2), ("step", 18)):
        seen.clear()
        run(**TINY, rounds=1, fedftg__draw=draw)
        assert len(seen) == 18 and len({z.numpy().tobytes() for z in seen}) == different


def test_it_needs_the_class_counts(run: Run) -> None:
    with pytest.raises(Stopped, match="client 0 sends no class counts; set share-counts = true"):
        run(**TINY, share_counts=False)


def test_the_generator_lives_on_over_rounds(run: Run) -> None:
    states = [theta(run(**TINY, rounds=rounds)) for rounds in (1, 2)]
    assert states[0].keys() == states[1].keys()
    # two iterations of four clients' steps and five student batches: 2 · (4 + 5) a round
    assert [int(s["bn1.num_batches_tracked"]) for s in states] == [18, 36]
    assert not torch.equal(states[0]["conv1.weight"], states[1]["conv1.weight"])


def theta(run: TinyRun) -> dict[str, torch.Tensor]:
    return Checkpoint.load(run.folder / "checkpoint.safetensors").state["theta"]


def test_fakes_leave_the_averaged_running_statistics_alone(run: Run) -> None:
    settings = {**TINY, "rounds": 1}
    ours, mean = run(**settings).model, run(**{**settings, "fedftg__iterations": 0}).model
    changed = {name for name in ours if not torch.equal(ours[name], mean[name])}
    assert changed and not any("running" in name or "tracked" in name for name in changed)


def test_a_client_s_answer_is_fedavg_s() -> None:
    assert fedftg.Reply is fedavg.Reply and fedftg.Request is fedavg.Request
    assert half("fedftg") is half("fedprox"), "whose loss is FedAvg's where μ is 0"


SMALL = {"fleet": "lenet5@0.5", **GENERATOR, **under("dafl", server_steps=4, server_batch_size=8)}


def test_the_teacher_is_what_fedavg_trains_and_a_single_owner_has_one_too(run: Run) -> None:
    dafl, fedavg = run(method="dafl", **SMALL), run(method="fedavg", fleet="lenet5@0.5")
    teacher = [e["accuracies"]["teacher"] for e in dafl.journal]
    assert teacher == [e["accuracy"] for e in fedavg.journal]
    result = run(method="dafl", clients=1, data__test_fraction=0.0, **SMALL)
    assert result.summary["accuracies"].keys() == {"student", "teacher"}
    assert result.summary["accuracy"] == result.summary["accuracies"]["student"]


def test_the_student_waits_for_its_start(run: Run) -> None:
    journal = run(method="dafl", rounds=3, dafl__start=3, **SMALL).journal
    students = [e["loss"] for e in journal]
    assert students[0] == students[1] == students[2] != students[3]
    assert "distill_loss" not in journal[2]["metrics"] and "distill_loss" in journal[3]["metrics"]


def test_what_the_servers_generator_draws_can_be_seen(run: Run) -> None:
    result = run(method="dafl", **SMALL)
    settings = flat(result.folder, method="dafl", **SMALL)
    (result.folder / "config.toml").write_text(to_toml(settings))
    assert int(average_images(result.folder, 30)[1].counts.sum()) == 30


FEDGEN = {"fedgen__server_steps": 3, "fedgen__hidden": 8, "fedgen__server_batch_size": 8}
AUTHORS = {
    "fedgen__ensemble": "labels", "fedgen__noise": "normal", "fedgen__alpha": 10.0,
    "fedgen__beta": 1.0, "fedgen__decay": 0.98, "fedgen__until": 20,
}  # fmt: skip


def test_the_generator_has_the_layers_of_the_paper() -> None:
    generator = FeatureGenerator(32, 26, 120, 256)
    # 58·256 + 256, 2·256, 256·120 + 120
    assert sum(p.numel() for p in generator.parameters()) == 15_104 + 512 + 30_840
    draw = torch.Generator().manual_seed(0)
    uniform = generator.latents(1000, "uniform", draw)
    assert uniform.shape == (1000, 32) and uniform.min() >= 0 and uniform.max() < 1
    assert generator.latents(1000, "normal", draw).min() < -1
    assert bool((generator(uniform[:5], torch.tensor([0, 1, 2, 3, 25])) >= 0).all())


def test_the_authors_variant_learns_too(run: Run) -> None:
    result = run(method="fedgen", rounds=3, **FEDGEN, **AUTHORS)
    assert result.summary["accuracy"]["final"] > 0.5


@pytest.mark.parametrize(("ensemble", "expected"), [("logits", 0.5), ("labels", 0.95)])
def test_the_ensembles_by_hand(ensemble: str, expected: float) -> None:
    # Features are 1. Client 0 (n = 10, all of class 0) has logits (2, 0); client 1 (n = 30, of
    # which 10 of class 0) has (0, 2). Asked for class 0.
    up0 = Reply(w=head(2.0, 0.0), counts=[10, 0])
    up1 = Reply(w=head(0.0, 2.0), counts=[10, 20])
    fedgen = server(method="fedgen", fedgen__ensemble=ensemble, fedgen__diversity=0.0)
    loss = fedgen._loss(Replies.of([(client(0, 10), up0), (client(1, 30), up1)]), Ones())
    value = loss(torch.zeros(2, 1), torch.tensor([0, 0])).item()
    ce = [torch.log1p(torch.tensor(d).exp()).item() for d in (-2.0, 2.0)]
    if ensemble == "logits":  # ¼ (2, 0) + ¾ (0, 2) = (.5, 1.5): CE = log(1 + e)
        assert value == pytest.approx(torch.log1p(torch.tensor(1.0).exp()).item())
    else:  # class 0 is half client 0's and half client 1's
        assert value == pytest.approx((ce[0] + ce[1]) / 2)
    assert value > expected


class Ones(torch.nn.Module):
    """Features of 1."""

    def forward(self, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(z), 1)


def head(a: float, b: float) -> dict[str, torch.Tensor]:
    return {"head.weight": torch.tensor([[a], [b]]), "head.bias": torch.zeros(2)}
