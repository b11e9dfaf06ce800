"""The battery, the tests that every method must pass: settings, faults, malicious clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Error, Message, RecordDict

from common.exchange.protocol import Reply
from common.methods import names
from deploy.run.loopback import Loopback
from deploy.user_modules import look_in
from tests.support.tiny import flat, under

PLUGIN = Path(__file__).parents[1] / "example_plugin"
"""Folder of an experiment with its own modules."""
EXAMPLE = "lab:halfway"
look_in(PLUGIN, {"method": EXAMPLE})
METHODS = (*names(), EXAMPLE)
FIRST = ("fedavg", "fedorion", "dl-mh", EXAMPLE)
"""Methods that `make test` runs: an average of weights, the default, predictions, a plug-in."""
FAMILIES = ("scaffold", "heterofl", "fedin", "fedkf", "fedmd", "dense", "fedgkt")
"""One method of each further family, which `make test-all` runs in every test."""

PUBLIC = {
    **{"data__public": 0.4, "data__samples": 200},
    **under("public", subset=40, epochs=2, batch_size=16),
}
"""Settings for methods that learn on the public set."""

# What a method needs to be quick or to fit the toy data, beyond the tiny run of tiny.py.
DEPTHS = {"fleet": "cnn2@0.5,cnn3@0.5"}
WIDTHS = {"fleet": "cnn2@0.5,cnn2@0.25-up"}
SHOT = {"data__public": 0.6, "data__samples": 200, "confidence__epochs": 1, "ensemble__epochs": 4}
LONGER = under("train", epochs=3, lr=0.1)
OF_ONE_RANK = ("fedit", "rolora", "ffa-lora", "fedsa-lora")
OF_RANKS = ("flora", "flexlora", "hetlora")
"""Methods for adapters of equal ranks, and of any."""
RANK = {"fleet": "mlp-lora4@0.25", **LONGER}
RANKS = {"fleet": "mlp-lora4@0.25,mlp-lora2@0.25", **LONGER}
NOISE = under("noise", epochs=1, batches=30, batch_size=32, lr=0.05)
SMALL = under("generator", latent=8, width=8)
OVERRIDES: dict[str, dict[str, Any]] = {
    "fedgkt": {**DEPTHS, "global_model": "cnn3@0.5"},
    "dl-sh": SHOT,
    "dl-mh": SHOT,
    "i-dl-mh": {**SHOT, "i_dl_mh__incentive_epochs": 1},
    "feddf": {"data__public": 0.4, "data__samples": 200, "public__epochs": 2},
    "fedkemf": {
        **{"data__public": 0.4, "data__samples": 140},
        **under("public", epochs=3, batch_size=16, lr=0.1),
    },
    **{
        name: {**PUBLIC, "public__epochs": 1, "public__batch_size": 40, f"{name}.first-epochs": 1}
        for name in ("fedmd", "kt-pfl")
    },
    "heterofl": {**WIDTHS, "score__bn": "recalibrated"},
    "fedrolex": {**WIDTHS, "fedrolex__rates": "redrawn", "score__bn": "batch"},
    "fedin": {**DEPTHS, "rounds": 2, "fedin__samples": 4},
    "depthfl": {
        **{"fleet": "cnn3-linear2@0.5", "node.1.model": "cnn3-linear1@0.5"},
        **{"depthfl__ramp": 2, **under("train", epochs=1, lr=0.1)},
    },
    "inclusivefl": {**DEPTHS, "node.1.model": "cnn4@0.5"},
    "fedkf": {**SMALL, "oca__in_memory": 2},
    "fiarse": {"fiarse__sizes": "1, 0.25"},
    "fedgkd": {"fedgkd__buffer": 1},
    "fedrep": {"fedrep__head_epochs": 2, "fedrep__body_epochs": 1},
    **{name: {"average__across": "same"} for name in ("fedper", "ditto")},
    EXAMPLE: {
        **{"plugins": str(PLUGIN), "fleet": "lab.nets:Shallow,cnn2@0.5", "halfway__step": 0.8},
        **under("data", name="lab.data:stripes", partition="lab.data:shuffled", test_samples=30),
        **under("train", epochs=1, lr=0.1),
    },
    "fedgen": under("fedgen", server_steps=4, hidden=16, server_batch_size=16),
    "dafl": {
        **{"fleet": "lenet5@0.5", **LONGER, **SMALL, **under("generator", lr=0.01, lambda_a=0.0)},
        **under("dafl", server_steps=40, server_batch_size=16, student_lr=0.05),
    },
    **{
        name: {
            **{"fleet": "mlp@0.25", **LONGER, **under(name, student_lr=lr, temperature=4.0)},
            **under(name, epochs=4, generated=24, batch_size=12, latent=8, width=8),
            **under(name, generator_steps=2, generator_lr=0.01, augment="none"),
        }
        for name, lr in (("dense", 0.1), ("co-boosting", 0.3))
    },
    **{name: {"score__bn": "recalibrated", **NOISE} for name in ("lwn", "hetfedfl")},
    "ds-fl": PUBLIC,
    "fdmeta": PUBLIC,
    "fedproto": {"feature_dim": 16, "fedproto__predict": "prototype"},
    **{name: RANK for name in OF_ONE_RANK},
    "flora": {**RANKS, "flora__send": "stack"},
    "flexlora": RANKS,
    "hetlora": {**RANKS, "hetlora__gamma": 0.8},
    "fedtgp": {"feature_dim": 16, "fedtgp__server_epochs": 10},
    "fedgh": {"feature_dim": 16, **under("fedgh", server_epochs=20, server_lr=0.1)},
    "lg-fedavg": {"feature_dim": 16},
    "fedssa": {"feature_dim": 16, "fedssa__stale": True},
    "fedmrl": {"global_model": "cnn2@0.25"},
    "pfedmoe": {"feature_dim": 16, "pfedmoe__gate_norm": "layer"},
    "fedl2g": {
        **under("fedl2g", warm_up=0, weight=0.1),
        **under("train", batch_size=8, epochs=8, lr=0.1),
    },
    "fedktl": {"fedktl__server_epochs": 5, **under("train", clip=5.0, epochs=4, lr=0.05)},
    "fd": {"fd__weights": "leave-one-out"},
    "fedftg": {**under("fedftg", iterations=2, generated=8), **SMALL},
    "fedftg-noise": under("noise", epochs=1, batches=4, batch_size=16),
}


def marks(case: Any, first: Collection[Any], second: Callable[[Any], bool]) -> list[Any]:
    """Return the marks of a case: none in ``first``, full if ``second(case)``, or exhaustive."""
    if case in first:
        return []
    return [pytest.mark.full if second(case) else pytest.mark.exhaustive]


def tiers(cases: Iterable[Any], first: Collection[Any] = FIRST) -> list[Any]:
    """Return ``cases`` as parameters: ``first`` for `make test`, the others for `make test-all`."""
    return [pytest.param(c, marks=marks(c, first, lambda _: True)) for c in cases]


def of_families(cases: Iterable[str]) -> list[Any]:
    """Return methods as parameters: ``FIRST``, for `make test-all` ``FAMILIES``, then the others.

    It is for what hardly depends on the method.
    """
    return [pytest.param(c, marks=marks(c, FIRST, FAMILIES.__contains__)) for c in cases]


def pairs(methods: Iterable[str], cases: Iterable[Any], every: int = 9) -> list[Any]:
    """Return the parameters method and case: `make test` has all cases with FedAvg.

    Of a method in ``FIRST`` or ``FAMILIES``, one of ``every`` cases is in the method's tier. All
    others are for `make exhaustive`.
    """
    listed, found = list(cases), list[Any]()
    for i, method in enumerate(methods):
        for j, case in enumerate(listed):
            chosen = method == "fedavg" or (i + j) % every == 0
            rare = [pytest.mark.exhaustive]
            mark = marks(method, FIRST, FAMILIES.__contains__) if chosen else rare
            found.append(pytest.param(method, case, marks=mark))
    return found


def config(method: str, out: Path, **changes: Any) -> dict[str, Any]:
    """Return the run config of a tiny run of ``method`` with its ``OVERRIDES``."""
    return flat(out, method=method, **{**OVERRIDES.get(method, {}), **changes})


class Backwards(Loopback):  # type: ignore[misc]
    """Loopback that delivers the last reply first."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return list(super().pull_messages(list(message_ids)))[::-1]


