"""Names that plug-ins of the last release import, and their names now; goes with the next release.

An error about such a name says the new one (``common/errors.py``, ``common/methods/__init__.py``).
"""

import re

ROOMS = {
    "settings": "config options section parse names plugins extras version",
    "training": "task fit optimise device seeds tree costs",
    "exchange": "protocol predictions quantise records seal",
    "techniques": "ensemble datafree public_set importance widths privacy incentive cka noise",
}
"""Folder of ``common``: the modules that were in ``common`` and are there now."""
MOVED = {
    **{f"common.{n}": f"common.{room}.{n}" for room in ROOMS for n in ROOMS[room].split()},
    "common.models.rest": "common.models.offloaded",
    "server_app.talk.post": "server_app.messaging.messenger",
    "server_app.talk": "server_app.messaging",
    "server_app.keep": "server_app.storage",
    "server_app.combine": "server_app.aggregation",
    "server_app.distil": "server_app.distillation",
    "server_app.track": "server_app.tracking",
    "server_app.privacy": "server_app.aggregation.privacy",
    "server_app.score": "server_app.scoring.score",
    "client_app.copy": "client_app.bases.global_copy",
    "client_app.private": "client_app.bases.own_model",
    "client_app.public_set": "client_app.bases.public_set",
    "client_app.incentive": "client_app.bases.incentive",
}
"""Module or package then: now."""
CLASSES = {
    "Down": "Request",
    "Up": "Reply",
    "Ups": "Replies",
    "Model": "ModelRequest",
    "Trained": "ModelReply",
    "Peer": "ClientInfo",
    "Ask": "ScoreRequest",
    "Score": "ScoreReply",
    "Copy": "GlobalCopy",
    "Private": "OwnModel",
    "Holding": "ServerPublicSet",
    "Seeing": "SharedPublicSet",
    "Speaking": "PredictionExchange",
    "Taught": "RewardedClient",
    "Rest": "OffloadedModel",
    "Taken": "Submodel",
}
"""Class or function then: now."""
HOOKS = {
    "answers": "reply_type",
    "keeps": "state_type",
    "receives": "request_type",
    "receives_second": "second_request_type",
    "gains": "second_reply_type",
    "receive_second": "aggregate_second",
    "down": "request",
    "ask": "weights_to_score",
    "rest": "release_memory",
}
"""Attribute of a method's half then: now."""
ATTRIBUTES = {
    **HOOKS,
    "peer": "info",
    "remember": "save_state",
    "recall": "load_state",
    "recall_of": "load_state_of",
}
"""Attribute that a method's half uses then: now."""
_IMPORT = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")


def hint(error: BaseException) -> str:
    """Return ``; 'common.fit' is now 'common.training.fit'`` if ``error`` is about an old name."""
    old, now = "", None
    if isinstance(error, ModuleNotFoundError):
        old = error.name or ""
        known = max(
            (name for name in MOVED if f"{old}.".startswith(f"{name}.")), key=len, default=""
        )
        now = known and MOVED[known] + old[len(known) :]
    elif isinstance(error, ImportError) and (names := _IMPORT.search(str(error))):
        old = names[1]
        now = CLASSES.get(old) or MOVED.get(f"{names[2]}.{old}")
    elif isinstance(error, AttributeError):
        old = error.name or ""
        now = ATTRIBUTES.get(old) or CLASSES.get(old)
    return f"; {old!r} is now {now!r}" if now else ""
