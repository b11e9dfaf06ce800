"""Rounds of FML and FD beside a bare PyTorch loop of the same work, and beside HtFLlib's own loop.

All train the same networks on the same samples for one epoch, on one thread. The bare loop has all
networks and normalised images in memory, one forward pass for both losses, fused SGD, and sends
nothing. Its networks have PyTorch's memory layout. The same loop also runs in the layout that our
training chooses, so that only the work besides training differs. Our time is the whole round:
requests, clients, files of client state, replies, checks, aggregation, checkpoint and journal. No
side scores. The environment variable HTFLLIB names a checkout of HtFLlib
(github.com/TsingZ0/HtFLlib); its clients and servers then run too.
"""

import contextlib
import importlib
import io
import os
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from client_app.participant import Participant
from common import models, vision  # noqa: F401 - HtFLlib imports torchvision, which vision repairs
from common.exchange import tree
from common.models.classifier import Classifier
from common.parse import defaults, parse
from common.settings.config import MemoryFormat
from common.training.task import global_spec
from deploy.settings import numbers
from tests.bench.runs import played
from tests.papers.htfllib_driver import SETTINGS

METHODS = ("fml", "fd")
SAME_LAYOUT = "same layout"
TURNS = 5
WORK: dict[str, Any] = {
    **{"clients": 8, "rounds": 4, "fleet": "lenet5,cnn2,cnn3,resnet8@0.5", "feature-dim": 64},
    **{"data.name": "fashion-mnist", "data.samples": 4000, "data.partition": "iid"},
    **{"train.epochs": 1, "train.batch-size": 10, "train.momentum": 0.0},
    **{"score.every": 1000, "score.clients-every": 0},
}
"""Eight clients with 400 images each, in the batches of HtFLlib."""

Round = Callable[[], None]


def compare(method: str, turns: int = TURNS) -> dict[str, float]:
    """Return median seconds of a round of each loop, and median ratios of ours to the bare loops.

    The loops run in turn, so that a machine whose speed drifts slows all of them.
    """
    torch.set_num_threads(1)
    bare = Bare(method, "contiguous")
    rounds: dict[str, Round] = {"bare": bare.round, SAME_LAYOUT: Bare(method, "auto").round}
    with tempfile.TemporaryDirectory() as folder:
        if path := os.environ.get("HTFLLIB", ""):
            rounds["htfllib"] = htfllib(Path(path), method, bare, Path(folder))
        for one in rounds.values():
            one()  # the first round also fills caches
        times: dict[str, list[float]] = {name: [] for name in (*rounds, "ours")}
        for _ in range(turns):
            for name, one in rounds.items():
                times[name].append(_seconds(one))
            times["ours"].append(ours(method))
    ratios = {
        name: statistics.median(a / b for a, b in zip(times["ours"], times[loop], strict=True))
        for name, loop in (("ratio", "bare"), ("same layout ratio", SAME_LAYOUT))
    }
    return {name: statistics.median(values) for name, values in times.items()} | ratios


def ours(method: str) -> float:
    """Return the mean seconds of the rounds of one run, without the first and the last."""
    entries = played({**WORK, "method": method}, "loopback").entries
    return statistics.fmean(entry.seconds["total"] for entry in entries[2:-1])


