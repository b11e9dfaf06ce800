"""How sure a client is about each public image: w_i of DL-SH and DL-MH.

Contract: common/methods/dl_sh.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.participant import Participant, upload
from common.ensemble import odin_score, rescaled
from common.models.classifier import Classifier
from common.models.masked import beheaded


def confidence(p: Participant, t: int, net: Classifier, answers: Classifier) -> Tensor | None:
    """w_i in [0, 1], [N], of the client's trained ``net``; None if all count the same.

    ``answers``: the same network, speaking of the task's classes.
    """
    kind = p.config.confidence.kind
    if kind == "uniform":
        return None
    if kind == "odin":
        return rescaled(_odin(p, answers))
    return _private(p, t, net)


def _private(p: Participant, t: int, net: Classifier) -> Tensor:
    """P(label 0): train C_i to tell X_i (0) from X_dist (1), then ask it (Algorithm 1, 9-20)."""
    o = p.config.confidence
    own, public = p.train_set[0], p.public.to(p.device)
    judge = p.model(p.spec, classes=2, part="confidence")
    if o.init == "local":
        judge.load_state_dict(beheaded(upload(net)), strict=False)
    if o.balance == "sampling":
        size = max(len(own), len(public))
        own, public = _repeated(own, size), _repeated(public, size)
    x = torch.cat([own, public])
    y = torch.cat([torch.zeros(len(own)), torch.ones(len(public))]).long().to(p.device)
    weight = None
    if o.balance == "weights":
        counts = torch.tensor([len(own), len(public)], dtype=torch.float32, device=p.device)
        weight = len(x) / (2 * counts)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(judge(images), labels, weight)

    p.train_on(t, judge, x, y, loss, times=o.epochs, name="confidence")
    return torch.softmax(p.task.logits(judge, p.public), dim=1)[:, 0]


def _odin(p: Participant, net: Classifier) -> Tensor:
    o = p.config.confidence
    net.eval()
    scores = [
        odin_score(net, x, T=o.odin_temperature, epsilon=o.odin_epsilon, std=p.task.std)
        for x, _ in p.task.in_order(p.public)
    ]
    return torch.cat(scores).cpu()


def _repeated(x: Tensor, size: int) -> Tensor:
    """The rows of x round and round until there are ``size``."""
    return x[torch.arange(size, device=x.device) % len(x)]
