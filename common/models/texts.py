"""Networks for tokens of texts (n, T), int32 of a vocabulary, where 0 is the padding on the right.

No output depends on padding: means and maxima leave it out, attention does not see it, and
recurrent networks end with a text's last token. The padding's row of an embedding is 0 and gets no
gradient, so that it stays 0.
"""

import math
from abc import ABC, abstractmethod
from functools import partial
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from common.data.kinds import every_of, vocab_of
from common.models.classifier import Classifier
from common.models.layers import Shape, scale
from common.models.signals import Attention

WIDTH = 64  #: numbers in a token's vector
KERNELS = (3, 4, 5)  #: tokens that the convolutions of a ``TextCNN`` read


def embedding(shape: Shape, width: int) -> nn.Embedding:
    """Return vectors [V, width] from N(0, 1) for the tokens of texts of ``shape``; padding is 0."""
    return nn.Embedding(vocab_of(shape), width, padding_idx=0)


def lengths(x: Tensor) -> Tensor:
    """Return the number of tokens [n] of each text of x [n, T], at least 1."""
    return (x > 0).sum(1).clamp(min=1)


def mean(h: Tensor, x: Tensor) -> Tensor:
    """Return the mean [n, d] of h [n, T, d] over the tokens of texts x [n, T]."""
    return (h * (x > 0).unsqueeze(2)).sum(1) / lengths(x).unsqueeze(1)


def packed(h: Tensor, x: Tensor) -> PackedSequence:
    """Return the inputs h [n, T, e] of a recurrent network at the tokens of texts x [n, T]."""
    return pack_padded_sequence(h, lengths(x).cpu(), batch_first=True, enforce_sorted=False)


@final
class MeanText(Classifier):
    """Mean vector of a text's tokens, then a linear layer without ReLU if ``hidden``.

    The networks ``fastText`` and ``TextLogisticRegression`` (without ``hidden``) of HtFLlib, of
    which the second is the model of Joulin et al. 2017, "Bag of tricks for efficient text
    classification".
    """

    def __init__(self, shape: Shape, classes: int, factor: float, *, hidden: bool) -> None:
        super().__init__()
        width = scale(WIDTH, factor)
        self.embedding = embedding(shape, width)
        self.fc = nn.Linear(width, width) if hidden else nn.Identity()
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.fc(mean(self.embedding(x), x))
        return features


@final
class TextCNN(Classifier):
    """CNN of 100 maps for each of 3, 4 and 5 tokens, and their maxima over the text.

    Kim 2014, "Convolutional neural networks for sentence classification", with a hidden layer. A
    maximum is over the places at which all tokens are the text's, at least over the first place.
    """

    def __init__(self, shape: Shape, classes: int, factor: float) -> None:
        super().__init__()
        width, maps = scale(WIDTH, factor), scale(100, factor)
        self.embedding = embedding(shape, width)
        self.convolutions = nn.ModuleList(nn.Conv1d(width, maps, k) for k in KERNELS)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(len(KERNELS) * maps, width)
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        h, most = self.embedding(x).transpose(1, 2), []
        for k, convolution in zip(KERNELS, self.convolutions, strict=True):
            places = torch.arange(x.shape[1] - k + 1, device=x.device)
            inside = places <= (lengths(x) - k).clamp(min=0).unsqueeze(1)
            most.append((torch.relu(convolution(h)) * inside.unsqueeze(1)).amax(2))
        return torch.relu(self.fc(self.dropout(torch.cat(most, 1))))


@final
class TextBiLSTM(Classifier):
    """LSTM in both directions; a linear layer reads the last states, which saw the whole text.

    Graves and Schmidhuber 2005, "Framewise phoneme classification with bidirectional LSTM".
    """

    def __init__(self, shape: Shape, classes: int, factor: float) -> None:
        super().__init__()
        width = scale(WIDTH, factor)
        self.embedding = embedding(shape, width)
        self.rnn = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        _, (states, _) = self.rnn(packed(self.embedding(x), x))  # [2, n, d]
        features: Tensor = self.fc(states.transpose(0, 1).flatten(1))
        return features


