"""FedGKT, client half: train an extractor and a small classifier with the server's logits."""

from typing import final

import torch
from torch import Tensor

from client_app.handler import Handler
from client_app.participant import upload
from common.exchange.protocol import ScoreReply, ScoreRequest
from common.exchange.records import Records, StateDict
from common.losses.distillation import kl
from common.methods.fedgkt import Options, Reply, Request
from common.models.classifier import Classifier
from common.models.split import Edge, EdgeServerModel, splittable


@final
class ClientState(Records, kind="fedgkt.Memory"):
    """State of client k."""

    w: StateDict  #: weights of f_e and f_c


@final
class FedGKT(Handler[Options, Request]):
    """Client with the loss CE(z_c, y) + α T² KL(z_s → z_c), z_c = f_c(f_e(x))."""

    def admit(self) -> None:
        self._edge(0)

    def train(self, request: Request) -> Reply:
        p = self.participant
        edge = self._edge(request.t).train()
        if request.z is None:
            metrics = p.train(request.t, edge.trained(), p.supervised(edge))
        else:
            metrics = self._transfer(request.t, edge, request.z.to(p.device))
        p.save_state(request.t, ClientState(w=upload(edge)))
        h, z = self._features_and_logits(edge)
        return Reply(metrics=metrics, h=h, z=z, y=p.train_set[1].cpu())

    def _transfer(self, t: int, edge: Edge, z_s: Tensor) -> dict[str, float]:
        """Train ``edge`` for E epochs on equation 3; return scalars for the journal."""
        p, o = self.participant, self.options
        images, labels = p.train_set
        if len(z_s) != len(labels):
            raise ValueError(f"{len(z_s)} server logits for {len(labels)} samples")

        def loss(x: Tensor, rows: Tensor) -> Tensor:
            z_c, T = edge(x), o.temperature
            return p.loss(z_c, labels[rows]) + o.alpha * T**2 * kl(z_s[rows], z_c, T)

        rows = torch.arange(len(labels), device=p.device)
        times = self.config.train.epochs
        return p.train_on(t, edge, images, rows, loss, times=times, name="transfer")

    @torch.no_grad()
    def _features_and_logits(self, edge: Edge) -> tuple[Tensor, Tensor]:
        """Return H and z_c of all training samples, in the order of the training set."""
        edge.eval()
        batches = self.task.in_order(*self.participant.train_set)
        pairs = [(edge.net.extractor(x).float().cpu(), edge(x).float().cpu()) for x, _ in batches]
        features = torch.cat([h for h, _ in pairs]).contiguous()
        return features, torch.cat([z for _, z in pairs])

    def _edge(self, t: int) -> Edge:
        """Return f_e and f_c at the start of round t."""
        p, task = self.participant, self.task
        edge = Edge(splittable(p.model(p.spec)), task.num_classes, task.shape, task.seed)
        state = p.load_state(t, ClientState)
        if state is not None:
            edge.load_state_dict(state.w)
        return task.place(edge)

    def own_model(self, t: int) -> Classifier | None:
        return self._edge(t + 1)

    @property
    def n_test(self) -> int:
        p = self.participant
        return p.n_task_test if self.options.whole_test else p.n_test

    def score(self, request: ScoreRequest) -> ScoreReply:
        p, edge, shared = self.participant, self._edge(request.t + 1), None
        whole = self.options.whole_test
        if request.w is not None:
            net = EdgeServerModel(edge, p.model(p.global_spec, request.w))
            shared = p.result(self.task.place(net), whole=whole)
        return self.scores(request, p.result(edge, whole=whole), shared, {})
