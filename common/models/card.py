"""Card of a model: what its use needs beside the weights, in a JSON file beside them."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

from common.files import write_atomically

FILE = "model.json"  #: card of the models in the folder of a run


@final
@dataclass(frozen=True)
class Card:
    """Architecture, classes, and the samples that a network takes.

    A network takes normalised samples, (x − mean) / std by channel (by column of a table), where
    bytes count in units of [0, 1].
    """

    method: str
    architecture: str
    kind: str  #: image, signal or table
    shape: tuple[int, ...]  #: of a sample: (C, H, W), (C, T) or (F,)
    bytes: bool  #: whether samples are bytes, 0 to 255
    classes: tuple[str, ...]  #: by the number of the logit
    mean: tuple[float, ...]
    std: tuple[float, ...]
    standardize: str = "dataset"  #: ``batch``: by the statistics of each batch instead
    columns: tuple[str, ...] = ()  #: of a table, in the order of a sample; empty: unnamed

    def write(self, path: Path) -> None:
        """Replace the file ``path``. Raises ``OSError`` if it cannot be written."""
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
        write_atomically(path, f"{text}\n".encode())
