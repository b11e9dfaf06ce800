"""How sure a client is about each public image: w_i of DL-SH and DL-MH.

Contract: common/methods/dl_sh.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.participant import Participant, upload
from client_app.train_on import logits_on, train_on
from common.data.batches import evaluation_batches
from common.ensemble.odin import odin_score, rescaled
from common.methods.dl_sh import Distilling
from common.models.classifier import Classifier
from common.models.masked import beheaded


def confidence(p: Participant, t: int, net: Classifier, answers: Classifier) -> Tensor | None:
    """w_i in [0, 1], [N], of the client's trained ``net``; None if all count the same.

    ``answers``: the same network, speaking of the task's classes.
    """
    options: Distilling = p.config.method
    if options.confidence == "uniform":
        return None
    if options.confidence == "odin":
        return rescaled(_odin(p, answers))
    return _private(p, t, net)


def _private(p: Participant, t: int, net: Classifier) -> Tensor:
    """P(label 0): train C_i to tell X_i (0) from X_dist (1), then ask it (Algorithm 1, 9-20)."""
    o: Distilling = p.config.method
    own, public = p.train_set[0], p.public.to(p.device)
    judge = p.model(p.spec, classes=2, part="confidence")
    if o.conf_init == "local":
        judge.load_state_dict(beheaded(upload(net)), strict=False)
    if o.embed_balance == "sampling":
        size = max(len(own), len(public))
        own, public = _repeated(own, size), _repeated(public, size)
    x = torch.cat([own, public])
    y = torch.cat([torch.zeros(len(own)), torch.ones(len(public))]).long().to(p.device)
    weight = None
    if o.embed_balance == "weights":
        counts = torch.tensor([len(own), len(public)], dtype=torch.float32, device=p.device)
        weight = len(x) / (2 * counts)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(judge(images), labels, weight)

    train_on(p, judge, x, y, loss, epochs=o.embed_epochs, name="confidence", t=t)
    return torch.softmax(logits_on(p, judge, p.public), dim=1)[:, 0]


def _odin(p: Participant, net: Classifier) -> Tensor:
    o: Distilling = p.config.method
    net.eval()
    batches = evaluation_batches(
        p.public,
        torch.zeros(len(p.public), dtype=torch.int64),
        batch_size=p.config.score.batch_size,
        mean=p.dataset.mean,
        std=p.dataset.std,
        standardize=p.config.data.standardize,
        device=p.device,
    )
    scores = [
        odin_score(net, x, T=o.odin_temperature, epsilon=o.odin_epsilon, std=p.dataset.std)
        for x, _ in batches
    ]
    return torch.cat(scores).cpu()


def _repeated(x: Tensor, size: int) -> Tensor:
    """The rows of x round and round until there are ``size``."""
    return x[torch.arange(size, device=x.device) % len(x)]
