"""Small data sets of labels and of numbers, on the images of ``toy``'s size, and of texts."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from common.data.dataset import Dataset, measured
from common.seeds import rng


def _made(n: int, n_test: int, objective: str) -> Dataset:
    """Images that are sums of three patterns, each on with probability ½, or of any strength."""
    draw = rng(0, "test-outputs", objective)
    patterns = draw.uniform(0, 90, (3, 1, 8, 8))

    def sample(size: int) -> tuple[Tensor, Tensor]:
        on = draw.uniform(0, 1, (size, 3))
        on = np.round(on) if objective == "labels" else on
        x = np.einsum("ni,ichw->nchw", on, patterns) + draw.normal(0, 8, (size, 1, 8, 8))
        y = on if objective == "labels" else np.stack([40 * on[:, 0] + 7, on[:, 1] - on[:, 2]], 1)
        return torch.from_numpy(x.clip(0, 255).astype(np.uint8)), torch.from_numpy(y).float()

    x, y = sample(n)
    x_test, y_test = sample(n_test)
    names = ("one", "two", "three") if objective == "labels" else ("size", "balance")
    dataset = measured("made", names, x=x, y=y, x_test=x_test, y_test=y_test)
    return replace(dataset, objective=objective)  # type: ignore[arg-type]


def labels() -> Dataset:
    """Three labels, each on half of the images."""
    return _made(160, 80, "labels")


def number() -> Dataset:
    """Two numbers of different units."""
    return _made(160, 80, "number")


LETTERS = 5  #: letters of ``next_token``; a letter is followed by the next one, mostly
FOLLOWS = 0.9  #: probability that it is


def next_token() -> Dataset:
    """Texts of 6 to 12 letters, of which the next is known with probability ``FOLLOWS``."""
    draw = rng(0, "test-outputs", "next-token")

    def sample(size: int) -> tuple[Tensor, Tensor]:
        texts = np.zeros((size, 13), np.int32)
        texts[:, 0] = draw.integers(LETTERS, size=size)
        for t in range(1, 13):
            other = draw.integers(LETTERS, size=size)
            follows = draw.uniform(size=size) < FOLLOWS
            texts[:, t] = np.where(follows, (texts[:, t - 1] + 1) % LETTERS, other)
        held = np.arange(13) < draw.integers(7, 14, size=(size, 1))
        texts = np.where(held, texts + 1, 0)
        y = torch.from_numpy(texts[:, 1:]).int()
        return torch.where(y > 0, torch.from_numpy(texts[:, :-1]).int(), 0), y

    x, y = sample(160)
    x_test, y_test = sample(80)
    names = ("padding", *"abcde")
    dataset = measured("made", names, x=x, y=y, x_test=x_test, y_test=y_test)
    sizes = {"vocab": LETTERS + 1, "token_bytes": (0, *[1] * LETTERS)}
    return replace(dataset, objective="next-token", tokenizer="letters", **sizes)


def texts() -> Dataset:
    """Texts of 3 to 8 of 30 words in three classes, each with words of its own, half of them."""
    draw = rng(0, "test-outputs", "texts")

    def sample(size: int) -> tuple[Tensor, Tensor]:
        y = draw.integers(3, size=size)
        own = 2 + 5 * y[:, None] + draw.integers(5, size=(size, 8))
        words = np.where(draw.uniform(size=(size, 8)) < 0.5, own, draw.integers(17, 32, (size, 8)))
        held = np.arange(8) < draw.integers(3, 9, size=(size, 1))
        return torch.from_numpy(np.where(held, words, 0)).int(), torch.from_numpy(y)

    x, y = sample(160)
    x_test, y_test = sample(80)
    dataset = measured("made", ("a", "b", "c"), x=x, y=y, x_test=x_test, y_test=y_test)
    return replace(dataset, vocab=32, tokenizer="words")
