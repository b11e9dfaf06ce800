"""Card of a model: what its use needs beside the weights, in a JSON file beside them."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import final

from common.files import write_atomically
from common.measures import ObjectiveName
from common.objectives import OBJECTIVES, Objective

FILE = "model.json"  #: card of the models in the folder of a run


@final
@dataclass(frozen=True)
class Card:
    """Architecture, outputs, and the samples that a network takes.

    A network takes normalised samples, (x − mean) / std by channel (by column of a table), where
    bytes count in units of [0, 1]. It returns a logit for each class or label, or a standardised
    number for each target: number · target_std + target_mean is in the unit of the data.
    """

    method: str
    architecture: str
    kind: str  #: image, signal, table or tokens
    shape: tuple[int, ...]  #: of a sample: (C, H, W), (C, T), (F,) or (T,)
    bytes: bool  #: whether samples are bytes, 0 to 255
    classes: tuple[str, ...]  #: names of the outputs: classes, labels or targets
    mean: tuple[float, ...]
    std: tuple[float, ...]
    standardize: str = "dataset"  #: ``batch``: by the statistics of each batch instead
    columns: tuple[str, ...] = ()  #: of a table, in the order of a sample; empty: unnamed
    objective: ObjectiveName = "classes"  #: what is learnt
    target_mean: tuple[float, ...] = ()  #: of numbers
    target_std: tuple[float, ...] = ()
    vocab: int = 0  #: of texts: number of different tokens
    tokenizer: str = ""  #: of texts, with a digest of its vocabulary

    @property
    def goal(self) -> Objective:
        """What is learnt, with its predictions from the network's outputs."""
        scale = (self.target_mean, self.target_std) if self.target_mean else ()
        return OBJECTIVES[self.objective](self.classes, *scale)

    def write(self, path: Path) -> None:
        """Replace the file ``path``. Raises ``OSError`` if it cannot be written."""
        usual = {field.name: field.default for field in fields(self)}
        always = ("standardize", "columns")
        content = {n: v for n, v in asdict(self).items() if n in always or v != usual[n]}
        text = json.dumps(content, indent=1, ensure_ascii=False)
        write_atomically(path, f"{text}\n".encode())
