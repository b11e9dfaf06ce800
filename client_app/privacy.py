"""A client's part of differential privacy, where the server is not trusted with updates.

``privacy.mode = "local"``: the update is bounded and gets its noise here, before it is sent, and
nothing else of the client's data is. The key lies in the client's own folder
(``common/privacy.py``).
"""

from typing import TypeVar

from client_app.participant import Participant
from common import tree
from common.privacy import averaged, clipped, flattened, moved, noised
from common.protocol import Model, Peer, Trained, Up

U = TypeVar("U", bound=Up)


def private(participant: Participant, spec: str, down: object, up: U) -> U:
    """What client k sends in place of ``up``, trained in ``spec`` from what ``down`` brought.

    Raises ``ValueError`` if it holds more than the weights.
    """
    config = participant.config
    o = config.privacy
    if o.mode != "local":
        return up
    if up.__class__.model_fields.keys() != Trained.model_fields.keys():
        raise ValueError(f'privacy.mode = "local" is for copies of one model, not {up.kind}')
    assert isinstance(down, Model) and isinstance(up, Trained)
    parameters = tree.parameters_only(participant.model(spec, down.w))
    names = averaged(down.w, parameters, buffers=config.average.bn_buffers)
    update = clipped(flattened(up.w, names) - flattened(down.w, names), o.clip)
    update = noised(update, o.noise_multiplier * o.clip, participant.secret, down.t)
    return up.model_copy(update={"metrics": {}, "w": moved(down.w, names, update)})


def withheld(participant: Participant, peer: Peer) -> Peer:
    """What client k says of itself: sizes and classes of its data are not the server's business."""
    if participant.config.privacy.mode != "local":
        return peer
    classes = list(range(participant.task.num_classes))
    return peer.model_copy(update={"n": 1, "n_test": 0, "classes": classes, "counts": None})


def refuse(participant: Participant, what: str) -> None:
    """Raise ``ValueError`` if the client was asked for ``what``, which has no noise."""
    if participant.config.privacy.mode == "local":
        raise ValueError(f'privacy.mode = "local": a client sends no {what}')
