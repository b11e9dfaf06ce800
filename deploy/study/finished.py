"""A finished run, opened again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from common.config import Config
from common.data import load
from common.data.dataset import Dataset
from common.fleet import global_spec
from common.models.classifier import Classifier
from common.parse import parse
from common.section import Value
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
        """What the run learnt, on the CPU."""
        return Task.of(self.config, dataset, torch.device("cpu"))

    def server_model(self, task: Task, *, trained: bool = True) -> Classifier:
        """The server's model as the run left it, else as it was first drawn; in eval mode.

        Raises ``ValueError`` naming a file of weights that cannot be read.
        """
        path = self.folder / "model.safetensors"
        try:
            weights = load_file(path) if trained else None
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} is damaged or no safetensors file: {error}") from error
        return task.build(global_spec(task), weights, name=("init", "global")).eval()


def finished(folder: Path, needed: str = "model.safetensors") -> Finished:
    """The run in ``folder``.

    Raises ``ValueError``, one line, if config.toml or the file ``needed`` is not there.
    """
    for name in ("config.toml", needed):
        if not (folder / name).exists():
            raise ValueError(f"{folder} holds no finished run: it has no {name}")
    flat = {**load_settings(folder / "config.toml"), "out": str(folder)}
    return Finished(folder, flat, parse(flat))
