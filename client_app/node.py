"""Keys of a node's own configuration. They override the run's settings, including ``[node.K]``.

``flower-supernode --node-config 'partition-id=0 num-partitions=2 model="resnet8" memory-mb=2000'``
"""

import resource
import sys
from collections.abc import Mapping
from typing import Annotated, final

from pydantic import Field, ValidationError

from common.errors import refusal
from common.parse import form_of
from common.settings.config import Node
from common.settings.section import NonNegative, Section, Value, keys_of


@final
class NodeOnly(Section):
    """Keys of a node's configuration beside those of ``[node.K]``; None: not set."""

    partition_id: Annotated[int | None, Field(ge=0)] = None
    """Number of this client, 0 … num-partitions − 1; required."""
    num_partitions: Annotated[int | None, Field(ge=1)] = None
    """Number of clients; required if run.clients = 0."""
    key: str | None = None
    """File of the client's registered key; with it, messages must be sealed."""
    ca: str | None = None
    """File of the authority's certificate; required with key."""
    roster: str | None = None
    """File of all clients' public keys, with which [secure] checks the keys of other clients."""
    server_keys: str | None = None
    """Fingerprints of ServerApps with commas between them; default: any."""
    ledger: str | None = None
    """Folder of the client's ledger; default: ~/.fedmosaic/ledger."""
    max_rounds: Annotated[int | None, Field(ge=1)] = None
    """Most rounds that the client answers, over all runs; default: any number."""
    max_epsilon: NonNegative | None = None
    """Largest ε of the client's noisy replies, over all runs; default: any."""


FIELDS = {**dict(keys_of("", NodeOnly)), **dict(keys_of("", Node))}
LEDGER = "FEDMOSAIC_LEDGER"  #: environment variable of a client with the folder of its ledger
IN_STATE = "state-dir"
"""Value of ``ledger`` for clients of a simulation: the ledger lies with the client's state."""


def check(node: Mapping[str, Value], *, strict: bool = True) -> None:
    """Raise ``ValueError`` for an invalid value; if ``strict``, also for an unknown key."""
    for key, value in node.items():
        if key not in FIELDS:
            if strict:
                raise ValueError(f"node config {key!r} is unknown; allowed: {', '.join(FIELDS)}")
            continue
        kind = Node if key.replace("-", "_") in Node.model_fields else NodeOnly
        try:
            kind.model_validate({key: value})
        except ValidationError as invalid:
            line = refusal(invalid.errors()[0], key, form_of(FIELDS[key]))
            raise ValueError(f"node config {line}") from None


def limit_memory(megabytes: int) -> None:
    """Limit this process's private memory to ``megabytes`` · 10⁶ bytes; 0: no limit.

    The limit (``RLIMIT_DATA``) covers heap and anonymous mappings, not files mapped for reading.
    An allocation beyond it raises an exception in torch or Python: the client sends an error reply
    and the process continues. Only Linux enforces it.
    """
    if sys.platform != "linux":
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = megabytes * 10**6 if megabytes else hard
    if hard != resource.RLIM_INFINITY:
        wanted = hard if wanted == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
