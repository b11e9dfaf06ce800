"""Keys of a node's own configuration. They override the run's settings, including ``[node.K]``.

``flower-supernode --node-config 'partition-id=0 num-partitions=2 model="resnet8" memory-mb=2000'``
"""

import resource
import sys
from collections.abc import Mapping

from pydantic import ValidationError

from common.parse import form_of
from common.settings.config import Node
from common.settings.section import Value, kebab, value_kind

KINDS: dict[str, type] = {
    "partition-id": int,  #: number of this client, 0 … num-partitions − 1; required
    "num-partitions": int,  #: number of clients; required if run.clients = 0
    "key": str,  #: file of the client's registered key; with it, messages must be sealed
    "ca": str,  #: file of the authority's certificate; required with key
    "server-keys": str,  #: comma-separated fingerprints of ServerApps; default: any
    "ledger": str,  #: folder of the client's ledger; default: ~/.fedmosaic/ledger
    "max-rounds": int,  #: most rounds that the client answers, over all runs; default: any number
    "max-epsilon": float,  #: largest ε of the client's noisy replies, over all runs; default: any
    **{kebab(name): value_kind(field) or str for name, field in Node.model_fields.items()},
}
LEAST = {"partition-id": 0, "num-partitions": 1, "threads": 1, "memory-mb": 200, "max-rounds": 1}
LEDGER = "FEDMOSAIC_LEDGER"  #: environment variable of a client with the folder of its ledger
IN_STATE = "state-dir"
"""Value of ``ledger`` for clients of a simulation: the ledger lies with the client's state."""
NAMES = {int: "an integer", float: "a number", str: "text", bool: "true or false"}


def check(node: Mapping[str, Value], *, strict: bool = True) -> None:
    """Raise ``ValueError`` for an invalid value; if ``strict``, also for an unknown key."""
    for key, value in node.items():
        kind = KINDS.get(key)
        if kind is None:
            if strict:
                raise ValueError(f"node config {key!r} is unknown; allowed: {', '.join(KINDS)}")
            continue
        least = LEAST.get(key)
        fits = type(value) is kind or (kind is float and type(value) is int)
        if not fits or (least is not None and int(value) < least):
            bound = "" if least is None else f" of at least {least}"
            raise ValueError(f"node config {key} = {value!r}; it must be {NAMES[kind]}{bound}")
        if form := form_of(Node.model_fields.get(key.replace("-", "_"))):
            try:
                Node.model_validate({key: value})
            except ValidationError:
                raise ValueError(f"node config {key} = {value!r}; it must be {form}") from None


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
