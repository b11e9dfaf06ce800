"""FedKF: identities, the two aggregates, the generator, what a batch costs."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from client_app.methods.fedkf import ClientState
from client_app.participant import Participant
from common.exchange.protocol import ModelReply
from common.journal import Fairness
from common.models.classifier import Classifier
from common.parse import to_toml
from common.techniques.datafree import DataFree, new_generator
from common.training import optimise
from common.training.task import Task
from deploy.study.pictures import average_images, samples
from server_app.method import Replies
from tests.support.cost import PassCounter, Passes
from tests.support.halves import client, server, task
from tests.support.recorded_calls import record_calls
from tests.support.tiny import Run, flat
from tests.support.weights import own_models

SMALL = {"generator__latent": 8, "generator__width": 4}
PARTIAL = {"per_round": 2, "rounds": 3, "score__clients_every": 1}


def test_oca_is_aca_while_all_are_active_and_another_teacher_otherwise(run: Run) -> None:
    fedkf = run(method="fedkf", **SMALL)
    for entry in fedkf.journal:
        assert entry["accuracies"]["oca"] == entry["accuracies"]["aca"]
    assert fedkf.summary["fairness"]["oca"] == fedkf.summary["fairness"]["aca"]
    same = run(method="fedkf", fedkf__teacher="aca", **SMALL)
    assert same.weights == fedkf.weights
    given = {"method": "fedkf", **SMALL, "per_round": 1, "rounds": 3, "seed": 3}
    oca, aca = run(**given), run(**given, fedkf__teacher="aca")
    assert oca.journal[1]["selected"] != oca.journal[2]["selected"]
    losses = [[entry["loss"] for entry in one.journal[2:]] for one in (oca, aca)]
    assert losses[0] != losses[1]


def test_fedkf_minus_sends_one_model_less_and_round_one_no_teacher(run: Run) -> None:
    given = {"method": "fedkf", "fleet": "lenet5@0.5", **SMALL, "rounds": 2, "score__every": 2}
    both, one = run(**given), run(**given, fedkf__teacher="aca")
    sent = [[r.journal[t]["bytes"]["arrays_down"] for t in (1, 2)] for r in (both, one)]
    assert sent[0][0] == sent[1][0]
    assert sent[0][1] - sent[1][1] == 4 * sum(v.nbytes for v in one.model.values())


def test_the_servers_generator_travels_and_stands_still_at_the_clients(run, monkeypatch) -> None:
    def owned(_: None, datafree: DataFree, *given: Any, **named: Any) -> bool:
        return given[4] is not None

    owners = record_calls(monkeypatch, DataFree, "__init__", owned)
    given = {"method": "fedkf", "fleet": "lenet5@0.5", "rounds": 3, **SMALL}
    at_server = run(**given, fedkf__generator_at="server", fedkf__generator_steps=2)
    assert owners == [True, False, False, False, False] * 2  # the server's, four clients'
    assert not list((at_server.folder / "state").rglob("*.safetensors")), "clients keep nothing"
    losses = [entry["metrics"].get("generator_loss") for entry in at_server.journal[1:]]
    assert losses[0] is None and losses[1] != losses[2]

    at_client = run(**given)
    assert at_server.weights != at_client.weights
    request = [r.journal[2]["bytes"]["arrays_down"] for r in (at_server, at_client)]
    generator = new_generator(task(method="fedkf", **SMALL))
    size = sum(v.numel() * v.element_size() for v in generator.state_dict().values())
    assert request[0] - request[1] == 4 * size


@pytest.mark.parametrize(
    ("init", "expected"),
    [  # client 2 never uploaded: (10·6 + 30·2) / 40; with w⁰ in its slot: (60 + 60 + 60·10) / 100
        ("uploaded", 3.0),
        ("w0", 7.2),
    ],
)
def test_the_oca_model_is_the_mean_over_the_latest_uploads(init, expected, tmp_path) -> None:
    def sent(*values: tuple[int, float]) -> Replies[ModelReply]:
        replies = [ModelReply(experiment="e", w=weight(value)) for _, value in values]
        return Replies.of([(clients[k], up) for (k, _), up in zip(values, replies, strict=True)])

    clients = [client(0, 10), client(1, 30), client(2, 60)]
    given = {"oca__aggregate": "on", "oca__init": init, "oca__in_memory": 1}
    oca = server(method="fedavg", folder=tmp_path, **given)
    oca.begin(clients)
    oca.net, w0 = torch.nn.Linear(1, 1, bias=False), {oca.global_spec: weight(10.0)}
    oca.models = oca.overall = w0
    oca.initial_models = lambda: w0
    oca.step(1, sent((0, 1.0), (1, 2.0)))
    oca.step(2, sent((0, 6.0)))
    assert oca.w["weight"].item() == 6.0, "the active client's"
    assert float(oca.weights_to_score()["weight"]) == pytest.approx(expected)


def weight(value: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.tensor([[value]])}


def test_uploads_in_memory_change_no_bit_and_clients_score_both_models_at_once(run: Run) -> None:
    many, none = (run(method="fedkf", oca__in_memory=n, **SMALL, **PARTIAL) for n in (64, 0))
    assert many.timeless == none.timeless and many.weights == none.weights
    assert list((none.folder / "uploads").iterdir()) and not (many.folder / "uploads").exists()

    entry = many.journal[2]
    assert [score["k"] for score in entry["scores"]] == [0, 1, 2, 3]
    aca = [score["accuracies"]["aca"] for score in entry["scores"]]
    told = entry["fairness"]["models"]
    assert told["aca"]["wlp"] == min(aca) and told["oca"]["amp"] == entry["fairness"]["main"]["amp"]
    last = Fairness.model_validate(many.journal[-1]["fairness"])
    assert many.summary["fairness"] == last.as_dict()
    assert many.summary["accuracies"].keys() == {"aca", "oca"}


def test_generators_start_alike_and_become_each_clients_own(run: Run) -> None:
    result = run(method="fedkf", rounds=3, **SMALL)
    unmoved = run(method="fedkf", rounds=2, **SMALL, generator__lr=1e-12)
    starts, ends = (
        [own["fc.weight"] for own in own_models(played, t, ClientState, "generator")]
        for played, t in ((unmoved, 2), (result, 3))
    )
    assert torch.allclose(starts[0], starts[1], atol=1e-9) and not torch.equal(*ends[:2])
    adam = own_models(result, 3, ClientState, "adam")[0]
    steps = sum(entry["client_metrics"]["0"]["steps"] for entry in result.journal[2:])
    assert {int(moments["step"]) for moments in adam.values()} == {steps}


def test_adam_goes_on_where_it_was_in_any_memory_format() -> None:
    def generator_after(layout: torch.memory_format) -> torch.Tensor:
        net = torch.nn.Conv2d(3, 4, 3)
        for p in net.parameters():
            torch.nn.init.constant_(p, 0.1)
        net = net.to(memory_format=layout)  # type: ignore[call-overload]
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for i in range(3):
            adam = optimise.make(net.parameters(), "adam", 0.1)
            optimise.restore_moments(adam, moments)
            x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(i))
            net(x).sub(x[:, :1, 1:-1, 1:-1]).square().mean().backward()
            adam.step()
            adam.zero_grad()
            held = optimise.moments(adam).items()
            moments = {k: {n: v.contiguous() for n, v in s.items()} for k, s in held}
        return net.weight.detach().contiguous()

    plain, last = map(generator_after, (torch.contiguous_format, torch.channels_last))
    assert torch.allclose(plain, last, atol=1e-5)


def test_a_clients_loss_is_cross_entropy_and_gamma_times_kl_from_the_teacher(run, monkeypatch):
    model, train = Participant.model, Participant.train
    nets: list[Any] = []
    seen: list[tuple[float, float]] = []

    def built(self: Participant, *args: Any, **kwargs: Any) -> Any:
        nets.append(model(self, *args, **kwargs))
        return nets[-1]

    def training(self: Participant, t: int, parameters: Any, loss: Any, *extend: Any) -> Any:
        if t == 2:
            student, teacher = nets[-2:]
            own = self.task.batches(*self.train_set, self.k, t)
            for x, y, images, logits in extend[0](list(own)[:2]):
                with torch.no_grad():
                    p, q = teacher(images).softmax(1), student(images).softmax(1)
                    ours = -student(x).log_softmax(1)[range(len(y)), y].mean()
                    apart = (p * (p.log() - q.log())).sum(1).mean()
                    assert apart > 1e-4
                    assert torch.allclose(logits, teacher(images), atol=1e-5)
                seen.append((loss(x, y, images, logits).item(), (ours + 3 * apart).item()))
        return train(self, t, parameters, loss, *extend)

    monkeypatch.setattr(Participant, "model", built)
    monkeypatch.setattr(Participant, "train", training)
    run(method="fedkf", fleet="mlp@0.25", fedkf__gamma=3.0, per_round=2, seed=3, **SMALL)
    assert len(seen) == 4
    for value, expected in seen:
        assert value == pytest.approx(expected, rel=1e-4)


def counted(method: str, run: Run, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Any:
    """Passes for each batch in round 2: through all classifiers, and through the generator."""
    counters: list[tuple[bool, PassCounter]] = []
    place, train = Task.place, Participant.train

    def placed(self: Task, net: Any) -> Any:
        counters.append((isinstance(net, Classifier), PassCounter(net)))
        return place(self, net)

    found: list[tuple[Passes, Passes]] = []

    def training(self: Participant, t: int, *args: Any, **kwargs: Any) -> Any:
        mine = list(counters)
        before = [counter.passes for _, counter in mine]
        metrics = train(self, t, *args, **kwargs)
        if t == 2:
            sums = {True: [0.0, 0.0], False: [0.0, 0.0]}
            for (is_classifier, counter), old in zip(mine, before, strict=True):
                new = counter.passes
                sums[is_classifier][0] += (new.forward - old.forward) / metrics["steps"]
                sums[is_classifier][1] += (new.backward - old.backward) / metrics["steps"]
            found.append((Passes(*sums[True]), Passes(*sums[False])))
        counters.clear()
        return metrics

    monkeypatch.setattr(Task, "place", placed)
    monkeypatch.setattr(Participant, "train", training)
    run(method=method, fleet="lenet5@0.5", **changes)
    assert len(found) == 4 and len(set(found)) == 1
    return found[0]


TABLE_IX: list[tuple[str, dict[str, Any], Any]] = [
    ("fedavg", {}, ((1, 1), (0, 0))),
    ("fedprox", {}, ((1, 1), (0, 0))),
    ("fedgen", {"fedgen__server_steps": 2}, ((1.5, 1.5), (1, 0))),
    ("fedgkd", {"fedgkd__buffer": 1}, ((2, 1), (0, 0))),
    ("qffl", {}, ((1, 1), (0, 0))),
    *(("fedkf", {"fedkf__teacher": name, **SMALL}, ((3, 3), (1, 1))) for name in ("aca", "oca")),
]
"""Method, changes, and passes (forward, backward) of classifiers and of the generator."""


@pytest.mark.parametrize(("method", "changes", "passes"), TABLE_IX)
def test_passes_for_each_batch_are_those_of_table_ix(method, changes, passes, run, monkeypatch):
    assert counted(method, run, monkeypatch, **changes) == passes


def test_the_samples_of_a_finished_run_are_drawn_class_by_class(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no finished run"):
        average_images(tmp_path, 10)
    result = run(method="fedkf", **SMALL)
    settings = flat(result.folder, method="fedkf", **SMALL)
    (result.folder / "config.toml").write_text(to_toml(settings))
    generated = samples(result.folder, 41, tmp_path / "new" / "samples.png")  # by four generators
    assert int(generated.counts.sum()) == 41
    assert (tmp_path / "new" / "samples.png").stat().st_size > 1000
    copied = shutil.copytree(result.folder, tmp_path / "copied")
    shutil.move(result.folder / "state", tmp_path / "elsewhere")
    again = average_images(copied, 41)[1]
    assert torch.equal(again.sums, generated.sums)
    shutil.move(tmp_path / "elsewhere", result.folder / "state")
    (copied / "model.safetensors").write_bytes(b"half")
    with pytest.raises(ValueError, match="is damaged or no safetensors file"):
        average_images(copied, 10)
    real, _, data = average_images(result.folder, 4)
    one = data.x[data.y == 1].double().mean(0) / 255
    assert torch.allclose(real.images[1], one, atol=1e-6)
