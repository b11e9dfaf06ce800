"""A finished run, opened again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from common.config import Config, Value
from common.data import load
from common.data.dataset import Dataset
from common.fleet import global_spec
from common.models.classifier import Classifier
from common.parse import parse
from common.task import Task
from deploy.run.settings import load as load_settings


@final
@dataclass(frozen=True)
class Finished:
    """``flat`` is the run config that everybody worked under; ``config.run.out`` is the folder."""

    folder: Path
    flat: dict[str, Value]
    config: Config

    def dataset(self) -> Dataset:
        return load(self.config.data)

    def task(self, dataset: Dataset) -> Task:
        """The run's task, on the CPU."""
        return Task.of(self.config, dataset, torch.device("cpu"))

    def server_model(self, dataset: Dataset, *, trained: bool = True) -> Classifier:
        """The server's model as the run left it, else as it was first drawn; in eval mode.

        Raises ``ValueError`` naming a file of weights that cannot be read.
        """
        task = self.task(dataset)
        net = task.build(global_spec(task), name=("init", "global"))
        if trained:
            path = self.folder / "model.safetensors"
            try:
                net.load_state_dict(load_file(path))
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{path} is damaged or no safetensors file: {error}") from error
        return net.eval()


def finished(folder: Path, needed: str = "model.safetensors") -> Finished:
    """The run in ``folder``.

    Raises ``ValueError``, one line, if config.toml or the file ``needed`` is not there.
    """
    for name in ("config.toml", needed):
        if not (folder / name).exists():
            raise ValueError(f"{folder} holds no finished run: it has no {name}")
    flat = {**load_settings(folder / "config.toml"), "out": str(folder)}
    return Finished(folder, flat, parse(flat))
