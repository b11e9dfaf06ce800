"""Sealed messages within this process: a loopback with keys, and an altered message."""

from flwr.app import Array, ArrayRecord, RecordDict

from common.settings.config import Value
from deploy.machines.certificates import Certificates
from deploy.run.loopback import Loopback


class Keyed(Loopback):  # type: ignore[misc]
    """Loopback whose clients have ``keys``; ``FEDMOSAIC_TRUST`` names the ServerApp's."""

    def __init__(self, config: dict[str, Value], keys: Certificates) -> None:
        super().__init__(int(config["clients"]), config, workers=0)
        for node, settings in self._nodes.items():
            k = int(settings["partition-id"])
            own = {"key": str(keys.key(k)), "ca": str(keys.ca), "state-dir": config["state-dir"]}
            self._nodes[node] = {**settings, **own}


def altered(content: RecordDict) -> RecordDict:
    """Return a sealed message with one bit of its body changed."""
    pieces = dict(content.array_records["sealed"])
    data = bytearray(pieces["2"].data)
    data[len(data) // 2] ^= 1
    pieces["2"] = Array("uint8", (len(data),), "sealed", bytes(data))
    return RecordDict({**content, "sealed": ArrayRecord(pieces)})
