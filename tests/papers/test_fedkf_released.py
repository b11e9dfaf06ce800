"""FedKF beside its authors' released code (github.com/zxlovely/FedKF), on equal inputs.

The environment variable FEDKF_CODE names a checkout of that repository. Its server and clients get
our partition, first weights, selection, batches and latents. Everything else is their code, but for
``ClientFedKF.generator``: as released, a client asks ``None`` for the generator's parameters.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from client_app.methods.fedkf import ClientState
from client_app.participant import Participant
from common import seeds
from common.exchange.records import StateDict
from common.models.generator import Generator
from common.parse import parse
from common.techniques.datafree import new_generator
from common.training.task import global_spec
from server_app.methods import make
from server_app.storage import checkpoint
from tests.support.tiny import TinyRun, flat, play

CODE = os.environ.get("FEDKF_CODE", "")
pytestmark = [
    pytest.mark.docs,
    pytest.mark.skipif(not CODE, reason="FEDKF_CODE names no checkout of zxlovely/FedKF"),
]
PACKAGES = ("clients", "data", "models", "servers")
CLIENTS, ACTIVE, ROUNDS, BATCH, LATENT = 3, 2, 3, 16, 20
SETTINGS: dict[str, Any] = {
    "method": "fedkf",
    "rounds": ROUNDS,
    "clients": CLIENTS,
    "per_round": ACTIVE,
    "fleet": "lenet5",
    "data__name": "digits",
    "data__image_size": 32,
    "data__samples": 360,
    "data__partition": "fedkf_dirichlet",
    "data__alpha": 1.0,
    "train__batch_size": BATCH,
    "train__steps": 5,
    "train__lr": 0.1,
    "train__momentum": 0.0,
    "generator__width": 128,
    "generator__latent": LATENT,
    "generator__momentum": 0.0,
}


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The released module of the server; its top-level packages are forgotten afterwards."""
    from common.vision import torchvision

    assert torchvision  # the released code imports it too
    monkeypatch.syspath_prepend(CODE)
    for name in [name for name in sys.modules if name.split(".")[0] in PACKAGES]:
        monkeypatch.delitem(sys.modules, name)
    from servers import serverFedKF  # type: ignore[import-not-found]

    yield serverFedKF
    for name in [name for name in sys.modules if name.split(".")[0] in PACKAGES]:
        del sys.modules[name]


def renamed(weights: StateDict, net: nn.Module) -> StateDict:
    """Return ``weights`` under the names of ``net``, whose layers have the same order."""
    pairs = zip(net.state_dict(), weights.values(), strict=True)
    return {name: value.clone() for name, value in pairs}