class Crash(BaseException):
    """A power cut."""


class Crashing(Loopback):  # type: ignore[misc]
    """Loopback that ends the process in round 2, when the clients have trained."""

    trained = True

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        last = sent[0].metadata.message_type == "train" and sent[0].metadata.group_id == "2"
        names = super().push_messages(sent) if self.trained or not last else []
        if last:
            raise Crash
        return names


class Ending(Crashing):  # type: ignore[misc]
    """Loopback that ends the process at the start of round 2."""

    trained = False


class Tampering(Loopback):  # type: ignore[misc]
    """Loopback that applies ``tamper``, or ``tampers`` by round, to client 1's training replies."""

    tamper: Any = None
    tampers: tuple[Any, ...] = ()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._changed(reply) for reply in super().pull_messages(list(message_ids))]

    def _changed(self, reply: Message) -> Message:
        if trained(reply):
            t = int(reply.metadata.group_id)
            tamper = self.tampers[t - 1] if self.tampers else type(self).tamper
            reply.content = tamper(reply.content)
        return reply


def lost(content: RecordDict) -> RecordDict:
    """Return an empty reply."""
    return RecordDict()


def unchanged(content: RecordDict) -> RecordDict:
    return content


class Losing(Tampering):  # type: ignore[misc]
    """Loopback that loses client 1's reply of round 2; the client has saved its state."""

    tampers = (unchanged, lost, *[unchanged] * 3)


