"""What a node's own configuration may say; every entry wins over the run's, ``[node.K]`` too.

``flower-supernode --node-config 'partition-id=0 num-partitions=2 model="resnet8" memory-mb=2000'``
"""

import resource
import sys
from collections.abc import Mapping

from common.settings.config import Node
from common.settings.section import Value, kebab, value_kind

KINDS: dict[str, type] = {
    "partition-id": int,  #: which client this is: 0 … num-partitions − 1; required
    "num-partitions": int,  #: how many clients there are; needed where the run does not say
    "key": str,  #: file of the client's registered key: then messages must be sealed
    "ca": str,  #: file of the authority's certificate, which goes with it
    **{kebab(name): value_kind(field) or str for name, field in Node.model_fields.items()},
}
LEAST = {"partition-id": 0, "num-partitions": 1, "threads": 1, "memory-mb": 200}
NAMES = {int: "an integer", float: "a number", str: "text", bool: "true or false"}


def check(node: Mapping[str, Value], *, strict: bool = True) -> None:
    """Raise ``ValueError`` for a value that a key does not take; if ``strict``, an unknown key."""
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


def limit_memory(megabytes: int) -> None:
    """From now on this process gets at most so many 10⁶ bytes of private memory; 0: no limit.

    Counted are heap and anonymous mappings (``RLIMIT_DATA``), not files mapped for reading. An
    allocation beyond the limit raises in torch or Python, which the server hears as one line; the
    process lives. Only Linux enforces it.
    """
    if sys.platform != "linux":
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = megabytes * 10**6 if megabytes else hard
    if hard != resource.RLIM_INFINITY:
        wanted = hard if wanted == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
