"""Predictors that join a client's private network with a copy of a shared one."""

import math
from abc import ABC
from typing import final

import torch
from torch import Tensor, nn

from common.data.kinds import vocab_of
from common.models.classifier import Classifier
from common.models.layers import Shape
from common.models.texts import WIDTH


class Composite(Classifier, ABC):
    """Predictor of the networks ``own`` and ``shared``; a private module ``joint`` joins them.

    The head is that of ``own``; a subclass defines the features.
    """

    def __init__(self, own: Classifier, shared: Classifier, joint: nn.Module) -> None:
        super().__init__()
        self.own, self.shared, self.joint = own, shared, joint
        self.head, self.spec = own.head, own.spec


@final
class Matryoshka(Composite):
    """Features r = A [f_w(x); f(x)], whose first d₁ numbers are the inputs of ``shared``'s head.

    ``own`` has K ≥ d₁ features f, ``shared`` has d₁ features f_w, and ``joint`` is the linear map A
    from d₁ + K to K numbers. FedMRL (Yi et al., NeurIPS 2024).
    """

    def features(self, x: Tensor) -> Tensor:
        joined: Tensor = self.joint(torch.cat([self.shared.features(x), self.own.features(x)], -1))
        return joined

    def small(self, r: Tensor) -> Tensor:
        """Return the logits (n, classes) of ``shared``'s head for features r (n, K)."""
        logits: Tensor = self.shared.head(r[..., : self.shared.head.in_features])
        return logits


@final
class Small(Classifier):
    """Classifier by the first d₁ features of a ``Matryoshka`` and the shared head."""

    def __init__(self, net: Matryoshka) -> None:
        super().__init__()
        self.net, self.head, self.spec = net, net.shared.head, net.spec

    def features(self, x: Tensor) -> Tensor:
        return self.net.features(x)[..., : self.head.in_features]


@final
class Gate(nn.Sequential):
    """Gate of pFedMoE: logits (n, 2) of both extractors for samples of ``shape``.

    It reads the flat sample, or the mean of the vectors of a text's tokens. ``hidden``: units of
    the hidden layer; ``normalise``: whether its input is normalised by its mean and variance, with
    a learnt scale and shift.
    """

    def __init__(self, shape: Shape, hidden: int, *, normalise: bool) -> None:
        vocab = vocab_of(shape)
        inputs = WIDTH if vocab else math.prod(shape)
        super().__init__(
            nn.EmbeddingBag(vocab, WIDTH, padding_idx=0) if vocab else nn.Flatten(),
            nn.LayerNorm(inputs) if normalise else nn.Identity(),
            nn.Linear(inputs, hidden),
            nn.Sigmoid(),
            nn.Linear(hidden, 2),
        )


@final
class Gated(Composite):
    """Features r = α₀ f_w(x) + α₁ f(x) with α = softmax(g(x)).

    ``own`` has K features f and ``shared`` K features f_w; ``joint`` is the gate g, which maps
    images (n, C, H, W) to logits (n, 2). pFedMoE (Yi et al., 2024).
    """

    def features(self, x: Tensor) -> Tensor:
        shares: Tensor = self.joint(x).softmax(dim=1)
        return shares[:, :1] * self.shared.features(x) + shares[:, 1:] * self.own.features(x)
