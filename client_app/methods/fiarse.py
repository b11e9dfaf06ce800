"""FIARSE, client half: train the entries with absolute values of at least θ."""

from typing import final

import torch
from torch import Tensor
from torch.func import functional_call

from client_app.handler import Handler
from client_app.participant import upload
from common.methods.fiarse import Options, Reply, Request
from common.models.classifier import Classifier
from common.settings.config import Config
from common.techniques import importance


@final
class FIARSE(Handler[Options, Request]):
    """Client with the loss CE(f(w·m(|w|); x), y)."""

    @classmethod
    def trains_own(cls, config: Config) -> bool:
        return False

    @property
    def spec(self) -> str:
        return self.participant.global_spec

    @property
    def size(self) -> float:
        """s_k, the share of the entries that this client trains."""
        shares, k = self.options.shares, self.participant.k
        return float(self.participant.node.get("size", shares[k % len(shares)]))

    def train(self, request: Request) -> Reply:
        net = self.participant.model(self.spec).train()
        names, before = importance.entries(net), upload(net)
        masks = importance.from_bitmap(request.bitmap, {name: before[name] for name in names})
        before |= importance.spread(request.kept, masks) | request.rest
        net.load_state_dict(before)
        groups = importance.groups(names, self.options.scope)
        metrics = self.learn(request.t, net, importance.by_name(request.theta, groups))
        after = upload(net)
        delta = request.kept - importance.kept(after, masks)
        return Reply(
            metrics=metrics, delta=delta, rest={name: after[name] for name in request.rest}
        )

    def learn(self, t: int, net: Classifier, theta: dict[str, float]) -> dict[str, float]:
        """Train ``net`` with the thresholds ``theta`` by tensor; return scalars for the journal."""
        weights = {name: w for name, w in net.named_parameters() if name in theta}
        detached = {name: w.detach() for name, w in weights.items()}
        dropped: dict[str, tuple[Tensor, Tensor]] = {}  # by tensor: mask and values before the step

        def loss(x: Tensor, y: Tensor) -> Tensor:
            for name, w in detached.items():
                dropped[name] = w.abs() < theta[name], w.clone()
            effective_ = {
                name: effective(w, theta[name], self.options.gradient)
                for name, w in weights.items()
            }
            return self.participant.loss(functional_call(net, effective_, (x,)), y)

        def after() -> None:
            for name, (mask, before) in dropped.items():
                weights[name].copy_(torch.where(mask, before, weights[name]))

        return self.participant.train(t, net.parameters(), loss, after=after)


def effective(w: Tensor, theta: float, gradient: str = "importance") -> Tensor:
    """Return w·m(|w|), with the gradient that ``common/methods/fiarse.py`` defines.

    ``gradient``: the option of this name.
    """
    with torch.no_grad():
        size = w.abs()
        mask = size >= theta
        if gradient == "mask":
            extra = torch.zeros_like(w)
        else:
            extra = torch.nan_to_num(2 * theta * size / (size + theta).square(), nan=0.0)
    return torch.where(mask, w + extra * (w - w.detach()), torch.zeros_like(w))