def apart(ours: StateDict, theirs: StateDict) -> float:
    """Return the largest difference between two state dicts with the same order of layers."""
    pairs = zip(ours.values(), theirs.values(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


class Inputs:
    """The inputs of our run, in the form that the released code takes."""

    def __init__(self, run: TinyRun, config: dict[str, Any]) -> None:
        parsed = parse(config)
        self.config, self.selected = parsed, [entry.get("selected", []) for entry in run.journal]
        self.participants = [
            Participant(parsed, {"partition-id": k}, "test") for k in range(CLIENTS)
        ]
        self.task = task = self.participants[0].task
        self.weights = make(task, global_spec(task)).w  # type: ignore[attr-defined]
        self.generator: Generator = new_generator(task)
        self.t = 0  #: the round
        self.draw = seeds.stream(0)  #: stream of the latents of the training client

    def choice(self, **_: object) -> list[int]:
        """Begin the next round and return its clients; in place of numpy's method."""
        self.t += 1
        return list(self.selected[self.t])

    def batches(self, k: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield client k's batches of one round after another."""
        for t in (t for t, clients in enumerate(self.selected) if t and k in clients):
            self.draw = seeds.stream(self.task.seed, "latents", k, t)
            one = self.task.batches(*self.participants[k].train_set, k, t, drop_last=True)
            yield from one.take(self.config.train.steps)


def released(
    code: Any, inputs: Inputs, monkeypatch: pytest.MonkeyPatch, eps: float
) -> tuple[Any, list[tuple[StateDict, StateDict]]]:
    """Run the released federation; return its server, and (ACA, OCA) after each round.

    ``eps``: ε of Adam for the generators; 0: SGD.
    """
    utils, models = sys.modules["data.utils"], list[tuple[StateDict, StateDict]]()
    task, options = inputs.task, inputs.config.generator
    changes = {"num_classes": 10, "noise_dim": LATENT, "lr": inputs.config.train.lr}
    changes |= {"mean": list(task.mean), "std": list(task.std)}
    monkeypatch.setitem(utils.CONFIGS, "EMNIST", {**utils.CONFIGS["EMNIST"], **changes})

    class Client(code.ClientFedKF):  # type: ignore[misc]
        """The released client with a generator from the start, which stays the optimiser's."""

        own: nn.Module | None = None

        @property
        def generator(self) -> nn.Module:
            if self.own is None:
                self.own = code.get_generator(dataset="EMNIST")
                self.own.load_state_dict(renamed(inputs.generator.state_dict(), self.own))
            return self.own

        @generator.setter
        def generator(self, value: object) -> None:
            pass

    class Server(code.ServerFedKF):  # type: ignore[misc]
        """The released server; of the data its clients need only the number of samples."""

        def _prepare_data(self) -> dict[int, Any]:
            sizes = [participant.n for participant in inputs.participants]
            return {k: utils.Indices2Dataset(None, [0] * n) for k, n in enumerate(sizes)}

        def aggregation(self, active_clients: list[int]) -> None:
            super().aggregation(active_clients)
            models.append((self.latest_weight, self.global_weight))

        def aggregate_local_results(self, w: str = "") -> None:
            pass

        def _print_results(self, w: str = "") -> None:
            pass

    monkeypatch.setattr(code, "ClientFedKF", Client)
    arguments = {"dataset": "EMNIST", "algorithm": "FedKF", "device": "cpu", "num_rounds": ROUNDS}
    arguments |= {"num_clients": CLIENTS, "num_active_clients": ACTIVE, "alpha": 1.0, "seed": 1}
    arguments |= {"batch_size_local_training": BATCH, "train_proportion": 1.0}
    arguments |= {"num_epochs_local_training": 1, "kf_oh": 0.1, "kf_a": 0.1, "kf_gamma": 1.0}
    server = Server(argparse.Namespace(**arguments))
    assert server.num_batches_per_epoch == inputs.config.train.steps
    server.latest_weight = renamed(inputs.weights, server.model)
    server.random_state = inputs
    for k, client in server.clients.items():
        client.get_batch_data = inputs.batches(k).__next__
        if not eps:
            client.optimizer_g = torch.optim.SGD(client.generator.parameters(), lr=1.0)
        for group in client.optimizer_g.param_groups:
            group.update({"lr": options.lr} | ({"eps": eps} if eps else {}))
    normal = torch.randn
    with monkeypatch.context() as patched:
        patched.setattr(torch, "randn", lambda *shape, **_: normal(*shape, generator=inputs.draw))
        server.run()
    return server, models


# Adam divides a gradient by its own size. Where that is near 0, rounding decides the direction of a
# step of length lr. A large ε prevents it, so that Adam can be compared as closely as SGD.
@pytest.mark.parametrize(
    ("optimizer", "eps", "lr", "model", "generator"),
    [
        pytest.param("sgd", 0.0, 0.01, 2e-6, 2e-5, id="SGD"),
        pytest.param("adam", 0.01, 0.01, 2e-6, 2e-5, id="Adam with a large ε"),
        pytest.param("adam", 1e-8, 0.001, 5e-3, 1e-2, id="Adam as released"),
    ],
)
def test_three_rounds_are_those_of_the_released_code(
    code: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    optimizer: str,
    eps: float,
    lr: float,
    model: float,
    generator: float,
) -> None:
    chosen = {"optimizer": optimizer, "optimizer_options": f"eps = {eps}" if eps else "", "lr": lr}
    config = flat(tmp_path, **SETTINGS, **{f"generator__{key}": v for key, v in chosen.items()})
    inputs = Inputs(play(config), config)
    server, models = released(code, inputs, monkeypatch, eps)
    for t, (latest, overall) in enumerate(models, start=1):
        state: Any = checkpoint.load(tmp_path, t if t < ROUNDS else -1).state
        assert apart(state["inner"]["w"], latest) < model
        assert (
            apart(state["overall"]["lenet5"], overall) < model < apart(inputs.weights, overall) / 5
        )
    for k in {k for selected in inputs.selected[2:] for k in selected}:
        own = inputs.participants[k].load_state(ROUNDS + 1, ClientState)
        theirs = server.clients[k].generator.state_dict()
        assert own is not None and apart(own.generator, theirs) < generator
        assert apart(inputs.generator.state_dict(), theirs) > 10 * generator or eps == 1e-8
