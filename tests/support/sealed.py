"""Sealed messages within this process: clients that have keys, and a sealed body with an error."""

from flwr.app import Array, ArrayRecord, RecordDict

from common.settings.config import Value
from deploy.machines.certificates import Certificates
from deploy.run.loopback import Loopback


class Keyed(Loopback):  # type: ignore[misc]
    """A loopback whose clients have ``keys``; the ServerApp has its own by ``FEDMOSAIC_TRUST``."""

    def __init__(self, config: dict[str, Value], keys: Certificates) -> None:
        super().__init__(int(config["clients"]), config, workers=0)
        for node, of in self._nodes.items():
            k = of["partition-id"]
            self._nodes[node] = {**of, "key": str(keys.key(int(k))), "ca": str(keys.ca)}


def altered(content: RecordDict) -> RecordDict:
    """A sealed message with one bit of its body changed."""
    pieces = dict(content.array_records["sealed"])
    data = bytearray(pieces["2"].data)
    data[len(data) // 2] ^= 1
    pieces["2"] = Array("uint8", (len(data),), "sealed", bytes(data))
    return RecordDict({**content, "sealed": ArrayRecord(pieces)})