@final
class Bare:
    """The work of a round as a plain loop over clients and batches."""

    def __init__(self, method: str, layout: MemoryFormat) -> None:
        own = {"method": method, "experiment": "bare", "train.memory-format": layout}
        config = parse(numbers({**defaults(method), **WORK, **own}, method))
        self.config, self.method, train = config, method, config.train
        clients = [Participant(config, {"partition-id": k}, "bare") for k in range(WORK["clients"])]
        task = clients[0].task
        self.classes, self.spec = task.num_classes, global_spec(task)
        mean, std = torch.tensor(task.mean), torch.tensor(task.std)
        self.data = [
            ((x / 255 - mean[:, None, None]) / std[:, None, None], y)
            for x, y in (client.train_set for client in clients)
        ]
        self.nets = [client.model(client.spec).train() for client in clients]
        self.meme = task.build(self.spec, name=("init", "global")).train()
        self.w = tree.snapshot(self.meme)
        self.rows: Tensor | None = None
        self.batch, self.lr = train.batch_size, train.lr

    def batches(self, k: int) -> Any:
        x, y = self.data[k]
        for rows in torch.randperm(len(y)).split(self.batch):
            yield x[rows], y[rows]

    def sgd(self, *nets: nn.Module) -> torch.optim.Optimizer:
        parameters = [p for net in nets for p in net.parameters()]
        return torch.optim.SGD(parameters, lr=self.lr, fused=True)

    def round(self) -> None:
        self.fml() if self.method == "fml" else self.fd()

    def fml(self) -> None:
        """Train every pair of networks on α = β = ½, then average the memes."""
        memes = []
        for k, net in enumerate(self.nets):
            self.meme.load_state_dict(self.w)
            optimizer = self.sgd(net, self.meme)
            for x, y in self.batches(k):
                p, q = F.log_softmax(net(x), 1), F.log_softmax(self.meme(x), 1)
                ce = F.nll_loss(p, y) + F.nll_loss(q, y)
                kl = partial(F.kl_div, reduction="batchmean", log_target=True)
                loss = 0.5 * (ce + kl(p, q.detach()) + kl(q, p.detach()))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            memes.append(tree.snapshot(self.meme))
        for name, value in self.w.items():
            both = [w[name] for w in memes]
            self.w[name] = torch.stack(both).mean(0) if value.is_floating_point() else both[0]

    def fd(self) -> None:
        """Train every network with the mean logits of its samples' classes, then average them."""
        tables, present = [], []
        targets = None if self.rows is None else F.softmax(self.rows, dim=1)
        for k, net in enumerate(self.nets):
            optimizer = self.sgd(net)
            sums = torch.zeros(self.classes, self.classes)
            for x, y in self.batches(k):
                logits = net(x)
                log = F.log_softmax(logits, 1)
                loss = F.nll_loss(log, y)
                if targets is not None:
                    loss = loss - (targets[y] * log).sum(1).mean()
                sums.index_add_(0, y, logits.detach())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            counts = torch.bincount(self.data[k][1], minlength=self.classes)[:, None]
            tables.append(sums / counts.clamp_min(1))
            present.append(counts > 0)
        holders = torch.stack(present).sum(0)
        self.rows = torch.stack(tables).sum(0) / holders.clamp_min(1)


def htfllib(path: Path, method: str, bare: Bare, folder: Path) -> Round:
    """Return a round of HtFLlib's clients and server without its tests, on the same networks.

    ``path``: a checkout. ``folder``: for its files of models.
    """
    sys.path.insert(0, str(path.resolve() / "system"))
    sys.modules.setdefault("h5py", ModuleType("h5py"))  # only for its files of results
    server_module = importlib.import_module(f"flcore.servers.server{method}")
    networks: Any = importlib.import_module("flcore.trainmodel.models")
    base, clients = (
        importlib.import_module(f"flcore.{of}base") for of in ("servers.server", "clients.client")
    )

    def samples(dataset: str, k: int, **_: object) -> list[tuple[Tensor, Tensor]]:
        return list(zip(*bare.data[k], strict=True))

    base.read_client_data = clients.read_client_data = samples  # type: ignore[attr-defined]
    networks.build = _without_width
    # its files are pickles, which torch.load refuses by default since 2.6
    torch.load = partial(torch.load, weights_only=False)
    server_class = getattr(server_module, method.upper())
    settings: dict[str, Any] = SETTINGS | {
        **{"algorithm": method, "dataset": "bench", "num_classes": bare.classes},
        **{"batch_size": bare.batch, "local_learning_rate": bare.lr, "local_epochs": 1},
        **{"models_folder_name": "", "save_folder_name": str(folder)},
        **{"num_clients": WORK["clients"], "global_rounds": 1},
        **{"alpha": 0.5, "beta": 0.5, "lamda": 1.0, "feature_dim": bare.config.run.feature_dim},
        "models": [f"build({spec!r}, {bare.classes})" for spec in bare.config.fleet],
        "global_model": f"build({bare.spec!r}, {bare.classes})",
    }
    with contextlib.redirect_stdout(io.StringIO()):
        server = server_class(Namespace(**settings), 0)

    def one() -> None:
        with contextlib.redirect_stdout(io.StringIO()):  # FD reports its first round's missing file
            server.selected_clients = server.clients
            for client in server.clients:
                client.train()
            if method == "fd":
                server.receive_logits()
            else:
                server.receive_ids()
                server.aggregate_parameters()

    return one


def _without_width(spec: str, classes: int) -> Classifier:
    """Return a network whose head HtFLlib replaces by its own pooling and head."""
    return models.build(spec, (1, 28, 28), classes, seed=1)


def _seconds(work: Round) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
