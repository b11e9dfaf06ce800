"""A client's answer to the census."""

from __future__ import annotations

from client_app.methods import HANDLERS
from client_app.participant import Participant
from common.protocol import Hello, Peer, task
from common.version import code_version


def peer(participant: Participant, hello: Hello) -> Peer:
    """Who this client is. Raises ``ValueError`` if it cannot take part."""
    from common import models

    p, data = participant, participant.dataset
    if p.clients != hello.clients:
        raise ValueError(f"this client expects {p.clients} clients, the server {hello.clients}")
    models.check(p.spec, data.shape, data.num_classes, stem=p.config.run.stem)
    handler = HANDLERS[p.config.run.method](p)
    handler.admit()
    return Peer(
        experiment=p.experiment,
        k=p.k,
        n=p.n,
        n_test=p.n_test,
        model=handler.spec,
        classes=[c for c, count in enumerate(p.counts) if count],
        counts=p.counts if p.config.run.share_counts else None,
        task=task(data.shape, data.classes),
        public=handler.public(),
        version=code_version(),
    )
