"""Which architecture a client trains for a method that averages models."""

from __future__ import annotations

from client_app.participant import Participant


def trained(participant: Participant) -> str:
    """The client's own where the method averages across architectures, else the server's."""
    across = getattr(participant.config.method, "across", "none")
    return participant.global_spec if across == "none" else participant.spec
