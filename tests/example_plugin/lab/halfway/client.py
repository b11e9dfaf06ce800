"""Halfway, client half: cross-entropy on smoothed labels."""

from typing import final

import torch.nn.functional as F

from client_app.copy import Copy
from common.fit import Loss
from common.models.classifier import Classifier
from lab.halfway.contract import Down, Options, Up


@final
class Halfway(Copy[Options, Down]):
    """CE(f(w_k; x), y), the labels smoothed by ε."""

    receives, answers = Down, Up

    def loss(self, down: Down, net: Classifier) -> Loss:
        return lambda x, y: F.cross_entropy(net(x), y, label_smoothing=self.options.smoothing)
