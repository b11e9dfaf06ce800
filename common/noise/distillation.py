"""The settings of a server that distils on noise, whatever the method."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from common.config import Positive, Section


class NoiseDistillation(Section):
    """Server epochs of SGD on ``noise-batches`` batches each, all networks frozen but one."""

    noise: Literal["gaussian", "uniform", "dead_leaves", "stylegan"]
    kd_temperature: Positive
    kd_teacher_bn: Literal["batch", "running"]
    """BatchNorm of the teachers: the noise batch's statistics, or their data's running ones."""
    protect_running_stats: bool
    """The student's running statistics are not touched by noise."""
    eval_bn: Literal["batch", "running", "recalibrated"]
    server_epochs: Annotated[int, Field(ge=1)]
    noise_batches: Annotated[int, Field(ge=1)]
    """Noise batches in a server epoch."""
    noise_batch_size: Annotated[int, Field(ge=2)]
    server_lr: Positive
    server_momentum: Annotated[float, Field(ge=0, lt=1)]