def broad(factor: float, heads: int) -> int:
    """Return the width of a transformer, a multiple of ``heads``."""
    return max(scale(WIDTH, factor, multiple=heads), heads)


@final
class Layers(nn.Module):
    """Layers of attention over tokens with learnt positions, and a LayerNorm behind them."""

    def __init__(
        self, steps: int, width: int, depth: int, heads: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.positions = nn.Parameter(0.02 * torch.randn(steps, width))
        layer = partial(Attention, width, heads=heads, wide=4, dropout=dropout)
        self.layer1 = nn.ModuleList(layer() for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, h: Tensor, mask: Tensor) -> Tensor:
        """Return the states [n, T, d] for vectors h [n, T, d]; ``mask``: see ``Attention``."""
        h = h + self.positions[: h.shape[1]]
        for layer in self.layer1:
            h = layer(h, mask)
        states: Tensor = self.norm(h)
        return states


@final
class TextTransformer(Classifier):
    """Transformer over tokens; the features are the mean over the tokens.

    Vaswani et al. 2017, "Attention is all you need", with LayerNorm before each part and dropout of
    0.1.
    """

    def __init__(
        self, shape: Shape, classes: int, factor: float, *, depth: int, heads: int
    ) -> None:
        super().__init__()
        width = broad(factor, heads)
        self.embedding = embedding(shape, width)
        self.body = Layers(shape[0], width, depth, heads, dropout=0.1)
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        return mean(self.body(self.embedding(x), (x > 0)[:, None, None]), x)


class LanguageModel(Classifier, ABC):
    """Network whose state at a token depends on that token and those before it.

    With shapes of ``every`` token the features are the states [n, T, d], and the logits [n, T, V]
    at token t are of token t + 1. Else they are of the text: the state [n, d] at its last token.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.every = every_of(shape)

    @abstractmethod
    def hidden(self, x: Tensor) -> Tensor:
        """Return the state [n, T, d] at each token of texts x [n, T]; of no use at padding."""

    def features(self, x: Tensor) -> Tensor:
        h = self.hidden(x)
        return h if self.every else h[torch.arange(len(x), device=x.device), lengths(x) - 1]


@final
class RecurrentText(LanguageModel):
    """LSTM or GRU of two layers over vectors of ``vector`` numbers, with ``dropout`` behind them.

    The network of LEAF for Shakespeare (Caldas et al. 2018; ``models/shakespeare/stacked_lstm.py``
    at TalwalkarLab/leaf) and the LSTM and GRU of HtFLlib, which are as wide as their vectors.
    """

    def __init__(
        self,
        shape: Shape,
        classes: int,
        factor: float,
        *,
        cell: type[nn.GRU] | type[nn.LSTM],
        vector: int = WIDTH,
        width: int = WIDTH,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(shape)
        vector, width = scale(vector, factor), scale(width, factor)
        self.embedding = embedding(shape, vector)
        self.rnn = cell(vector, width, 2, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, classes)

    def hidden(self, x: Tensor) -> Tensor:
        outputs = self.rnn(packed(self.embedding(x), x))[0]
        states: Tensor = self.dropout(pad_packed_sequence(outputs, True, 0.0, x.shape[1])[0])
        return states


@final
class GPT(LanguageModel):
    """Transformer with causal attention whose head is also the embedding, without dropout.

    Radford et al. 2019, "Language models are unsupervised multitask learners", as in nanoGPT
    (``model.py`` at karpathy/nanoGPT), with biases in all layers but the head. Initial weights are
    N(0, 0.02²), those of the layers that are added to the state N(0, 0.02² / 2L), and biases 0.
    """

    tied = True

    def __init__(
        self, shape: Shape, classes: int, factor: float, *, depth: int, heads: int
    ) -> None:
        assert classes == vocab_of(shape), "a tied head has an output for each token"
        super().__init__(shape)
        width = broad(factor, heads)
        self.body = Layers(shape[0], width, depth, heads)
        self.head = nn.Linear(width, classes, bias=False)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                added = name.endswith((".out", ".mlp.2"))
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * depth if added else 1))
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def hidden(self, x: Tensor) -> Tensor:
        before = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        states: Tensor = self.body(F.embedding(x, self.head.weight), before)
        return states
