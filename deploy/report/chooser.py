"""Five questions, and the methods that fit their answers: on the site and in ``fedmosaic list``.

The answers are facts of the contracts (``common/settings/facts.py``). ``listing.json`` has a built
copy, so that the command imports no torch.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("listing.json")
PUBLIC = {
    "none": "needs no public data",
    "server": "only the server has public data",
    "everybody": "server and all clients have the same public data",
}
ROUNDS = {"one": "one round", "many": "many rounds"}
LEAVES = {
    "whole": "the complete network that a client trains leaves it",
    "part": "a small shared network or a part leaves a client; its own model stays",
    "nothing": "no weights leave a client",
}
MODELS = {"global": "one global model", "personal": "personal models"}
NETWORKS = {
    "own": "each client trains a network of its own choice",
    "parts": "a small device trains a part or a smaller size of one network",
    "equal": "clients learn from clients with the same network",
}
QUESTIONS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "public": ("Is there public data?", PUBLIC),
    "rounds": ("How many rounds may it take?", ROUNDS),
    "leaves": ("May models leave a client?", LEAVES),
    "models": ("One global model, or personal ones?", MODELS),
    "networks": ("What can the smallest device train?", NETWORKS),
}
"""Question and its answers in words, by the key of its answers."""

Answers = Mapping[str, Sequence[str]]
"""The answers that a method fits, by question."""


def fitting(chosen: Mapping[str, str]) -> list[str]:
    """Return the methods that fit the chosen answers, by question."""
    return [
        name
        for name, answers in recorded().items()
        if all(answer in answers[key] for key, answer in chosen.items())
    ]


@cache
def built() -> dict[str, list[list[Any]]]:
    """Return the content of ``listing.json``."""
    content: dict[str, list[list[Any]]] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def recorded() -> dict[str, Answers]:
    """Return each built-in method's answers."""
    return {name: answers for name, answers in built()["answers"]}