class Swapping(Loopback):  # type: ignore[misc]
    """Loopback on which the node ``leaving`` is gone after round 1, and node 99 has its config."""

    leaving = 3
    changes: dict[str, Any] = {}  #: of the config

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        for message in sent:
            self._nodes.setdefault(message.metadata.dst_node_id, {})  # lost: an error reply
        names: Iterable[str] = super().push_messages(sent)
        if sent[0].metadata.message_type == "train" and 99 not in self._nodes:
            self.swap()
        return names

    def swap(self) -> None:
        self._nodes[99] = {**self._nodes.pop(self.leaving), **self.changes}

    def get_node_ids(self) -> Iterable[int]:
        return [node for node, config in self._nodes.items() if config]


def trained(reply: Message, *rounds: int, node: int = 2) -> bool:
    """Return whether it is a node's training reply, in one of ``rounds`` if there are any."""
    about = reply.metadata
    is_training = about.src_node_id == node and about.message_type == "train"
    return is_training and (not rounds or int(about.group_id) in rounds)


def failed(reply: Message, code: int, reason: str) -> Message:
    """Return the error message that Flower delivers instead of a reply."""
    error = Message(Error(code, reason), reply_to=reply)
    error.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    return error


def changed_tensor(content: RecordDict, change: Any) -> RecordDict:
    """Apply ``change`` to the first floating-point array of a reply."""
    from flwr.app import Array, ArrayRecord

    record = content["arrays"]
    assert isinstance(record, ArrayRecord)
    arrays = dict(record)
    # a reply without numbers gets an array that the method did not request
    name = next((name for name in arrays if name.startswith("float")), "float32")
    numbers = torch.from_numpy(arrays[name].numpy().copy()) if arrays else torch.zeros(2)
    arrays[name] = Array(change(numbers).numpy())
    content["arrays"] = ArrayRecord(arrays)
    return content


def fail_client(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    """Let client k's training raise an ``OSError``."""
    from client_app.participant import Participant

    honest = Participant.train

    def train(self: Participant, *args: Any, **kwargs: Any) -> Any:
        if self.k == k:
            raise OSError("disk full")
        return honest(self, *args, **kwargs)

    monkeypatch.setattr(Participant, "train", train)


class Changing(Loopback):  # type: ignore[misc]
    """Loopback that updates client 1's training reply, of type ``up``, with ``change(reply)``."""

    up: type[Reply] = Reply
    change: Any = None

    @classmethod
    def by(cls, upload: type[Reply], change: Callable[[Any], dict[str, Any]]) -> type[Changing]:
        """Return the loopback for a reply type and a function that returns the changed fields."""
        return type("Grid", (cls,), {"up": upload, "change": staticmethod(change)})

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(list(message_ids)))
        for reply in replies:
            if reply.metadata.src_node_id == 2 and reply.metadata.message_type == "train":
                upload = self.up.unpack(reply.content)
                reply.content = upload.model_copy(update=type(self).change(upload)).pack()
        return replies
