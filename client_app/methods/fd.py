"""FD, client half: pull logits to the mean logits of their class."""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.bases.class_table import TableLearner, squared
from common.methods.fd import Options


@final
class FD(TableLearner[Options]):
    """Client with the loss CE(z, y) + λ · D(z, ẑ_y)."""

    def distance(self, outputs: Tensor, rows: Tensor, present: Tensor) -> Tensor:
        how = self.options.distance
        if how == "mse":
            return squared(outputs, rows, present)
        if how == "raw":
            return F.cross_entropy(outputs, torch.where(present[:, None], rows, outputs.detach()))
        losses = F.cross_entropy(outputs, F.softmax(rows, dim=1), reduction="none")
        return (losses * present).mean()
