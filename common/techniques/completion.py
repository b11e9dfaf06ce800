"""Texts that a language model continues, token by token."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

PADDING = 0


@torch.no_grad()
def completed(
    net: nn.Module,
    prompts: Sequence[Sequence[int]],
    length: int,
    count: int,
    generator: torch.Generator,
    temperature: float = 1.0,
) -> list[list[int]]:
    """Return ``count`` further tokens behind each of ``prompts``, drawn from the network's softmax.

    ``net``: in evaluation mode, from tokens int32 [n, T] to logits [n, T, V]. ``prompts``: at least
    one token each. ``length``: T, of whose tokens the network sees at most the last ones.
    ``generator``: of the draws, on the CPU. ``temperature``: of the softmax; 0: the most probable
    token. Padding is never drawn.
    """
    device = next(net.parameters()).device
    texts = [list(prompt) for prompt in prompts]
    for _ in range(count):
        windows = [text[-length:] for text in texts]
        x = torch.zeros(len(texts), length, dtype=torch.int32)
        for row, window in zip(x, windows, strict=True):
            row[: len(window)] = torch.tensor(window, dtype=torch.int32)
        ends = torch.tensor([len(window) - 1 for window in windows])
        logits: Tensor = net(x.to(device)).float().cpu()[torch.arange(len(texts)), ends]
        logits[:, PADDING] = -torch.inf
        if temperature:
            most = logits.amax(1, keepdim=True)
            shares = torch.softmax((logits - most) / temperature, 1)
            drawn = torch.multinomial(shares, 1, generator=generator)[:, 0]
        else:
            drawn = logits.argmax(1)
        for text, token in zip(texts, drawn.tolist(), strict=True):
            text.append(token)
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]
